# SPDX-License-Identifier: Apache-2.0
"""What an audit asks, what it does not believe, and when it keeps its hands off."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import requests
import sqlalchemy as sa
from keystoneauth1.adapter import Adapter

from cyborg.clients.nova import Servers
from cyborg.conductor.arqs import release
from cyborg.conductor.audit.repairs import repair
from cyborg.db import audit
from cyborg.db.engine import Database
from cyborg.db.models import Arq, AttachHandle, Service, UsageRecord
from cyborg.model.audit_findings import Ages, Finding, Fix, Kind
from cyborg.model.process import CONDUCTOR
from cyborg.rpc.verbs import DeleteInstanceArqs
from cyborg.tests.fixtures.cost_meter import CountedAdapter, Meter
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg.tests.fixtures.unrelated_rows import crowd
from cyborg.tests.fixtures.use_cases import NOVA
from cyborg.tests.functional.audit.cloud import AT_ONCE, SmallCloud, keys
from cyborg.tests.functional.audit.test_damages import (
    age_arq,
    delete_server,
    delete_traits,
    kill_conductors,
    leave_allocation,
    misname,
    strand_release,
)
from cyborg.tests.functional.life.steps import everything


def test_servers_are_unknown_when_nova_hides_them(cloud: SmallCloud) -> None:
    """To an account without rights, every other project's server would be a 404."""
    host = cloud.host()
    cloud.bind(host)
    cloud.nova.hide_servers()
    verdict = cloud.auditor().look()
    assert verdict.findings == ()
    assert verdict.unasked == ("Nova is not available: GET /servers was answered 403",)


def test_other_findings_are_reported_without_nova(cloud: SmallCloud) -> None:
    host = cloud.host()
    key = strand_release(cloud, host)
    deleted = delete_server(cloud, host)
    with SimulatedNova() as gone:
        auditor = cloud.auditor(nova=gone.adapter())
    verdict = auditor.look()
    assert (Kind.STRANDED_RELEASE, key) in keys(verdict.findings)
    assert (Kind.VANISHED_INSTANCE, deleted) not in keys(verdict.findings)
    assert len(verdict.unasked) == 1


def test_conductor_that_has_just_stopped_is_not_missing(cloud: SmallCloud) -> None:
    """Its row is gone, but the last heartbeat that it stored of an agent is young."""
    host = cloud.host()
    kill_conductors(cloud, host)
    cloud.cases.execute(sa.delete(Service).where(Service.binary == CONDUCTOR))
    assert (Kind.NO_CONDUCTOR, "work") in cloud.found()
    cloud.cases.heartbeat(host)
    assert cloud.found() == set()


def test_other_findings_are_reported_without_placement(cloud: SmallCloud) -> None:
    host = cloud.host()
    key = delete_server(cloud, host)
    delete_traits(cloud, host)
    misnamed = misname(cloud, host)
    # Nobody answers like Placement there.
    verdict = cloud.auditor(placement=cloud.nova.adapter()).look()
    assert (Kind.VANISHED_INSTANCE, key) in keys(verdict.findings)
    assert (Kind.MISNAMED_PROVIDER, misnamed) in keys(verdict.findings)
    assert not {Kind.DRIFT, Kind.MISSING_PROVIDER} & {one.kind for one in verdict.findings}
    assert len(verdict.unasked) == 1


def test_servers_are_read_in_pages(cloud: SmallCloud) -> None:
    """What is soft-deleted stands in no list, but is there."""
    first, gone, hidden, *others = sorted(str(uuid4()) for _ in range(8))
    for server in (first, hidden, *others):
        cloud.nova.own(server, "somebody")
    cloud.nova.soft_deleted.add(hidden)
    meter = Meter()
    servers = Servers(CountedAdapter(cloud.nova.adapter(), meter))
    for asked, vanished, pages in (
        (sorted([first, gone, hidden, *others]), {gone}, 3),
        ([], set(), 1),
        ([gone], {gone}, None),
    ):
        with meter.tally() as tally:
            assert servers.vanished(asked) == vanished
        assert pages in (None, len([one for one in tally.http if "/servers?" in one]))


