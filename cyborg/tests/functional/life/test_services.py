# SPDX-License-Identifier: Apache-2.0
"""The rows of processes: who there is, of which release, where, since when, up or down."""

import threading
from collections.abc import Callable
from uuid import uuid4

import pytest

from cyborg.db import services
from cyborg.db.engine import Database
from cyborg.db.services import Process, ProcessStatus
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import ApiHeartbeat
from cyborg.tests.fixtures.compute_host import ComputeHost

DOWN_AFTER = {AGENT: 30_000, API: 30_000, CONDUCTOR: 10_000}


def of(db: Database, binary: str, host: str | None = None) -> list[ProcessStatus]:
    """The processes of a binary, on all hosts or on one, as they are seen now."""
    with db.reader() as tx:
        seen = services.statuses(tx, DOWN_AFTER)
    return [
        one for one in seen if one.process.binary == binary and host in (None, one.process.host)
    ]


@pytest.fixture
def host() -> str:
    return f"api-{uuid4().hex[:12]}"


def test_every_process_has_a_complete_service_row(
    conductor: ConductorClient, compute: Callable[..., ComputeHost], database: Database, host: str
) -> None:
    on = compute().compute
    conductor.request(ApiHeartbeat(host, version="18.0.0", endpoint="http://api.test"))
    (agent,), (api,) = of(database, AGENT, on), of(database, API, host)
    # Those that other tests have killed are down.
    first = next(one for one in of(database, CONDUCTOR) if one.up)
    assert (agent.process.version, agent.process.endpoint) == ("0", f"cyborg-agent@{on}")
    assert api.process == Process(host, API, "18.0.0", "http://api.test")
    assert first.process.version == "0"
    assert first.process.endpoint == f"cyborg-conductor@{first.process.host}"
    assert agent.up
    assert api.up
    assert min(one.epoch for one in (agent, api, first)) >= 1


def test_api_processes_share_the_row_of_their_host(
    conductor: ConductorClient, database: Database, host: str
) -> None:
    faults: list[Exception] = []
    together = threading.Barrier(8)

    def worker() -> None:
        together.wait()
        try:
            for _ in range(3):
                conductor.request(ApiHeartbeat(host, version="1", endpoint="somewhere"))
        except Exception as fault:  # noqa: BLE001 - the test tells it
            faults.append(fault)

    threads = [threading.Thread(target=worker) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    (row,) = of(database, API, host)
    assert row.up
    conductor.request(ApiHeartbeat(host, version="2", endpoint="elsewhere"))
    assert [one.process for one in of(database, API, host)] == [
        Process(host, API, "2", "elsewhere")
    ]
