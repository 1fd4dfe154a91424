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
from cyborg.tests.functional.audit.cloud import AT_ONCE, SmallCloud

LONG_AGO = datetime(2020, 1, 1)
#: An ARQ without a bind belongs to no host, nor do the conductors.
OF_NO_HOST = {Kind.AGED_ARQ, Kind.NO_CONDUCTOR}
Damage = Callable[[SmallCloud, str], str]


def handles(cloud: SmallCloud, host: str, state: str) -> list[Any]:
    """The handles of a host that are in a state."""
    query = (
        sa.select(AttachHandle.id, AttachHandle.uuid)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .where(AttachHandle.state == state, Device.hostname == host)
    )
    with cloud.db.reader() as tx:
        return list(tx.execute(query.order_by(AttachHandle.id)))


def held_by(arq: str) -> sa.ScalarSelect[Any]:
    return sa.select(Arq.attach_handle_id).where(Arq.uuid == arq).scalar_subquery()


def set_handle(cloud: SmallCloud, handle_id: int, state: str) -> None:
    cloud.execute(sa.update(AttachHandle).where(AttachHandle.id == handle_id).values(state=state))


def leak_handle(cloud: SmallCloud, host: str) -> str:
    handle = handles(cloud, host, "free")[0]
    set_handle(cloud, handle.id, "held")
    return str(handle.uuid)


def strand_release(cloud: SmallCloud, host: str) -> str:
    handle = handles(cloud, host, "free")[0]
    set_handle(cloud, handle.id, "releasing")
    return str(handle.uuid)


def strand_quarantine(cloud: SmallCloud, host: str) -> str:
    handle = handles(cloud, host, "free")[0]
    set_handle(cloud, handle.id, "quarantined")
    return str(handle.uuid)


def free_under_guest(cloud: SmallCloud, host: str) -> str:
    cloud.bind(host)
    handle = handles(cloud, host, "held")[0]
    set_handle(cloud, handle.id, "free")
    return str(handle.uuid)


def quarantine_under_guest(cloud: SmallCloud, host: str) -> str:
    cloud.bind(host)
    handle = handles(cloud, host, "held")[0]
    set_handle(cloud, handle.id, "quarantined")
    return str(handle.uuid)


def hold_while_initial(cloud: SmallCloud, host: str) -> str:
    arq = cloud.request()
    handle = handles(cloud, host, "free")[0]
    set_handle(cloud, handle.id, "held")
    cloud.execute(sa.update(Arq).where(Arq.uuid == arq).values(attach_handle_id=handle.id))
    return arq


def take_handle(cloud: SmallCloud, host: str) -> str:
    arq, _ = cloud.bind(host)
    cloud.execute(sa.update(Arq).where(Arq.uuid == arq).values(attach_handle_id=None))
    return arq


def take_instance(cloud: SmallCloud, host: str) -> str:
    arq, _ = cloud.bind(host)
    cloud.execute(sa.update(Arq).where(Arq.uuid == arq).values(instance_uuid=None))
    return arq


def swap_provider(cloud: SmallCloud, host: str) -> str:
    arq, _ = cloud.bind(host)
    cloud.execute(sa.update(Arq).where(Arq.uuid == arq).values(device_rp_uuid=str(uuid4())))
    return arq


def delete_server(cloud: SmallCloud, host: str) -> str:
    _, instance = cloud.bind(host)
    cloud.nova.forget(instance)
    cloud.placement.free(instance)
    return instance


def delete_instance_row(cloud: SmallCloud, host: str) -> str:
    _, instance = cloud.bind(host)
    cloud.execute(sa.delete(Instance).where(Instance.uuid == instance))
    return instance


def open_instance_row(cloud: SmallCloud, host: str) -> str:
    _, instance = cloud.bind(host)
    cloud.execute(sa.update(Instance).where(Instance.uuid == instance).values(bound=False))
    return instance


def delete_arq(cloud: SmallCloud, host: str) -> str:
    arq, instance = cloud.bind(host)
    cloud.execute(
        sa.update(AttachHandle).where(AttachHandle.id == held_by(arq)).values(state="free"),
        sa.delete(Arq).where(Arq.uuid == arq),
    )
    return instance


def age_arq(cloud: SmallCloud, host: str) -> str:
    arq = cloud.request()
    cloud.execute(sa.update(Event).where(Event.subject_uuid == arq).values(at_ms=1))
    return arq