def test_servers_listed_out_of_order_are_not_missing(cloud: SmallCloud) -> None:
    """Nova lists servers that are not scheduled yet before all others."""
    uuids = sorted(str(uuid4()) for _ in range(6))
    for server in (uuids[4], *uuids[:4], uuids[5]):
        cloud.nova.own(server, "somebody")
    cloud.nova.unscheduled.append(uuids[4])
    meter = Meter()
    servers = Servers(CountedAdapter(cloud.nova.adapter(), meter))
    with meter.tally() as tally:
        assert servers.vanished(uuids) == frozenset()
    assert all("/servers?" in request for request in tally.http)


def test_repeated_audit_reads_no_unchanged_provider(cloud: SmallCloud) -> None:
    cloud.host()
    for _ in range(3):
        cloud.bind(cloud.host())
    meter = Meter()
    auditor = cloud.auditor(
        placement=CountedAdapter(cloud.placement.adapter(), meter),
        nova=CountedAdapter(cloud.nova.adapter(), meter),
    )
    with meter.tally() as first:
        auditor.look()
    with meter.tally() as second:
        auditor.look()
    asked = [one for one in second.http if "resource_providers" in one]
    assert len(first.http) == 4 * 2 + 4 * 3 + 2
    # The trees, and the allocations of those that have any.
    assert len(asked) == 4 + 3


def test_number_of_statements_grows_only_with_pages(cloud: SmallCloud, quiet_url: str) -> None:
    meter = Meter()
    db = Database(quiet_url)
    meter.watch(db.engine)
    costs = []
    for others in (1, 100, 400):
        crowd(cloud.cases.db, others)
        with meter.tally() as tally:
            for check in (*audit.CHECKS, *audit.WORK_CHECKS):
                assert list(audit.violations(db, check, Ages())) == []
            instances = list(audit.bound_instances(db))
            pages = list(audit.host_pages(db))
        costs.append(tally.sql)
    db.close()
    assert len(instances) == 501
    # Eight ARQs a host, fifty hosts a page.
    assert [len(page) for page in pages] == [50, 14]
    assert costs[0] == costs[1]
    assert costs[2] - costs[1] <= 6


def test_page_of_hosts_is_consistent_during_a_delete(cloud: SmallCloud, quiet_url: str) -> None:
    """A delete that commits while the tables are read shows in all of them, or in none."""
    arq, instance = cloud.bind(cloud.host())
    db = Database(quiet_url)
    done: list[str] = []

    def meanwhile(*details: object) -> None:
        if "extended_accelerator_requests.hidden" in str(details[2]) and not done:
            done.append(arq)
            cloud.cases.execute(sa.delete(UsageRecord), sa.delete(Arq).where(Arq.uuid == arq))

    sa.event.listen(db.engine, "before_cursor_execute", meanwhile)
    pages = [next(audit.host_pages(db)) for _ in range(2)]
    db.close()
    (before,), (after,) = pages
    assert [part.claimable for part in before.deployables] == [3]
    assert list(before.bound.values()) == [{instance: 1}]
    assert [part.claimable for part in after.deployables] == [4]
    assert not after.bound


def test_age_of_an_allocation_is_kept_between_audits(cloud: SmallCloud) -> None:
    host = cloud.host()
    consumer = leave_allocation(cloud, host)
    auditor = cloud.auditor(replace(AT_ONCE, allocation=-1))
    assert keys(auditor.look().findings) == {(Kind.UNDATED_ALLOCATION, consumer)}
    assert keys(auditor.look().findings) == {(Kind.STALE_ALLOCATION, consumer)}
    patient = cloud.auditor()
    patient.look()
    assert patient.look().findings == ()
    cloud.placement.free(consumer)
    assert auditor.look().findings == ()


def test_repairs_stop_at_the_limit(cloud: SmallCloud) -> None:
    host, other = cloud.host(), cloud.host()
    cloud.cases.execute(sa.update(AttachHandle).values(state="releasing"))
    delete_traits(cloud, other)
    findings = cloud.auditor().look().findings
    fixable = [one for one in findings if one.fix]
    answers = repair(cloud.cases.db, findings, limit=3)
    assert [one.finding for one in answers] == fixable
    done = [one.finding for one in answers if not one.reason]
    assert len(done) == 3
    assert {one.reason for one in answers} == {"", "the limit of one pass is reached"}
    # Which come first depends on the names of the hosts: a provider may be among them.
    leaks = [one for one in done if one.kind is Kind.STRANDED_RELEASE]
    assert leaks
    left = cloud.auditor().look().findings
    assert len([one for one in left if one.kind is Kind.STRANDED_RELEASE]) == 8 - len(leaks)
    assert repair(cloud.cases.db, left, limit=0) != []
    assert cloud.auditor().look().findings == left
    assert host in {one.host for one in left}


