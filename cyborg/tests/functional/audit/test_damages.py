# SPDX-License-Identifier: Apache-2.0
"""A database and a Placement damaged by hand: found, named, repaired where that is safe."""

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db.models import (
    Arq,
    AttachHandle,
    Deployable,
    Device,
    Driver,
    Event,
    Host,
    Instance,
    Service,
    Work,
)
from cyborg.model.audit_findings import RULES, Ages, Kind
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of
from cyborg.tests.fixtures.unit_states import HANDLE_ID, UNIT
from cyborg.tests.functional.audit.cloud import AT_ONCE, SmallCloud

LONG_AGO = datetime(2020, 1, 1)
#: An ARQ without a bind belongs to no host, nor do the conductors.
OF_NO_HOST = {Kind.AGED_ARQ, Kind.NO_CONDUCTOR}
Damage = Callable[[SmallCloud, str], str]


def handles(cloud: SmallCloud, host: str, state: str) -> list[Any]:
    """The units of a host that are free, held, or in another state."""
    query = (
        sa.select(AttachHandle.id, AttachHandle.uuid)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .where(UNIT.in_([state]), Device.hostname == host)
    )
    with cloud.cases.db.reader() as tx:
        return list(tx.execute(query.order_by(AttachHandle.id)))


def seize(state: str, new: str, *, bound: bool = False) -> Damage:
    """Give a new state to a handle, that of a bind if ``bound``."""

    def damage(cloud: SmallCloud, host: str) -> str:
        if bound:
            cloud.bind(host)
        handle = handles(cloud, host, state)[0]
        change = sa.update(AttachHandle).where(AttachHandle.id == handle.id)
        cloud.cases.execute(change.values(state=new))
        return str(handle.uuid)

    return damage


def of_bind(change: Callable[[str, str], sa.Executable], *, instance: bool = False) -> Damage:
    """Change what belongs to a bind, of which the ARQ is told, or the ``instance``."""

    def damage(cloud: SmallCloud, host: str) -> str:
        bound = cloud.bind(host)
        cloud.cases.execute(change(*bound))
        return bound[instance]

    return damage


def of_arq(**values: Any) -> Damage:
    """Change columns of an ARQ that is bound."""
    return of_bind(lambda arq, _: sa.update(Arq).where(Arq.uuid == arq).values(**values))


def of_work(**values: Any) -> Damage:
    """Change columns of the work of a bind."""
    return of_bind(lambda arq, _: sa.update(Work).where(Work.arq_uuid == arq).values(**values))


strand_release = seize("free", "releasing")
delete_prepare_work = of_bind(lambda arq, _: sa.delete(Work).where(Work.arq_uuid == arq))


def hold_while_initial(cloud: SmallCloud, host: str) -> str:
    arq, handle = cloud.request(), handles(cloud, host, "free")[0]
    arq_id = sa.select(Arq.id).where(Arq.uuid == arq).scalar_subquery()
    which = sa.update(AttachHandle).where(AttachHandle.id == handle.id)
    cloud.cases.execute(which.values(arq_id=arq_id))
    return arq


def take_handle(cloud: SmallCloud, host: str) -> str:
    arq, _ = cloud.bind(host)
    cloud.cases.execute(sa.update(AttachHandle).values(arq_id=None))
    return arq


def delete_server(cloud: SmallCloud, host: str) -> str:
    _, instance = cloud.bind(host)
    cloud.nova.disown(instance)
    cloud.placement.free(instance)
    return instance


def age_arq(cloud: SmallCloud, host: str) -> str:
    arq = cloud.request()
    cloud.cases.execute(sa.update(Event).where(Event.subject_uuid == arq).values(at_ms=1))
    return arq


def age_former_arq(cloud: SmallCloud, host: str) -> str:
    """One that the existing service left behind: it has no history, only dates."""
    arq = cloud.request()
    cloud.cases.execute(
        sa.delete(Event).where(Event.subject_uuid == arq),
        sa.update(Arq).where(Arq.uuid == arq).values(created_at=LONG_AGO, updated_at=None),
    )
    return arq


def kill_conductors(cloud: SmallCloud, host: str) -> str:
    cloud.bind(host)
    cloud.cases.execute(
        # Conductors store the heartbeats of agents as well.
        sa.update(Service).values(last_seen_ms=1),
        sa.update(Work).values(not_before_ms=1),
    )
    return "work"


def kill_agent(cloud: SmallCloud, host: str) -> str:
    cloud.cases.execute(sa.update(Service).where(Service.host == host).values(last_seen_ms=1))
    return host


