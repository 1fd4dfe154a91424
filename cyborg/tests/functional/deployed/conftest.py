# SPDX-License-Identifier: Apache-2.0
"""Conductor and agent as processes, and what the web servers in front of the API share."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cyborg.tests.functional import deployments
from cyborg.tests.functional.daemons.conftest import (
    database,
    deploy,
    exchange,
    host,
    options,
    service,
)
from cyborg.tests.functional.deployed import servers

__all__ = ["database", "deploy", "exchange", "host", "options", "service"]

# Processes share nothing but a broker: without one these are not collected.
collect_ignore = [] if deployments.HAS_BROKER else ["test_web_servers.py", "test_deployers.py"]


@pytest.fixture(scope="module")
def packages() -> Iterator[Path]:
    """Where the packages are of an environment that mod_wsgi can use.

    It asks whether its user may enter, as which no right of root counts: pytest's own directories
    are closed.
    """
    servers.needed()
    with TemporaryDirectory(prefix="cyborg-") as directory:
        Path(directory).chmod(0o755)
        yield servers.environment_for_apache(Path(directory) / "cyborg")