def age_former_arq(cloud: SmallCloud, host: str) -> str:
    """One that the existing service left behind: it has no history, only dates."""
    arq = cloud.request()
    cloud.execute(
        sa.delete(Event).where(Event.subject_uuid == arq),
        sa.update(Arq).where(Arq.uuid == arq).values(created_at=LONG_AGO, updated_at=None),
    )
    return arq


def former_state(cloud: SmallCloud, host: str) -> str:
    arq, _ = cloud.bind(host)
    cloud.execute(sa.update(Arq).where(Arq.uuid == arq).values(state="UnbindFailed"))
    return arq


def delete_prepare_work(cloud: SmallCloud, host: str) -> str:
    arq, _ = cloud.bind(host)
    cloud.execute(sa.delete(Work).where(Work.arq_uuid == arq))
    return arq


def miss_deadline(cloud: SmallCloud, host: str) -> str:
    arq, _ = cloud.bind(host)
    cloud.execute(sa.update(Work).where(Work.arq_uuid == arq).values(deadline_ms=1))
    return arq


def silence_nova(cloud: SmallCloud, host: str) -> str:
    arq, _ = cloud.bind(host)
    cloud.execute(
        sa.update(Work).where(Work.arq_uuid == arq).values(created_ms=1, error="no answer")
    )
    return arq


def kill_conductors(cloud: SmallCloud, host: str) -> str:
    cloud.bind(host)
    cloud.execute(
        sa.update(Service).where(Service.binary == "cyborg-conductor").values(last_seen_ms=1),
        sa.update(Work).values(not_before_ms=1),
    )
    return "work"


def kill_agent(cloud: SmallCloud, host: str) -> str:
    cloud.execute(sa.update(Service).where(Service.host == host).values(last_seen_ms=1))
    return host


def deafen_agent(cloud: SmallCloud, host: str) -> str:
    error = {"bus_error": "403 ACCESS_REFUSED", "bus_error_ms": 1}
    cloud.execute(sa.update(Service).where(Service.host == host).values(**error))
    return f"cyborg-agent@{host}"


def break_driver(cloud: SmallCloud, host: str) -> str:
    row = {"uuid": str(uuid4()), "name": "other", "state": "FAILED", "error": "no library"}
    host_id = sa.select(Host.id).where(Host.name == host).scalar_subquery()
    cloud.execute(sa.insert(Driver).values(host_id=host_id, **row))
    return f"{host}/other"


def lose_device(cloud: SmallCloud, host: str) -> str:
    cloud.execute(sa.update(Device).values(lost_ms=1))
    cloud.publish(host)
    with cloud.db.reader() as tx:
        return str(tx.execute(sa.select(Device.uuid)).scalar_one())


def forget_release(cloud: SmallCloud, host: str) -> str:
    uuid = strand_release(cloud, host)
    with cloud.db.writer() as tx:
        handle_id = tx.execute(
            sa.select(AttachHandle.id).where(AttachHandle.uuid == uuid)
        ).scalar_one()
        tx.execute(
            sa.insert(Work).values(
                uuid=str(uuid4()),
                kind="release",
                attach_handle_id=handle_id,
                not_before_ms=1,
                created_ms=1,
                attempts=7,
                error="agent is not available",
            )
        )
    return uuid


def refuse_release(cloud: SmallCloud, host: str) -> str:
    uuid = forget_release(cloud, host)
    set_handle(cloud, handles(cloud, host, "releasing")[0].id, "quarantined")
    return uuid


def refuse(cloud: SmallCloud, host: str) -> str:
    cloud.execute(sa.update(Deployable).values(publish_error="claimed in Placement by another"))
    return provider_of(host, 0)


def misname(cloud: SmallCloud, host: str) -> str:
    wrong = str(uuid4())
    cloud.execute(sa.update(Deployable).values(rp_uuid=wrong))
    return wrong


def inventory(cloud: SmallCloud, host: str, **values: int) -> None:
    """Change some fields of a provider's inventory by hand."""
    path = f"/resource_providers/{provider_of(host, 0)}/inventories"
    found = cloud.placement.call("GET", path)
    found["inventories"][RESOURCE_CLASS] |= values
    cloud.placement.call("PUT", path, found)


def raise_total(cloud: SmallCloud, host: str) -> str:
    inventory(cloud, host, total=9)
    return provider_of(host, 0)


def raise_reserved(cloud: SmallCloud, host: str) -> str:
    inventory(cloud, host, reserved=1)
    return provider_of(host, 0)