def deafen_agent(cloud: SmallCloud, host: str) -> str:
    error = {"bus_error": "403 ACCESS_REFUSED", "bus_error_ms": 1}
    cloud.cases.execute(sa.update(Service).where(Service.host == host).values(**error))
    return f"cyborg-agent@{host}"


def refuse_agent(cloud: SmallCloud, host: str) -> str:
    error = {"publish_error": "Placement is not available: answered 403", "publish_error_ms": 1}
    cloud.cases.execute(sa.update(Service).where(Service.host == host).values(**error))
    return f"cyborg-agent@{host}"


def break_driver(cloud: SmallCloud, host: str) -> str:
    row = {"uuid": str(uuid4()), "name": "other", "state": "FAILED", "error": "no library"}
    host_id = sa.select(Host.id).where(Host.name == host).scalar_subquery()
    cloud.cases.execute(sa.insert(Driver).values(host_id=host_id, **row))
    return f"{host}/other"


def hold_units(cloud: SmallCloud, host: str) -> str:
    cloud.cases.execute(sa.update(Host).where(Host.name == host).values(unchecked=True))
    return host


def lose_device(cloud: SmallCloud, host: str) -> str:
    cloud.cases.execute(sa.update(Device).values(lost_ms=1))
    cloud.publish(host)
    with cloud.cases.db.reader() as tx:
        return str(tx.execute(sa.select(Device.uuid)).scalar_one())


def forget_release(cloud: SmallCloud, host: str, state: str = "releasing") -> str:
    uuid = seize("free", state)(cloud, host)
    handle = sa.select(AttachHandle.id).where(AttachHandle.uuid == uuid).scalar_subquery()
    work = {"kind": "release", "attempts": 7, "error": "agent is not available"}
    row = {"uuid": str(uuid4()), "not_before_ms": 1, "created_ms": 1, **work}
    cloud.cases.execute(sa.insert(Work).values(attach_handle_id=handle, **row))
    return uuid


def refuse(cloud: SmallCloud, host: str) -> str:
    cloud.cases.execute(
        sa.update(Deployable).values(publish_error="claimed in Placement by another")
    )
    return provider_of(host, 0)


def misname(cloud: SmallCloud, host: str) -> str:
    wrong = str(uuid4())
    cloud.cases.execute(sa.update(Deployable).values(rp_uuid=wrong))
    return wrong


def inventory(**values: int) -> Damage:
    """Change some fields of a provider's inventory by hand."""

    def damage(cloud: SmallCloud, host: str) -> str:
        path = f"/resource_providers/{provider_of(host, 0)}/inventories"
        found = cloud.placement.call("GET", path)
        found["inventories"][RESOURCE_CLASS] |= values
        cloud.placement.call("PUT", path, found)
        return provider_of(host, 0)

    return damage


def delete_provider(cloud: SmallCloud, host: str, what: str = "") -> str:
    cloud.placement.call("DELETE", f"/resource_providers/{provider_of(host, 0)}{what}")
    return provider_of(host, 0)


def delete_traits(cloud: SmallCloud, host: str) -> str:
    return delete_provider(cloud, host, "/traits")


def move_provider(cloud: SmallCloud, host: str) -> str:
    delete_provider(cloud, host)
    other = cloud.placement.make_compute(f"other-{host}")
    body = {
        "name": f"{host}_0",
        "uuid": provider_of(host, 0),
        "parent_provider_uuid": other,
    }
    cloud.placement.call("POST", "/resource_providers", body)
    return provider_of(host, 0)


def add_orphan(cloud: SmallCloud, host: str) -> str:
    root = cloud.placement.make_compute(host)
    name = f"{host}_forgotten"
    body = {"name": name, "uuid": provider_uuid(name), "parent_provider_uuid": root}
    cloud.placement.call("POST", "/resource_providers", body)
    return provider_uuid(name)


def delete_compute(cloud: SmallCloud, host: str) -> str:
    delete_provider(cloud, host)
    root = cloud.placement.make_compute(host)
    cloud.placement.call("DELETE", f"/resource_providers/{root}")
    return host


def delete_allocation(cloud: SmallCloud, host: str) -> str:
    _, instance = cloud.bind(host)
    cloud.placement.free(instance)
    return instance


def leave_allocation(cloud: SmallCloud, host: str) -> str:
    consumer = str(uuid4())
    cloud.allocate(host, consumer)
    return consumer


