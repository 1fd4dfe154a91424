# SPDX-License-Identifier: Apache-2.0
"""Nodes of one deployment, and which tests of the plugin can run here."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cyborg.tests.fixtures import broker, ports
from cyborg.tests.fixtures.choice import chosen
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import TOKEN, PlacementService
from cyborg.tests.functional import deployments
from cyborg.tests.functional.devstack.node import MINIMAL, Node
from cyborg.tests.functional.schema.databases import empty_database

#: With services that really run: a run tries one of them, a full run both.
_RUNNING = ("test_grenade.py", "test_nodes.py")
# The services can only talk to each other over a broker.
_tried = chosen(_RUNNING, "devstack") if deployments.HAS_BROKER else []
collect_ignore = [name for name in _RUNNING if name not in _tried]

#: What an operator would write where there is no Keystone, and what keeps runs apart.
OVERRIDES = """\
[[post-config|$CYBORG_CONF]]
[DEFAULT]
host = {host}
control_exchange = {exchange}
rpc_response_timeout = 10
[agent]
resource_provider_name = {host}
heartbeat_interval = 1
[audit]
interval = 86400
[placement]
auth_type = admin_token
endpoint = {placement}
token = {token}
[nova]
auth_type = none
endpoint = {nova}
"""
LOCALRC = """\
CYBORG_AUTH_STRATEGY=noauth
CYBORG_SECURE_BUS=False
CYBORG_SERVICE_PORT={port}
"""


@pytest.fixture
def port() -> int:
    return ports.reserved()


@pytest.fixture
def make(
    host: str, port: int, placement: PlacementService, nova_api: SimulatedNova, tmp_path: Path
) -> Iterator[Callable[..., Node]]:
    """Make nodes of one deployment; whatever still runs on them is stopped at the end."""
    made: list[Node] = []
    with (
        broker.exchange(deployments.TRANSPORT_URL, host) as exchange,
        empty_database(tmp_path) as database,
    ):
        overrides = OVERRIDES.format(
            host=host,
            exchange=exchange,
            placement=placement.url,
            token=TOKEN,
            nova=nova_api.url,
        )
        variables = {
            "STANDIN_DATABASE_URL": database.engine.url.render_as_string(hide_password=False),
            "STANDIN_TRANSPORT_URL": deployments.TRANSPORT_URL,
            "STANDIN_WEB_PORT": str(port),
            "STANDIN_ENDPOINT": f"http://127.0.0.1:{port}/accelerator/v2",
        }

        def node(*lines: str) -> Node:
            home = tmp_path / f"node-{len(made)}"
            home.mkdir()
            text = MINIMAL + LOCALRC.format(port=port) + "".join(lines) + overrides
            made.append(Node(home, text, start=True, variables=variables))
            return made[-1]

        yield node
        for one in made:
            one.run("unstack")
