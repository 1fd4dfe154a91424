# SPDX-License-Identifier: Apache-2.0
"""A database that was restored from an older backup: living servers hold units it does not know."""

import json
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.audit.repairs import allow_units, hold_units
from cyborg.db.models import Arq, Event, Instance, UsageRecord, Work
from cyborg.model.audit_findings import Finding, Fix, Kind, Severity
from cyborg.model.work import Use
from cyborg.rpc.verbs import FetchUnitUses
from cyborg.tests.fixtures.fake_servers import Guest
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.functional.audit.cloud import SmallCloud
from cyborg.tests.functional.audit.test_command import Run, document, run
from cyborg.tests.functional.audit.test_damages import forget_release, handles, strand_release

__all__ = ["run"]


def boot(cloud: SmallCloud, host: str) -> tuple[str, Guest]:
    """Boot a server as Nova shows it afterwards: it has a node, and no task."""
    _, instance = cloud.bind(host)
    return instance, cloud.nova.own(instance, "project", node=host)


def restore(cloud: SmallCloud, *instances: str) -> None:
    """Forget these servers, as a backup of the time before them does."""
    cloud.cases.execute(
        sa.delete(Work).where(Work.instance_uuid.in_(instances)),
        sa.delete(UsageRecord).where(UsageRecord.instance_uuid.in_(instances)),
        sa.delete(Arq).where(Arq.instance_uuid.in_(instances)),
        sa.delete(Instance).where(Instance.uuid.in_(instances)),
    )


def finding_of(cloud: SmallCloud, host: str) -> Finding:
    (finding,) = cloud.auditor().look(host).findings
    return finding


def test_servers_that_the_database_does_not_know_are_an_error(cloud: SmallCloud) -> None:
    host, other = cloud.host(), cloud.host()
    servers = sorted(boot(cloud, host)[0] for _ in range(3))
    boot(cloud, other)
    restore(cloud, *servers)
    assert cloud.found() == {(Kind.UNKNOWN_HOLDER, provider_of(host, 0))}
    finding = finding_of(cloud, host)
    assert (finding.severity, finding.fix) == (Severity.ERROR, Fix.SET_ASIDE)
    assert "3 unit(s)" in finding.cause
    assert all(server in finding.cause for server in servers)


def test_next_bind_does_not_get_the_unit_of_an_unknown_server(cloud: SmallCloud) -> None:
    host, other = cloud.host(), cloud.host()
    before = boot(cloud, host)[0]
    forgotten = [boot(cloud, host)[0] for _ in range(2)]
    restore(cloud, *forgotten)
    assert cloud.fix() == []
    with pytest.raises(exception.NoFreeHandle):
        cloud.bind(host)
    cloud.bind(other)
    # The database knows which unit this one holds.
    assert bound_on(cloud, host) == [before]
    assert len(handles(cloud, host, "quarantined")) == 3
    with cloud.cases.db.reader() as tx:
        history = tx.execute(sa.select(Event.reason).where(Event.action == "quarantined")).scalars()
        assert all("server" in str(reason) for reason in history)


def bound_on(cloud: SmallCloud, host: str) -> list[str | None]:
    with cloud.cases.db.reader() as tx:
        query = sa.select(Arq.instance_uuid).where(Arq.hostname == host, Arq.state == "Bound")
        return list(tx.execute(query).scalars())


def test_quarantine_stays_until_an_operator_frees_the_unit(cloud: SmallCloud) -> None:
    host = cloud.host(units=2)
    server, _ = boot(cloud, host)
    restore(cloud, server)
    assert cloud.fix() == []
    cloud.publish(host)
    units = {(Kind.SUSPECT_HANDLE, row.uuid) for row in handles(cloud, host, "quarantined")}
    assert len(units) == 2
    assert cloud.found() == {(Kind.UNKNOWN_HOLDER, provider_of(host, 0)), *units}
    assert finding_of_kind(cloud, Kind.UNKNOWN_HOLDER).fix is None
    # The server is deleted: Nova frees the allocation, and calls nothing that finds a row.
    cloud.nova.disown(server)
    cloud.placement.free(server)
    assert cloud.found() == units


def finding_of_kind(cloud: SmallCloud, kind: Kind) -> Finding:
    return next(one for one in cloud.auditor().look().findings if one.kind is kind)


