# SPDX-License-Identifier: Apache-2.0
"""Configurations for daemons of tests, and the broker's side of them."""

import os
from pathlib import Path

from cyborg.tests.fixtures import broker
from cyborg.tests.fixtures.placement import TOKEN, PlacementService
from cyborg.tests.fixtures.processes import Options

#: The bus of the run; daemons can only share one with a broker.
TRANSPORT_URL = broker.for_tests(os.environ.get("CYBORG_TEST_TRANSPORT_URL", "fake://"))
HAS_BROKER = TRANSPORT_URL.startswith("rabbit")


def merged(*parts: Options) -> dict[str, dict[str, object]]:
    """One set of options out of many; later ones win, option by option."""
    whole: dict[str, dict[str, object]] = {}
    for part in parts:
        for group, values in part.items():
            whole.setdefault(group, {}).update(values)
    return whole


def options(
    directory: Path,
    *,
    database: str,
    exchange: str,
    host: str,
    placement: PlacementService,
    nova: str,
    transport: str = TRANSPORT_URL,
) -> dict[str, dict[str, object]]:
    """What daemons need to work together on one host; short times, because somebody waits.

    They keep their files in ``directory``.
    ``nova`` is the URL of the compute API; there is no Keystone, neither behind nor in front.
    """
    return {
        "DEFAULT": {
            "host": host,
            "transport_url": transport,
            "control_exchange": exchange,
            "rpc_response_timeout": 10,
            "periodic_interval": 1,
            "state_path": directory,
        },
        "api": {"auth_strategy": "noauth"},
        "agent": {"enabled_drivers": "fake_driver", "heartbeat_interval": 1},
        "conductor": {"heartbeat": 1, "lease": 5, "auto_enable": "*"},
        # The simulated Nova knows of no servers: an audit would find all of them gone.
        "audit": {"interval": 86400},
        "database": {"connection": database},
        "placement": {
            "auth_type": "admin_token",
            "endpoint": placement.url,
            "token": TOKEN,
        },
        "nova": {"auth_type": "none", "endpoint": nova},
    }