def leave_old_allocation(cloud: SmallCloud, host: str) -> str:
    consumer = leave_allocation(cloud, host)
    row = {"uuid": consumer, "updated_ms": 1}
    cloud.cases.execute(sa.insert(Instance).values(**row))
    return consumer


BY_HAND: dict[str, tuple[Kind, Damage]] = {
    "strand_release": (Kind.STRANDED_RELEASE, strand_release),
    "strand_quarantine": (Kind.STRANDED_RELEASE, seize("free", "quarantined")),
    "release_under_guest": (Kind.UNSAFE_HANDLE, seize("held", "releasing", bound=True)),
    "quarantine_under_guest": (Kind.UNSAFE_HANDLE, seize("held", "quarantined", bound=True)),
    "hold_while_initial": (Kind.NEEDLESS_HOLD, hold_while_initial),
    "take_handle": (Kind.EMPTY_BIND, take_handle),
    "swap_provider": (Kind.WRONG_PROVIDER, of_arq(device_rp_uuid=str(uuid4()))),
    "delete_server": (Kind.VANISHED_INSTANCE, delete_server),
    "raise_total": (Kind.EXCESS_INVENTORY, inventory(total=9)),
    "delete_allocation": (Kind.UNALLOCATED, delete_allocation),
    "add_orphan": (Kind.ORPHAN_PROVIDER, add_orphan),
    "age_arq": (Kind.AGED_ARQ, age_arq),
    "age_former_arq": (Kind.AGED_ARQ, age_former_arq),
    "former_state": (Kind.OBSOLETE_STATE, of_arq(state="UnbindFailed")),
    "kill_conductors": (Kind.NO_CONDUCTOR, kill_conductors),
    "silence_nova": (Kind.NOVA_NOT_NOTIFIED, of_work(created_ms=1, error="no answer")),
    "delete_compute": (Kind.NO_COMPUTE, delete_compute),
    "delete_provider": (Kind.MISSING_PROVIDER, delete_provider),
    "move_provider": (Kind.MISPLACED_PROVIDER, move_provider),
    "misname": (Kind.MISNAMED_PROVIDER, misname),
    "refuse": (Kind.REFUSED_PROVIDER, refuse),
    "raise_reserved": (Kind.DRIFT, inventory(reserved=1)),
    "delete_traits": (Kind.DRIFT, delete_traits),
    "leave_old_allocation": (Kind.STALE_ALLOCATION, leave_old_allocation),
    "leave_allocation": (Kind.UNDATED_ALLOCATION, leave_allocation),
    "kill_agent": (Kind.SILENT_AGENT, kill_agent),
    "deafen_agent": (Kind.NOT_RECEIVING, deafen_agent),
    "refuse_agent": (Kind.CANNOT_PUBLISH, refuse_agent),
    "hold_units": (Kind.UNCHECKED_HOST, hold_units),
    "forget_release": (Kind.STUCK_WORK, forget_release),
    "break_driver": (Kind.FAILED_DRIVER, break_driver),
    "lose_device": (Kind.LOST_DEVICE, lose_device),
    "refuse_release": (
        Kind.QUARANTINED_HANDLE,
        lambda cloud, host: forget_release(cloud, host, "quarantined"),
    ),
}
#: The same where a bind needs its host's work.
PREPARED: dict[str, tuple[Kind, Damage]] = {
    one: BY_HAND[one] for one in ("strand_release", "delete_server")
} | {
    "delete_prepare_work": (Kind.FORGOTTEN_BIND, delete_prepare_work),
    "miss_deadline": (Kind.OVERDUE_BIND, of_work(deadline_ms=1)),
}
CASES = [
    pytest.param(prepare, *case, id=f"{name}-prepared" if prepare else name)
    for prepare, cases in ((False, BY_HAND), (True, PREPARED))
    for name, case in cases.items()
]


@pytest.mark.parametrize(("prepare", "kind", "damage"), CASES)
def test_finding_is_repaired(cloud: SmallCloud, prepare: bool, kind: Kind, damage: Damage) -> None:
    """Damage, look, repair what may be repaired, look again; also on a host that prepares."""
    host = cloud.host(prepare=prepare)
    assert cloud.found() == set()
    key = damage(cloud, host)
    assert (kind, key) in cloud.found()
    assert ((kind, key) in cloud.found(host)) is (kind not in OF_NO_HOST)
    if RULES[kind].fix is None:
        return
    before = cloud.cases.generation(host)
    assert cloud.fix() == []
    if cloud.cases.generation(host) > before:
        cloud.publish(host)
    assert cloud.found() == set()


