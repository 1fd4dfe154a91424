# SPDX-License-Identifier: Apache-2.0
"""Conductor and agent as processes, and what the web servers in front of the API share."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cyborg.tests.fixtures.choice import chosen
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

#: For each way to serve the API, and for the deployers; a run tries one of them, a full run all.
_WAYS = ("test_deployers.py", "test_mod_wsgi.py", "test_proxies.py", "test_uwsgi.py")
# Processes share nothing but a broker: without one none of these is collected.
_tried = chosen(_WAYS, "deployed") if deployments.HAS_BROKER else []
collect_ignore = [name for name in _WAYS if name not in _tried]


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