def test_host_is_changed_once_for_several_providers(cloud: SmallCloud) -> None:
    host = cloud.host()
    findings = [Finding(Kind.DRIFT, "provider", str(uuid4()), "…", host) for _ in range(5)]
    before = cloud.cases.generation(host)
    answers = repair(cloud.cases.db, findings, limit=1)
    assert [one.reason for one in answers] == [""] * 5
    assert cloud.cases.generation(host) == before + 1


def test_repair_leaves_a_handle_that_was_released_meanwhile(cloud: SmallCloud) -> None:
    """Between the look and the repair somebody boots, deletes, or repairs as well."""
    host = cloud.host(units=1)
    strand_release(cloud, host)
    aged = age_arq(cloud, host)
    stale = cloud.auditor().look().findings
    cloud.cases.execute(sa.update(AttachHandle).values(state="ready"))
    cloud.bind(host, aged)
    assert {one.fix for one in stale} == {Fix.RELEASE_HANDLE, Fix.DELETE_ARQ}
    answers = repair(cloud.cases.db, stale, limit=10)
    reasons = {one.finding.fix: one.reason for one in answers}
    assert reasons[Fix.RELEASE_HANDLE] == "it has changed meanwhile"
    assert "bound to an instance" in reasons[Fix.DELETE_ARQ]
    assert cloud.found() == set()


def test_repair_of_a_wrong_finding_changes_nothing(cloud: SmallCloud) -> None:
    """Each repair looks again: at a cloud that is whole it has nothing to do."""
    host = cloud.host()
    arq, _ = cloud.bind(host)
    with cloud.cases.db.reader() as tx:
        query = sa.select(AttachHandle.uuid).where(UNIT == "held")
        handle = tx.execute(query).scalar_one()
    about = {
        Fix.RELEASE_HANDLE: handle,
        Fix.DROP_HANDLE: arq,
        Fix.FAIL_BIND: arq,
        Fix.DELETE_ARQ: arq,
        Fix.REPUBLISH: "",
        Fix.SET_ASIDE: "",
    }
    before = everything(cloud.cases.db)
    for kind in Kind:
        finding = Finding(kind, "", "", "…", host="nowhere")
        if finding.fix is not None and kind is not Kind.VANISHED_INSTANCE:
            (answer,) = repair(cloud.cases.db, [replace(finding, key=about[finding.fix])], limit=1)
            assert answer.reason, kind
    assert everything(cloud.cases.db) == before


def test_repair_leaves_a_bind_in_preparation(cloud: SmallCloud) -> None:
    arq, _ = cloud.bind(cloud.host(prepare=True))
    before = everything(cloud.cases.db)
    (answer,) = repair(cloud.cases.db, [Finding(Kind.FORGOTTEN_BIND, "arq", arq, "…")], limit=1)
    assert answer.reason == "it has changed meanwhile"
    assert everything(cloud.cases.db) == before


class Meanwhile(Adapter):
    """An adapter before whose first request something else happens."""

    def __init__(self, adapter: Adapter, happens: Callable[[], object]) -> None:
        super().__init__(adapter.session, service_type=adapter.service_type)
        self._happens = [happens]

    def request(self, url: str, method: str, **arguments: Any) -> requests.Response:
        """Send it, after that."""
        while self._happens:
            self._happens.pop()()
        return super().request(url, method, **arguments)


def test_delete_during_the_audit_is_no_finding(cloud: SmallCloud) -> None:
    host = cloud.host()
    _, instance = cloud.bind(host)

    def delete() -> None:
        release.delete_of_instance(cloud.cases.db, DeleteInstanceArqs(NOVA, str(uuid4()), instance))
        cloud.placement.free(instance)
        cloud.nova.disown(instance)

    auditor = cloud.auditor(placement=Meanwhile(cloud.placement.adapter(), delete))
    assert auditor.look().findings == ()
    with cloud.cases.db.reader() as tx:
        assert tx.execute(sa.select(Arq.uuid)).all() == []