def test_every_kind_of_finding_in_the_database_is_tested() -> None:
    tried = {kind for kind, _ in [*BY_HAND.values(), *PREPARED.values()]}
    # What hosts have prepared is only known to who asks them, servers without a request and
    # guests without their units are in tests of their own, and news are not damage.
    assert set(Kind) - tried == {
        Kind.UNKNOWN_HOLDER,
        Kind.FOREIGN_ALLOCATION,
        Kind.SUSPECT_HANDLE,
        Kind.UNPREPARED,
        Kind.LEFTOVER,
        Kind.PUBLISHING,
        Kind.UNATTACHED_BIND,
    }


def test_cloud_in_use_has_no_findings(cloud: SmallCloud) -> None:
    plain, prepared = cloud.host(), cloud.host(prepare=True)
    for host in (plain, plain, prepared):
        cloud.bind(host)
    cloud.request()
    on_its_way = str(uuid4())
    cloud.allocate(plain, on_its_way)
    cloud.nova.own(on_its_way, "project")
    assert cloud.found() == set()
    assert cloud.found(plain) == set()


def test_recent_change_is_reported_as_publishing(cloud: SmallCloud) -> None:
    host = cloud.host()
    cloud.cases.execute(sa.update(Device).values(status="maintaining"))
    assert cloud.found(ages=Ages()) == {(Kind.PUBLISHING, provider_of(host, 0))}
    assert cloud.found() == {(Kind.EXCESS_INVENTORY, provider_of(host, 0))}
    cloud.publish(host)
    assert cloud.found() == set()


def test_findings_of_several_kinds_are_repaired_together(cloud: SmallCloud) -> None:
    host, prepared = cloud.host(units=8), cloud.host(prepare=True, units=8)
    wanted = set()
    for kind, damage in (
        (Kind.STRANDED_RELEASE, strand_release),
        (Kind.VANISHED_INSTANCE, delete_server),
        (Kind.AGED_ARQ, age_arq),
    ):
        wanted.add((kind, damage(cloud, host)))
    wanted.add((Kind.FORGOTTEN_BIND, delete_prepare_work(cloud, prepared)))
    wanted.add((Kind.DRIFT, delete_traits(cloud, prepared)))
    assert wanted <= cloud.found()
    assert cloud.fix() == []
    cloud.publish(prepared)
    assert cloud.found() == set()


def test_prepared_handle_without_work_is_released_by_its_host(cloud: SmallCloud) -> None:
    plain, prepared = cloud.host(units=1), cloud.host(prepare=True, units=1)
    cloud.cases.execute(sa.update(AttachHandle).values(state="releasing"))
    assert cloud.fix() == []
    with cloud.cases.db.reader() as tx:
        states = tx.execute(
            sa.select(Device.hostname, AttachHandle.state)
            .join(Deployable, Deployable.device_id == Device.id)
            .join(AttachHandle, AttachHandle.deployable_id == Deployable.id)
        ).all()
        kinds = list(tx.execute(sa.select(Work.kind)).scalars())
    assert {tuple(one) for one in states} == {(plain, "ready"), (prepared, "releasing")}
    assert kinds == ["release"]
    assert cloud.found(ages=AT_ONCE) == set()


def test_failed_event_is_sent_for_a_bind_without_work(cloud: SmallCloud) -> None:
    host = cloud.host(prepare=True)
    arq = delete_prepare_work(cloud, host)
    assert cloud.fix() == []
    with cloud.cases.db.reader() as tx:
        row = tx.execute(sa.select(Arq.state, Arq.fault, HANDLE_ID.label("handle_id"))).one()
        notes = list(tx.execute(sa.select(Work.arq_uuid).where(Work.kind == "notify")).scalars())
        history = tx.execute(
            sa.select(Event.action, Event.reason).where(Event.subject_uuid == arq)
        ).all()
    assert (row.state, row.handle_id) == ("BindFailed", None)
    assert "audit" in row.fault
    assert notes == [arq]
    assert ("BindFailed", row.fault) in {tuple(one) for one in history}


def test_arq_is_not_aged_by_a_wrong_creation_date(cloud: SmallCloud) -> None:
    """Dates are by the conductor that wrote them; what is fresh by the database's clock stays."""
    arq = cloud.request()
    cloud.cases.execute(sa.update(Arq).where(Arq.uuid == arq).values(created_at=LONG_AGO))
    assert (Kind.AGED_ARQ, arq) not in cloud.found()
