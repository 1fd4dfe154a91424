# SPDX-License-Identifier: Apache-2.0
"""Rows of processes: which conductor is the oldest, who is up, and what fences an old process."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.leases import ConductorLease, check_epoch
from cyborg.db import services
from cyborg.db.engine import Database
from cyborg.db.models import Host, Service
from cyborg.db.services import Process
from cyborg.model import readiness
from cyborg.model.process import AGENT, API, CONDUCTOR, HostStatus
from cyborg.model.scope import EVERYWHERE

LEASE_MS = 60_000
HERE = Process("control", CONDUCTOR, "18.0", "http://control")
THERE = Process("other-control", CONDUCTOR, "18.0", "http://other")
COMPUTE = Process("compute", AGENT, "18.0", "")
#: The compute host of the agent.
HOST = sa.insert(Host).values(name="compute.example.org", service_host="compute", updated_ms=1)


def register(db: Database, process: Process, *, age_ms: int = 0, **more: str) -> tuple[int, int]:
    """Id and epoch of a process that sent its last heartbeat so long ago."""
    with db.writer() as tx:
        owner = services.register(tx, process, "READY", **more)
        tx.execute(
            sa.update(Service)
            .where(Service.id == owner[0])
            .values(last_seen_ms=Service.last_seen_ms - age_ms)
        )
    return owner


def rows(db: Database, **filters: str) -> list[Any]:
    with db.reader() as tx:
        return list(services.processes(tx, EVERYWHERE, **filters))


@pytest.mark.parametrize(
    ("host", "epoch", "error"),
    [
        (None, 1, exception.NotFound),
        (SimpleNamespace(epoch=2), 1, exception.StaleEpoch),
        (SimpleNamespace(epoch=1), 2, exception.StaleEpoch),
        (SimpleNamespace(epoch=1), 1, None),
    ],
)
def test_only_the_present_agent_of_a_known_host_is_accepted(
    host: Any, epoch: int, error: type[Exception] | None
) -> None:
    if error is None:
        assert check_epoch(host, "compute", epoch) is host
        return
    with pytest.raises(error):
        check_epoch(host, "compute", epoch)


def test_conductor_that_has_existed_longest_is_the_oldest(db: Database) -> None:
    register(db, COMPUTE)
    first, second = (ConductorLease(db=db, process=process) for process in (HERE, THERE))
    assert not first.is_oldest(LEASE_MS)
    first.renew()
    second.renew()
    assert first.is_oldest(LEASE_MS)
    assert not second.is_oldest(LEASE_MS)
    with db.writer() as tx:
        silent = sa.update(Service).where(Service.host == HERE.host)
        tx.execute(silent.values(last_seen_ms=Service.last_seen_ms - LEASE_MS))
    assert second.is_oldest(LEASE_MS)


def test_conductor_that_ends_has_no_row_and_no_lease(db: Database) -> None:
    lease = ConductorLease(db=db, process=HERE)
    lease.end()
    lease.renew()
    lease.end()
    assert lease.owner is None
    assert rows(db) == []


def test_row_of_a_newer_process_stays_when_the_former_one_ends(db: Database) -> None:
    former, newer = (ConductorLease(db=db, process=HERE) for _ in range(2))
    former.renew()
    newer.renew()
    former.end()
    assert [row.host for row in rows(db)] == [HERE.host]


@pytest.mark.parametrize(("age_ms", "up"), [(0, True), (50_000, True), (70_000, False)])
def test_process_is_up_until_it_has_been_silent_for_too_long(
    db: Database, age_ms: int, up: bool
) -> None:
    register(db, COMPUTE)
    register(db, HERE, age_ms=age_ms)
    with db.reader() as tx:
        (status,) = services.statuses(tx, {CONDUCTOR: 60_000})
    assert (status.process, status.status, status.epoch, status.up) == (HERE, "READY", 1, up)
    assert age_ms <= status.silent_ms < age_ms + 10_000


def test_status_of_a_process_of_an_older_release_is_known(db: Database) -> None:
    """It has told neither version nor endpoint."""
    register(db, HERE)
    with db.writer() as tx:
        tx.execute(sa.update(Service).values(version=None, endpoint=None))
    with db.reader() as tx:
        (status,) = services.statuses(tx, {CONDUCTOR: 60_000})
    assert status.process == replace(HERE, version="", endpoint="")


def test_processes_are_found_by_uuid_binary_and_host(db: Database) -> None:
    """The name of a host is that of its service, or that of the compute in Placement."""
    for process in (HERE, THERE, COMPUTE, Process("compute", API, "18.0", "")):
        register(db, process, age_ms=5_000)
    with db.writer() as tx:
        tx.execute(HOST)
    found = rows(db)
    assert [row.host for row in found] == ["control", "other-control", "compute", "compute"]
    assert all(5_000 <= row.silent_ms < 15_000 for row in found)
    assert [row.uuid for row in rows(db, uuid=found[1].uuid)] == [found[1].uuid]
    assert [row.host for row in rows(db, binary=CONDUCTOR)] == ["control", "other-control"]
    assert [row.host for row in rows(db, host="control")] == ["control"]
    for name in ("compute", "compute.example.org"):
        assert [row.binary for row in rows(db, host=name)] == [AGENT, API]


def test_process_of_an_agent_is_found_with_its_host(db: Database) -> None:
    register(db, HERE)
    register(db, COMPUTE, age_ms=5_000)
    with db.writer() as tx:
        key = tx.execute(HOST).inserted_primary_key
        assert key is not None
    control, compute = rows(db)
    with db.reader() as tx:
        found = services.process(tx, compute.uuid)
        other = services.process(tx, control.uuid)
    assert found is not None
    assert other is not None
    assert (found.host, found.host_id, other.host_id) == ("compute", key[0], None)
    assert 5_000 <= found.silent_ms < 15_000


def test_process_has_no_epoch_without_a_row(db: Database) -> None:
    register(db, THERE)
    with db.reader() as tx:
        assert services.current(tx, HERE) is None
    register(db, HERE, age_ms=5_000)
    with db.reader() as tx:
        row = services.current(tx, HERE)
    assert row is not None
    assert row.epoch == 1
    assert 5_000 <= row.silent_ms < 15_000


def test_errors_of_a_new_process_are_stored_until_it_has_none(db: Database) -> None:
    owner = register(db, COMPUTE, status_reason="no driver works", bus_error="it is away")
    (row,) = rows(db)
    assert row.host_status == HostStatus.ENABLED
    assert services.readiness_of(row) == readiness.Process(
        binary=AGENT,
        host="compute",
        silent_ms=row.silent_ms,
        last_seen_ms=row.last_seen_ms,
        bus_error="it is away",
        bus_error_ms=row.bus_error_ms,
        status_reason="no driver works",
    )
    assert row.bus_error_ms == row.last_seen_ms
    with db.writer() as tx:
        assert services.heartbeat(tx, COMPUTE, epoch=owner[1], status="READY")
        assert not services.heartbeat(tx, COMPUTE, epoch=owner[1] + 1, status="READY")
    (row,) = rows(db)
    assert (row.status_reason, row.bus_error, row.bus_error_ms) == (None, None, None)
    assert register(db, COMPUTE) == (owner[0], 2)
    (row,) = rows(db)
    assert (row.status_reason, row.bus_error, row.bus_error_ms) == (None, None, None)


def test_bus_error_keeps_the_time_since_which_it_lasts(db: Database) -> None:
    _, epoch = register(db, COMPUTE, bus_error="it is away")
    with db.writer() as tx:
        tx.execute(sa.update(Service).values(bus_error_ms=1))
        assert services.heartbeat(
            tx, COMPUTE, epoch=epoch, status="FAILED", status_reason="broken", bus_error="still"
        )
    (row,) = rows(db)
    assert (row.status_reason, row.bus_error, row.bus_error_ms) == ("broken", "still", 1)


def test_only_the_named_process_is_disabled_and_removed(db: Database) -> None:
    register(db, HERE)
    id_, _ = register(db, THERE)
    with db.writer() as tx:
        services.set_status(tx, id_, HostStatus.DISABLED, "repair")
    assert [(row.host_status, row.disabled_reason) for row in rows(db)] == [
        ("enabled", None),
        ("disabled", "repair"),
    ]
    with db.writer() as tx:
        services.remove(tx, id_)
    assert [row.host for row in rows(db)] == [HERE.host]


def test_process_without_an_epoch_is_renewed_once_it_has_a_row(db: Database) -> None:
    with db.writer() as tx:
        assert not services.renew(tx, HERE)
    register(db, HERE, age_ms=50_000)
    register(db, THERE, age_ms=50_000)
    with db.writer() as tx:
        assert services.renew(tx, replace(HERE, version="19.0", endpoint="https://control"))
    here, there = rows(db)
    assert (here.version, here.endpoint) == ("19.0", "https://control")
    assert here.silent_ms < 10_000
    assert there.silent_ms >= 50_000
