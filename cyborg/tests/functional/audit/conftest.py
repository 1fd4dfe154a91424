# SPDX-License-Identifier: Apache-2.0
"""Every test of the audit begins with an empty database and makes its own hosts.

The database is not that of the other tests: a conductor of theirs lives on it, and of those that
live only the first one audits.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from cyborg.db.engine import Database
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.single_step import Environment
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.use_cases import UseCases
from cyborg.tests.functional.audit.cloud import DOWN_AFTER, SmallCloud
from cyborg.tests.functional.environments import new_environment
from cyborg.tests.functional.life.conftest import racked, resource_class

__all__ = ["racked", "resource_class"]


@pytest.fixture
def nova() -> Iterator[SimulatedNova]:
    with SimulatedNova() as service:
        service.page = 2
        yield service


@pytest.fixture(scope="package")
def environment(
    tmp_path_factory: pytest.TempPathFactory, placement: PlacementService
) -> Iterator[Environment]:
    """A database that no process works on; its clock stands still during a test."""
    with new_environment(tmp_path_factory.mktemp("audit"), placement) as (made, _, _):
        yield made


@pytest.fixture(scope="package")
def quiet(environment: Environment) -> Database:
    return environment.watch


@pytest.fixture
def quiet_url(environment: Environment) -> str:
    """Where it is; nothing of earlier tests is in it, and its clock shows the time that it is."""
    environment.clear()
    environment.clock.ms = int(time.time() * 1000)
    return environment.database_url


@pytest.fixture
def cloud(
    quiet: Database, quiet_url: str, placement: PlacementService, nova: SimulatedNova
) -> SmallCloud:
    cases = UseCases(quiet, bind_timeout=60.0, heartbeat_interval=DOWN_AFTER / 3000)
    cases.lease.renew()
    return SmallCloud(cases, placement, nova)


@pytest.fixture
def running(stack: Stack, quiet_url: str) -> Iterator[Callable[..., Stack]]:
    """Start services of their own with a conductor, and with these times."""
    with ExitStack() as endings:

        def start(**times: Any) -> Stack:
            own = replace(
                stack,
                database_url=quiet_url,
                times=replace(stack.times, agent_heartbeat=0.2, scan=0.2, **times),
                exchange=f"cyborg-{uuid4().hex[:12]}",
                _endings=[],
            )
            own.start_conductor("audited")
            endings.callback(own.stop)
            return own

        yield start


@pytest.fixture
def keeping(running: Callable[..., Stack]) -> Stack:
    """A service of its own whose conductor tidies up all the time."""
    return running(housekeeping=0.3, full_check=1.0)
