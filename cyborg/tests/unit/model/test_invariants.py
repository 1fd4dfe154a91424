# SPDX-License-Identifier: Apache-2.0
"""The checker finds nothing where all holds, and every single damage by its name."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import cyborg
from cyborg.model.arq import State
from cyborg.model.audit_findings import RULES, Ages, Finding, Fix, Kind, Severity
from cyborg.tests.fixtures.properties import given, st
from cyborg.tests.oracle.rows import AuditViews, Snapshot
from cyborg.tests.oracle.rules import check, confirmed
from cyborg.tests.unit.model.clouds import (
    HOUR,
    RESOURCE_CLASS,
    Card,
    Unit,
    Whole,
    build,
    reshow,
)
from cyborg.tests.unit.model.damages import DAMAGES

AGES = Ages()
EVERYTHING = build(
    [
        [Card(tuple(Unit)), Card((Unit.FREE, Unit.BOUND), status="maintaining")],
        [Card((Unit.BOUND, Unit.FREE), lost_age=HOUR), Card((Unit.BOUND,), prepare=False)],
    ]
)
#: One host with one card, for tests that count.
SMALL = build([[Card((Unit.BOUND, Unit.SCHEDULED, Unit.FREE))]])

cards = st.builds(
    Card,
    units=st.lists(st.sampled_from(Unit), min_size=1, max_size=5).map(tuple),
    status=st.sampled_from(["enabled", "enabled", "maintaining", "inactive"]),
    lost_age=st.sampled_from([None, None, HOUR]),
    prepare=st.booleans(),
)
clouds = st.lists(st.lists(cards, max_size=3), min_size=1, max_size=3).map(build)


def found(whole: Whole, ages: Ages = AGES) -> list[Finding]:
    return check(whole.cloud, whole.peers, ages)


def named(whole: Whole) -> set[tuple[Kind, str]]:
    return {(one.kind, one.key) for one in found(whole)}


@given(clouds)
def test_consistent_cloud_has_no_findings(whole: Whole) -> None:
    assert found(whole) == []


def test_each_kind_has_a_rule_and_a_damage() -> None:
    assert set(RULES) == set(Kind) == set(DAMAGES)


def test_number_of_kinds_is_known() -> None:
    """A new kind needs a reason why no constraint can make the wrong state impossible."""
    assert len(Kind) == 38


@pytest.mark.parametrize(
    ("arq", "state", "work", "kind"),
    [
        (None, "ready", False, None),
        (None, "releasing", True, None),
        (None, "releasing", False, Kind.STRANDED_RELEASE),
        (None, "quarantined", True, Kind.QUARANTINED_HANDLE),
        (None, "quarantined", False, Kind.STRANDED_RELEASE),
        (State.BOUND, "ready", False, None),
        (State.BOUND, "releasing", True, Kind.UNSAFE_HANDLE),
        (State.BOUND, "releasing", False, Kind.UNSAFE_HANDLE),
        (State.BOUND, "quarantined", False, Kind.UNSAFE_HANDLE),
        (State.BIND_STARTED, "ready", False, None),
        (State.BIND_STARTED, "releasing", True, None),
        (State.BIND_STARTED, "releasing", False, Kind.STRANDED_RELEASE),
        (State.BIND_STARTED, "quarantined", True, Kind.QUARANTINED_HANDLE),
        (State.BIND_STARTED, "quarantined", False, Kind.STRANDED_RELEASE),
        (State.BIND_FAILED, "ready", False, Kind.NEEDLESS_HOLD),
        (State.UNBOUND, "ready", False, Kind.NEEDLESS_HOLD),
        (State.INITIAL, "ready", False, Kind.NEEDLESS_HOLD),
        (State.UNBIND_FAILED, "ready", False, Kind.OBSOLETE_STATE),
        (State.DELETING, "ready", False, Kind.OBSOLETE_STATE),
    ],
)
def test_every_handle_and_arq_pair_has_the_listed_finding(
    arq: State | None, state: str, work: bool, kind: Kind | None
) -> None:
    unit = {None: Unit.FREE, State.BIND_STARTED: Unit.STARTED}.get(arq, Unit.BOUND)
    cloud = build([[Card((unit,))]]).cloud
    (handle,) = cloud.handles
    cloud = replace(cloud, handles=(replace(handle, state=state),))
    if arq is not None:
        holder = next(one for one in cloud.arqs if one.handle_id is not None)
        rest = [one for one in cloud.arqs if one is not holder]
        cloud = replace(cloud, arqs=(*rest, replace(holder, state=arq)))
    if work:
        release = build([[Card((Unit.CLEANED,))]]).cloud.work[0]
        cloud = replace(cloud, work=(*cloud.work, replace(release, handle_id=handle.id)))
    kinds = [one.kind for one in check(cloud, AuditViews(), AGES)]
    assert kinds == ([] if kind is None else [kind])


@pytest.mark.parametrize(
    ("total", "reserved", "wrong"), [(3, 0, False), (3, 1, False), (4, 0, True), (4, 1, False)]
)
def test_offered_units_need_handles(total: int, reserved: int, wrong: bool) -> None:
    """One bound, one on its way, one free: Placement may offer one."""
    (deployable,) = SMALL.cloud.deployables
    provider = deployable.rp_uuid or ""
    shown = SMALL.peers.placement["host-1"].providers[provider]
    inventory = {**shown.inventories[RESOURCE_CLASS], "total": total, "reserved": reserved}
    whole = reshow(
        SMALL, "host-1", provider, replace(shown, inventories={RESOURCE_CLASS: inventory})
    )
    assert ((Kind.EXCESS_INVENTORY, provider) in named(whole)) is wrong


def test_units_of_a_dead_agent_may_be_reserved_but_not_offered() -> None:
    whole, _ = DAMAGES[Kind.SILENT_AGENT](SMALL, 0) or pytest.fail("a host can die")
    (deployable,) = whole.cloud.deployables
    provider = deployable.rp_uuid or ""
    shown = whole.peers.placement["host-1"].providers[provider]
    for total, reserved, kinds in ((3, 3, set()), (3, 4, {Kind.DRIFT}), (2, 2, {Kind.DRIFT})):
        inventory = {**shown.inventories[RESOURCE_CLASS], "total": total, "reserved": reserved}
        changed = replace(shown, inventories={RESOURCE_CLASS: inventory})
        findings = found(reshow(whole, "host-1", provider, changed))
        assert {one.kind for one in findings} - {Kind.SILENT_AGENT} == kinds
        assert [one for one in findings if one.fix is Fix.REPUBLISH] == []


def test_unreachable_peers_give_no_findings() -> None:
    whole, _ = DAMAGES[Kind.MISSING_PROVIDER](EVERYTHING, 0) or pytest.fail("nothing to break")
    assert check(whole.cloud, AuditViews(), AGES) == []
    assert check(Snapshot(), AuditViews(), AGES) == []


def test_old_allocations_without_server_are_found() -> None:
    for age, kinds in (
        (AGES.allocation - 1, []),
        (AGES.allocation + 1, [Kind.STALE_ALLOCATION]),
        (None, [Kind.UNDATED_ALLOCATION]),
    ):
        whole, consumer = DAMAGES[Kind.UNDATED_ALLOCATION](SMALL, 0) or pytest.fail("none")
        ages = {} if age is None else {consumer: age}
        peers = replace(whole.peers, consumer_ages=ages)
        assert [one.kind for one in check(whole.cloud, peers, AGES)] == kinds
        assert check(whole.cloud, replace(peers, vanished=frozenset()), AGES) == []


def test_server_bound_recently_is_not_missing() -> None:
    whole, _ = DAMAGES[Kind.VANISHED_INSTANCE](SMALL, 0) or pytest.fail("nothing bound")
    young = [replace(one, age=1000) for one in whole.cloud.arqs]
    assert check(replace(whole.cloud, arqs=tuple(young)), whole.peers, AGES) == []


def test_findings_are_sorted_by_severity() -> None:
    whole, _ = DAMAGES[Kind.SILENT_AGENT](EVERYTHING, 0) or pytest.fail("none")
    whole, _ = DAMAGES[Kind.STRANDED_RELEASE](whole, 0) or pytest.fail("none")
    severities = [one.severity for one in found(whole)]
    assert severities[0] is Severity.ERROR
    assert severities == sorted(severities, reverse=True)


def test_audit_page_explains_every_kind() -> None:
    text = (Path(cyborg.__file__).parent.parent / "doc/source/admin/audit.rst").read_text()
    explained = dict(re.findall(r"\* - ``([\w-]+)``\n     - ([\w-]+\n     - \w+)\n", text))
    assert explained == {
        kind.value: f"{rule.invariant}\n     - {rule.severity.name.lower()}"
        for kind, rule in RULES.items()
    }


@pytest.mark.parametrize("kind", Kind)
def test_damage_has_one_finding_in_complete_sentences(kind: Kind) -> None:
    """One fault must not bury itself under its consequences."""
    damaged = DAMAGES[kind](EVERYTHING, 0)
    assert damaged is not None, "the whole cloud must have something to break"
    findings = found(damaged[0])
    assert (kind, damaged[1]) in {(one.kind, one.key) for one in findings}
    for one in findings:
        assert "{" not in one.remedy
        assert one.remedy[-1] in ".…"
        assert one.cause
    consequences = {
        # What is missing here is missing there as well.
        Kind.EMPTY_BIND: {Kind.LEFTOVER},
        Kind.MISNAMED_PROVIDER: {
            Kind.MISSING_PROVIDER,
            Kind.ORPHAN_PROVIDER,
            Kind.WRONG_PROVIDER,
        },
        Kind.UNSAFE_HANDLE: {Kind.DRIFT},
        Kind.SUSPECT_HANDLE: {Kind.DRIFT},
        Kind.UNCHECKED_HOST: {Kind.DRIFT, Kind.EXCESS_INVENTORY},
        Kind.QUARANTINED_HANDLE: {Kind.DRIFT, Kind.EXCESS_INVENTORY},
    }
    if kind not in (Kind.NO_COMPUTE, Kind.ORPHAN_PROVIDER):
        assert {one.kind for one in findings} - {kind} <= consequences.get(kind, set())


@given(clouds, st.sampled_from(Kind), st.integers(0, 1000))
def test_damage_of_any_cloud_is_found_on_its_host_only(
    whole: Whole, kind: Kind, choice: int
) -> None:
    damaged = DAMAGES[kind](whole, choice)
    if damaged is None:
        return
    findings = found(damaged[0])
    hosts = {one.host for one in findings if (one.kind, one.key) == (kind, damaged[1])}
    assert len(hosts) == 1
    if kind is not Kind.NO_CONDUCTOR:
        assert {one.host for one in findings} <= {*hosts, None}


def test_finding_is_confirmed_when_seen_twice() -> None:
    first, second = (Finding(Kind.DRIFT, "provider", key, "…") for key in ("a", "b"))
    again = replace(second, cause="otherwise")
    assert confirmed([first, second], [again]) == [again]