def delete_traits(cloud: SmallCloud, host: str) -> str:
    path = f"/resource_providers/{provider_of(host, 0)}/traits"
    cloud.placement.call("DELETE", path)
    return provider_of(host, 0)


def delete_provider(cloud: SmallCloud, host: str) -> str:
    cloud.placement.call("DELETE", f"/resource_providers/{provider_of(host, 0)}")
    return provider_of(host, 0)


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
    row = {"uuid": consumer, "bound": False, "updated_ms": 1}
    cloud.execute(sa.insert(Instance).values(**row))
    return consumer


BY_HAND: list[tuple[Kind, Damage]] = [
    (Kind.LEAKED_HANDLE, leak_handle),
    (Kind.STRANDED_RELEASE, strand_release),
    (Kind.STRANDED_RELEASE, strand_quarantine),
    (Kind.UNHELD_HANDLE, free_under_guest),
    (Kind.UNSAFE_HANDLE, quarantine_under_guest),
    (Kind.NEEDLESS_HOLD, hold_while_initial),
    (Kind.EMPTY_BIND, take_handle),
    (Kind.OWNERLESS_BIND, take_instance),
    (Kind.WRONG_PROVIDER, swap_provider),
    (Kind.VANISHED_INSTANCE, delete_server),
    (Kind.UNGUARDED_INSTANCE, delete_instance_row),
    (Kind.UNGUARDED_INSTANCE, open_instance_row),
    (Kind.EXCESS_INVENTORY, raise_total),
    (Kind.UNALLOCATED, delete_allocation),
    (Kind.ORPHAN_PROVIDER, add_orphan),
    (Kind.AGED_ARQ, age_arq),
    (Kind.AGED_ARQ, age_former_arq),
    (Kind.OBSOLETE_STATE, former_state),
    (Kind.CLOSED_INSTANCE, delete_arq),
    (Kind.NO_CONDUCTOR, kill_conductors),
    (Kind.NOVA_NOT_NOTIFIED, silence_nova),
    (Kind.NO_COMPUTE, delete_compute),
    (Kind.MISSING_PROVIDER, delete_provider),
    (Kind.MISPLACED_PROVIDER, move_provider),
    (Kind.MISNAMED_PROVIDER, misname),
    (Kind.REFUSED_PROVIDER, refuse),
    (Kind.DRIFT, raise_reserved),
    (Kind.DRIFT, delete_traits),
    (Kind.STALE_ALLOCATION, leave_old_allocation),
    (Kind.UNDATED_ALLOCATION, leave_allocation),
    (Kind.SILENT_AGENT, kill_agent),
    (Kind.NOT_RECEIVING, deafen_agent),
    (Kind.STUCK_WORK, forget_release),
    (Kind.FAILED_DRIVER, break_driver),
    (Kind.LOST_DEVICE, lose_device),
    (Kind.QUARANTINED_HANDLE, refuse_release),
]
#: The same where a bind needs its host's work.
PREPARED: list[tuple[Kind, Damage]] = [
    (Kind.LEAKED_HANDLE, leak_handle),
    (Kind.STRANDED_RELEASE, strand_release),
    (Kind.UNHELD_HANDLE, free_under_guest),
    (Kind.VANISHED_INSTANCE, delete_server),
    (Kind.FORGOTTEN_BIND, delete_prepare_work),
    (Kind.OVERDUE_BIND, miss_deadline),
]


def find_and_fix(cloud: SmallCloud, host: str, kind: Kind, damage: Damage) -> None:
    """Damage, look, repair what may be repaired, look again."""
    assert cloud.found() == set()
    key = damage(cloud, host)
    assert (kind, key) in cloud.found()
    assert ((kind, key) in cloud.found(host)) is (kind not in OF_NO_HOST)
    if RULES[kind].fix is None:
        return
    before = cloud.generation(host)
    assert cloud.fix() == []
    if cloud.generation(host) > before:
        cloud.publish(host)
    assert cloud.found() == set()


@pytest.mark.parametrize(
    ("kind", "damage"), BY_HAND, ids=[damage.__name__ for _, damage in BY_HAND]
)
def test_finding_is_repaired(cloud: SmallCloud, kind: Kind, damage: Damage) -> None:
    find_and_fix(cloud, cloud.host(), kind, damage)


@pytest.mark.parametrize(
    ("kind", "damage"), PREPARED, ids=[damage.__name__ for _, damage in PREPARED]
)
def test_finding_is_repaired_on_a_host_that_prepares(
    cloud: SmallCloud, kind: Kind, damage: Damage
) -> None:
    find_and_fix(cloud, cloud.host(prepare=True), kind, damage)


