# SPDX-License-Identifier: Apache-2.0
"""The conductors' own passes: one of them at a time, and never without everybody's word."""

import logging
from collections.abc import Callable
from functools import partial

import pytest
import sqlalchemy as sa
from keystoneauth1.adapter import Adapter

from cyborg import exception
from cyborg.conductor.audit.repairs import AuditMemory, audit
from cyborg.conductor.leases import ConductorLease, oldest_only
from cyborg.db.models import Service
from cyborg.db.services import Process
from cyborg.model.audit_findings import Kind
from cyborg.model.process import CONDUCTOR
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.functional.audit.cloud import SmallCloud
from cyborg.tests.functional.audit.test_damages import add_orphan, strand_release


def reconciler(
    cloud: SmallCloud, *, lease: ConductorLease | None = None, nova: Adapter | None = None
) -> Callable[[], None]:
    """One pass of it changes at most one thing."""
    memory = AuditMemory()
    job = partial(audit, cloud.cases.db, memory, lambda: cloud.auditor(nova=nova), 1)
    return oldest_only(lease or cloud.cases.lease, 60_000, job, memory.forget)


def test_each_run_repairs_up_to_its_limit(cloud: SmallCloud) -> None:
    strand_release(cloud, cloud.host())
    strand_release(cloud, cloud.host())
    passes = reconciler(cloud)
    leaks = []
    for _ in range(3):
        leaks.append(len([kind for kind, _ in cloud.found() if kind is Kind.STRANDED_RELEASE]))
        passes()
    assert leaks == [2, 1, 0]


def test_only_the_first_conductor_reconciles(cloud: SmallCloud) -> None:
    strand_release(cloud, cloud.host())
    second = ConductorLease(db=cloud.cases.db, process=Process("control", CONDUCTOR, "0", "", "2"))
    second.renew()
    idle = reconciler(cloud, lease=second)
    idle()
    assert cloud.found() != set()
    cloud.cases.execute(
        sa.update(Service)
        .where(Service.host == "control", Service.process == "1")
        .values(last_seen_ms=1)
    )
    idle()
    assert cloud.found() == set()


def test_conductor_without_lease_repairs_nothing(cloud: SmallCloud) -> None:
    strand_release(cloud, cloud.host())
    unborn = ConductorLease(db=cloud.cases.db, process=Process("control", CONDUCTOR, "0", "", "3"))
    reconciler(cloud, lease=unborn)()
    assert cloud.found() != set()


def test_nothing_is_repaired_while_nova_is_unavailable(cloud: SmallCloud) -> None:
    strand_release(cloud, cloud.host())
    with SimulatedNova() as gone:
        passes = reconciler(cloud, nova=gone.adapter())
    with pytest.raises(exception.Unavailable, match="Nova"):
        passes()
    assert {kind for kind, _ in cloud.found()} == {Kind.STRANDED_RELEASE}


def test_finding_without_repair_is_logged_once(
    cloud: SmallCloud, caplog: pytest.LogCaptureFixture
) -> None:
    key = add_orphan(cloud, cloud.host())
    passes = reconciler(cloud)
    with caplog.at_level(logging.INFO, logger="cyborg.conductor"):
        passes()
        passes()
    said = [one.getMessage() for one in caplog.records if key in one.getMessage()]
    assert len(said) == 1
    assert f"openstack resource provider delete {key}" in said[0]