def test_unit_in_release_is_not_cleaned_under_an_unknown_server(cloud: SmallCloud) -> None:
    host = cloud.host(units=2)
    server, _ = boot(cloud, host)
    restore(cloud, server)
    forget_release(cloud, host)
    assert cloud.fix() == []
    with cloud.cases.db.reader() as tx:
        assert tx.execute(sa.select(Work.kind)).scalars().all() == []
    assert len(handles(cloud, host, "quarantined")) == 2


def test_nothing_is_released_beside_an_unknown_server(cloud: SmallCloud) -> None:
    """The unit of a release without work, or gone with its server, may be the one in use."""
    host = cloud.host()
    server, _ = boot(cloud, host)
    vanished, _ = boot(cloud, host)
    stranded = strand_release(cloud, host)
    restore(cloud, server)
    cloud.nova.disown(vanished)
    cloud.placement.free(vanished)
    cloud.cases.execute(sa.update(Event).values(at_ms=1))
    fixes = {one.kind: one.fix for one in cloud.auditor().look().findings}
    assert fixes[Kind.VANISHED_INSTANCE] is fixes[Kind.STRANDED_RELEASE] is None
    assert cloud.fix() == []
    assert stranded in {row.uuid for row in handles(cloud, host, "quarantined")}


@pytest.mark.parametrize(
    ("status", "task", "here"),
    [
        ("BUILD", "spawning", True),
        ("ACTIVE", "deleting", True),
        # Evacuated: Nova keeps the allocation of the host that failed until that host is back.
        ("ACTIVE", None, False),
    ],
)
def test_server_on_its_way_is_no_unknown_holder(
    cloud: SmallCloud, status: str, task: str | None, here: bool
) -> None:
    host, instance = cloud.host(), str(uuid4())
    guest = cloud.nova.own(instance, "project", node=host if here else "elsewhere")
    guest.lasts = 100
    guest.begin()
    guest.status, guest.task = status, task
    cloud.allocate(host, instance)
    assert cloud.found() == set()


def test_binds_wait_until_the_audit_after_a_restore_has_looked(cloud: SmallCloud, run: Run) -> None:
    host, other = cloud.host(), cloud.host()
    server, _ = boot(cloud, host)
    restore(cloud, server)
    away = {"endpoint": "http://127.0.0.1:9/v2.1"}
    status, _, err = run("--after-restore", nova=away)
    assert status == 3
    assert "Binds are held" in err
    for one in (host, other):
        assert (Kind.UNCHECKED_HOST, one) in cloud.found()
        with pytest.raises(exception.DeviceUnavailable, match="unchecked"):
            cloud.bind(one)
    status, out, _ = run("--after-restore", "--format", "json")
    assert status == 0
    assert cloud.found() & {(Kind.UNCHECKED_HOST, host), (Kind.UNCHECKED_HOST, other)} == set()
    assert {one["kind"]: one["outcome"] for one in document(out)}["unknown-holder"] == "repaired"
    cloud.bind(other)
    with pytest.raises(exception.NoFreeHandle):
        cloud.bind(host)
    assert json.loads(out)["unasked"] == []


def test_agent_releases_nothing_on_a_host_that_is_not_checked(cloud: SmallCloud) -> None:
    host = cloud.host(prepare=True)
    assert uses(cloud, host) == {Use.FREE}
    hold_units(cloud.cases.db, host)
    assert uses(cloud, host) == {Use.IN_TRANSITION}
    allow_units(cloud.cases.db, host, ())
    assert uses(cloud, host) == {Use.FREE}


def uses(cloud: SmallCloud, host: str) -> set[Use]:
    """What the units of a host are used for, as its agent is told at its start."""
    units = cloud.cases.ask(FetchUnitUses(host, cloud.cases.epochs[host])).units
    return {unit.use for unit in units}


def test_audit_after_a_restore_of_one_host_holds_binds_of_that_host_only(
    cloud: SmallCloud, run: Run
) -> None:
    host, other = cloud.host(), cloud.host()
    status, _, _ = run("--after-restore", "--host", host, nova={"endpoint": "http://127.0.0.1:9"})
    assert status == 3
    cloud.bind(other)
    with pytest.raises(exception.DeviceUnavailable):
        cloud.bind(host)