def test_every_kind_of_finding_in_the_database_is_tested() -> None:
    tried = {kind for kind, _ in BY_HAND + PREPARED}
    # What hosts have prepared is only known to who asks them, a shared handle needs its unique
    # key to be gone, and news are not damage.
    assert set(Kind) - tried == {
        Kind.SHARED_HANDLE,
        Kind.UNPREPARED,
        Kind.LEFTOVER,
        Kind.PUBLISHING,
    }


def test_cloud_in_use_has_no_findings(cloud: SmallCloud) -> None:
    plain, prepared = cloud.host(), cloud.host(prepare=True)
    for host in (plain, plain, prepared):
        cloud.bind(host)
    cloud.request()
    on_its_way = str(uuid4())
    cloud.allocate(plain, on_its_way)
    cloud.nova.own(on_its_way, "nova-project")
    assert cloud.found() == set()
    assert cloud.found(plain) == set()


def test_recent_change_is_reported_as_publishing(cloud: SmallCloud) -> None:
    host = cloud.host()
    cloud.execute(sa.update(Device).values(status="maintaining"))
    assert cloud.found(ages=Ages()) == {(Kind.PUBLISHING, provider_of(host, 0))}
    assert cloud.found() == {(Kind.EXCESS_INVENTORY, provider_of(host, 0))}
    cloud.publish(host)
    assert cloud.found() == set()


def test_findings_of_several_kinds_are_repaired_together(cloud: SmallCloud) -> None:
    host, prepared = cloud.host(units=8), cloud.host(prepare=True, units=8)
    wanted = set()
    for kind, damage in (
        (Kind.LEAKED_HANDLE, leak_handle),
        (Kind.VANISHED_INSTANCE, delete_server),
        (Kind.AGED_ARQ, age_arq),
        (Kind.CLOSED_INSTANCE, delete_arq),
    ):
        wanted.add((kind, damage(cloud, host)))
    wanted.add((Kind.FORGOTTEN_BIND, delete_prepare_work(cloud, prepared)))
    wanted.add((Kind.DRIFT, delete_traits(cloud, prepared)))
    assert wanted <= cloud.found()
    assert cloud.fix() == []
    cloud.publish(prepared)
    assert cloud.found() == set()


def test_prepared_handle_without_arq_is_released_by_its_host(cloud: SmallCloud) -> None:
    plain, prepared = cloud.host(units=1), cloud.host(prepare=True, units=1)
    cloud.execute(sa.update(AttachHandle).values(state="held"))
    assert cloud.fix() == []
    with cloud.db.reader() as tx:
        states = tx.execute(
            sa.select(Device.hostname, AttachHandle.state)
            .join(Deployable, Deployable.device_id == Device.id)
            .join(AttachHandle, AttachHandle.deployable_id == Deployable.id)
        ).all()
        kinds = list(tx.execute(sa.select(Work.kind)).scalars())
    assert {tuple(one) for one in states} == {(plain, "free"), (prepared, "releasing")}
    assert kinds == ["release"]
    assert cloud.found(ages=AT_ONCE) == set()


def test_failed_event_is_sent_for_a_bind_without_work(cloud: SmallCloud) -> None:
    host = cloud.host(prepare=True)
    arq = delete_prepare_work(cloud, host)
    assert cloud.fix() == []
    with cloud.db.reader() as tx:
        row = tx.execute(sa.select(Arq.state, Arq.fault, Arq.attach_handle_id)).one()
        notes = list(tx.execute(sa.select(Work.arq_uuid).where(Work.kind == "notify")).scalars())
        history = tx.execute(
            sa.select(Event.action, Event.reason).where(Event.subject_uuid == arq)
        ).all()
    assert (row.state, row.attach_handle_id) == ("BindFailed", None)
    assert "audit" in row.fault
    assert notes == [arq]
    assert ("BindFailed", row.fault) in {tuple(one) for one in history}


def test_arq_is_not_aged_by_a_wrong_creation_date(cloud: SmallCloud) -> None:
    """Dates are by the conductor that wrote them; what is fresh by the database's clock stays."""
    arq = cloud.request()
    cloud.execute(sa.update(Arq).where(Arq.uuid == arq).values(created_at=LONG_AGO))
    assert (Kind.AGED_ARQ, arq) not in cloud.found()
