# SPDX-License-Identifier: Apache-2.0
"""Reports and ends of use of several devices, drivers and units of a host."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.audit.repairs import release_handle
from cyborg.conductor.device_health import expire
from cyborg.conductor.hosts import devices, lost_devices
from cyborg.conductor.reports import apply
from cyborg.db import work
from cyborg.db.models import (
    AttachHandle,
    Backend,
    ControlpathId,
    Deployable,
    Device,
    Driver,
    Event,
    Hardware,
    Work,
)
from cyborg.model import device as facts
from cyborg.model.arq import State
from cyborg.model.caller import Caller
from cyborg.model.cleaning import CleanedStep, CleanResult, HostClean
from cyborg.model.device import DeviceStatus
from cyborg.model.health import Condition, DeviceHealth
from cyborg.model.probation import AT_ONCE
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import DeleteDevice, DesiredChanged, SendProvidersRemoved, SendPublished
from cyborg.tests.fixtures.commands import update_device
from cyborg.tests.fixtures.host_reports import DRIVER, provider_of, report_of
from cyborg.tests.fixtures.use_cases import NOVA, UseCases
from cyborg.tests.functional.rules.pair import FIRST, MEMORY, SECOND, both, slice_of, sliced

OPERATOR = Caller("operators", "olga", "req-1", all_projects=True)
LATER = 1 << 53
HERE = provider_of(FIRST, 0)
STEP = CleanedStep("NVMe erase", 12_500)
OTHER_DRIVER = "bench_driver_2"


def update(pair: UseCases, *origin: Any, **given: Any) -> None:
    """Change a device; ``origin`` is the caller, the key of the request and the uuid."""
    devices.update(pair.ctx, update_device(*origin, **given))


def two_drivers(host: str, *, state: DriverState = DriverState.READY) -> Report:
    """Two drivers with a device each, both at one address; ``state`` is that of the second."""
    (first,) = report_of(host, 1).drivers
    (other,) = report_of(f"{host}_other", 1).drivers
    return Report((first, replace(other, driver=OTHER_DRIVER, state=state)))


def test_report_that_changes_the_capacity_changes_what_fits(pair: UseCases) -> None:
    """A half of the first card is in use; of the second nothing is."""
    pair.report(FIRST, sliced(FIRST, 2))
    pair.boot(slice_of(FIRST, 0, "half"))
    generation = pair.generation(FIRST)
    pair.report(FIRST, sliced(FIRST, 2, memory=5))
    assert pair.generation(FIRST) == generation + 1
    assert pair.reserved(FIRST) == {
        f"{FIRST}_0_big": 1,
        f"{FIRST}_0_half": 1,
        f"{FIRST}_0_small": 7,
        f"{FIRST}_1_big": 1,
        f"{FIRST}_1_half": 1,
        f"{FIRST}_1_small": 3,
    }
    pair.report(FIRST, sliced(FIRST, 2, memory=2 * MEMORY))
    assert set(pair.reserved(FIRST).values()) == {0}


def test_report_without_capacity_frees_what_did_not_fit(pair: UseCases) -> None:
    pair.report(FIRST, sliced(FIRST))
    pair.boot(slice_of(FIRST, 0, "big"))
    assert pair.reserved(FIRST)[f"{FIRST}_0_half"] == 2
    pair.report(FIRST, sliced(FIRST, memory=0))
    assert set(pair.reserved(FIRST).values()) == {0}


def test_end_of_a_release_offers_its_siblings(pair: UseCases) -> None:
    pair.report(FIRST, sliced(FIRST))
    arqs, _ = pair.boot(slice_of(FIRST, 0, "half"))
    pair.delete(arqs)
    assert pair.reserved(FIRST)[f"{FIRST}_0_big"] == 1
    generation = pair.generation(FIRST)
    pair.agents.received.clear()
    pair.do(WorkKind.RELEASE)
    assert set(pair.reserved(FIRST).values()) == {0}
    assert pair.generation(FIRST) == generation + 1
    assert pair.agents.told == [(FIRST, DesiredChanged())]


def test_release_by_an_audit_offers_its_siblings(pair: UseCases) -> None:
    """The work of the release is lost, and the host has nothing to do any more."""
    pair.report(FIRST, sliced(FIRST))
    arqs, _ = pair.boot(slice_of(FIRST, 0, "half"))
    handle = pair.handle(arqs[0])
    pair.delete(arqs)
    pair.execute(sa.delete(Work))
    pair.change(Deployable, prepare=False)
    generation = pair.generation(FIRST)
    assert release_handle(pair.db, handle.uuid)
    assert set(pair.reserved(FIRST).values()) == {0}
    assert pair.generation(FIRST) == generation + 1


def quarantined(pair: UseCases) -> Any:
    """A half of a card in quarantine: its host refuses to release it; the handle."""
    arqs, _ = pair.boot(slice_of(FIRST, 0, "half"))
    handle = pair.handle(arqs[0])
    pair.delete(arqs)
    refuse(pair, handle, 8)
    assert pair.row(AttachHandle, AttachHandle.id == handle.id).state == "quarantined"
    assert pair.reserved(FIRST)[f"{FIRST}_0_big"] == 1
    return handle


def refuse(pair: UseCases, handle: Any, times: int) -> None:
    """The host refuses to release a unit."""
    pair.agents.answers[handle.handle_key] = {"fault": "busy"}
    for _ in range(times):
        pair.do(WorkKind.RELEASE)
    pair.agents.answers.clear()


def test_share_that_an_operator_frees_offers_its_siblings(pair: UseCases) -> None:
    """The unit of the same key of another card is not freed with it."""
    pair.report(FIRST, sliced(FIRST, 2))
    handle = quarantined(pair)
    (other, *_) = pair.units(f"{FIRST}_1_half")
    assert other.handle_key == handle.handle_key
    with pytest.raises(exception.Conflict, match="no unit half-0 in quarantine"):
        update(pair, OPERATOR, str(uuid4()), pair.device(FIRST, 1).uuid, free_unit=other.handle_key)
    arqs, _ = pair.boot(slice_of(FIRST, 1, "small"))
    pair.delete(arqs)
    update(pair, OPERATOR, str(uuid4()), pair.device(FIRST).uuid, free_unit=handle.handle_key)
    reserved = pair.reserved(FIRST)
    assert {name: reserved[f"{FIRST}_0_{name}"] for name in ("big", "half", "small")} == {
        "big": 0,
        "half": 0,
        "small": 0,
    }
    # The release of another unit goes on.
    (left,) = pair.rows(Work, Work.kind == WorkKind.RELEASE.value)
    assert left.attach_handle_id != handle.id


def test_bind_that_waits_for_a_unit_goes_on_when_an_operator_frees_it(pair: UseCases) -> None:
    pair.report(FIRST, sliced(FIRST, slices={"half": 4}))
    arqs, _ = pair.boot(slice_of(FIRST, 0, "half"), {}, {})
    handle = pair.handle(arqs[0])
    pair.delete(arqs[:1])
    (waiting,), _ = pair.boot(slice_of(FIRST, 0, "half"))
    assert pair.handle(waiting).id == handle.id
    refuse(pair, handle, 8)
    pair.change(Work, not_before_ms=LATER)
    update(pair, OPERATOR, str(uuid4()), pair.device(FIRST).uuid, free_unit=handle.handle_key)
    (row,) = pair.rows(Work, Work.arq_uuid == waiting, Work.kind == WorkKind.PREPARE.value)
    assert row.not_before_ms < LATER
    pair.do(WorkKind.PREPARE)
    assert pair.arq(waiting).state == State.BOUND


def test_removal_of_a_lost_share_in_quarantine_offers_its_siblings(pair: UseCases) -> None:
    pair.report(FIRST, sliced(FIRST))
    handle = quarantined(pair)
    (driver,) = sliced(FIRST).drivers
    (card,) = driver.devices
    parts = [
        replace(part, handles=tuple(one for one in part.handles if one.key != handle.handle_key))
        for part in card.deployables
    ]
    shown = replace(card, deployables=tuple(parts))
    pair.report(FIRST, Report((replace(driver, devices=(shown,)),)))
    assert pair.reserved(FIRST)[f"{FIRST}_0_big"] == 1
    lost_devices.request_removal(
        pair.ctx, DeleteDevice(OPERATOR, str(uuid4()), pair.device(FIRST).uuid, force=True)
    )
    assert pair.reserved(FIRST) == {
        f"{FIRST}_0_big": 0,
        f"{FIRST}_0_half": 0,
        f"{FIRST}_0_small": 0,
    }


def test_removal_of_a_lost_kind_of_slices_offers_its_siblings(pair: UseCases) -> None:
    pair.report(FIRST, sliced(FIRST))
    quarantined(pair)
    pair.report(FIRST, sliced(FIRST, slices={"big": 6, "small": 1}))
    lost_devices.request_removal(
        pair.ctx, DeleteDevice(OPERATOR, str(uuid4()), pair.device(FIRST).uuid, force=True)
    )
    generation = pair.generation(FIRST)
    lost_devices.confirm_removal(
        pair.ctx, SendProvidersRemoved(FIRST, pair.epochs[FIRST], [f"{FIRST}_0_half"])
    )
    assert pair.reserved(FIRST) == {f"{FIRST}_0_big": 0, f"{FIRST}_0_small": 0}
    assert pair.generation(FIRST) == generation + 1


def test_repeated_end_of_a_release_is_no_second_cleaning(pair: UseCases) -> None:
    """The unit has been released, and the next guest has it."""
    both(pair)
    pair.change(Deployable, Deployable.rp_uuid == HERE, clean=HostClean.FULL.value)
    arqs, _ = pair.boot(HERE)
    handle = pair.handle(arqs[0])
    pair.delete(arqs)
    (row,) = pair.rows(Work, Work.kind == WorkKind.RELEASE.value)
    pair.agents.answers[handle.handle_key] = {"cleaned": (STEP,)}
    pair.do(WorkKind.RELEASE)
    pair.boot(HERE)
    generation = pair.generation(FIRST)
    with pair.db.writer() as tx:
        again = {"kind": WorkKind.RELEASE, "attach_handle_id": handle.id, "spec": row.spec}
        work.add(tx, [again])
    pair.do(WorkKind.RELEASE)
    after = pair.row(AttachHandle, AttachHandle.id == handle.id)
    assert (after.state, after.clean_record["result"]) == ("ready", "cleaned")
    assert pair.cleanings == [CleanResult.CLEANED]
    assert pair.generation(FIRST) == generation
    assert [row.action for row in pair.rows(Event, Event.noun == "device")].count(
        "unit cleaned"
    ) == 1


def test_refusals_after_the_last_one_tolerated_change_nothing(
    pair: UseCases, caplog: pytest.LogCaptureFixture
) -> None:
    pair.report(FIRST, sliced(FIRST))
    handle = quarantined(pair)
    generation = pair.generation(FIRST)
    caplog.clear()
    refuse(pair, handle, 2)
    assert pair.generation(FIRST) == generation
    assert "is in quarantine" not in caplog.text
    assert Counter(row.action for row in pair.rows(Event))["quarantined"] == 1


def with_hardware(host: str, devices: int, unready: Sequence[int]) -> Report:
    """A report in which these pieces of hardware need a set-up."""
    (driver,) = report_of(host, devices).drivers
    assert driver.hardware is not None
    hardware = tuple(
        replace(entry, setup_required=index in unready)
        for index, entry in enumerate(driver.hardware)
    )
    return Report((replace(driver, hardware=hardware),))


def test_only_the_new_devices_that_need_a_set_up_get_one(pair: UseCases) -> None:
    pair.report(FIRST, with_hardware(FIRST, 3, [1, 2]))
    statuses = [row.status for row in pair.rows(Device)]
    assert statuses == ["enabled", "installing", "installing"]
    mine, other = pair.device(FIRST, 1), pair.device(FIRST, 2)
    update(pair, OPERATOR, str(uuid4()), mine.uuid, status=DeviceStatus.MAINTAINING)
    # The set-up of the other one goes on.
    (left,) = pair.rows(Work)
    assert left.spec["device"] == other.uuid


@pytest.mark.parametrize(("unready", "ready"), [(FIRST, SECOND), (SECOND, FIRST)])
def test_hardware_of_another_host_does_not_decide_about_a_set_up(
    pair: UseCases, unready: str, ready: str
) -> None:
    """The devices have the same driver and address."""
    for host in (FIRST, SECOND):
        pair.report(host, with_hardware(host, 1, [0] if host == unready else []))
    for status in (DeviceStatus.MAINTAINING, DeviceStatus.ENABLED):
        update(pair, OPERATOR, str(uuid4()), pair.device(ready).uuid, status=status)
    assert pair.device(ready).status == "enabled"
    assert pair.device(unready).status == "installing"


def test_devices_of_two_drivers_at_one_address_are_both_stored(pair: UseCases) -> None:
    pair.report(FIRST, two_drivers(FIRST))
    assert [(row.driver, row.device_key) for row in pair.rows(Device)] == [
        (name, pair.device(FIRST).device_key) for name in (DRIVER, OTHER_DRIVER)
    ]


def test_failing_driver_reserves_its_own_devices(pair: UseCases) -> None:
    """Not those of the driver beside it, nor those that its namesake has on another host."""
    for host in (FIRST, SECOND):
        pair.report(host, two_drivers(host))
    pair.report(FIRST, two_drivers(FIRST, state=DriverState.FAILED))
    assert pair.reserved(FIRST) == {f"{FIRST}_0": 0, f"{FIRST}_other_0": 2}
    assert pair.reserved(SECOND) == {f"{SECOND}_0": 0, f"{SECOND}_other_0": 0}
    pair.boot(HERE)
    pair.boot(provider_of(f"{SECOND}_other", 0))
    with pytest.raises(exception.DeviceUnavailable):
        pair.boot(provider_of(f"{FIRST}_other", 0))


def test_change_of_any_driver_changes_the_desired_state(pair: UseCases) -> None:
    """The state of the first driver changes, that of the last does not."""
    pair.report(FIRST, two_drivers(FIRST))
    generation = pair.generation(FIRST)
    first, second = two_drivers(FIRST).drivers
    pair.report(FIRST, Report((replace(first, state=DriverState.STARTING), second)))
    assert pair.generation(FIRST) == generation + 1


def test_drivers_that_are_gone_are_all_stopped(pair: UseCases) -> None:
    pair.report(FIRST, two_drivers(FIRST))
    pair.report(SECOND, two_drivers(SECOND))
    pair.report(FIRST, Report(()))
    states = [row.state for row in pair.rows(Driver)]
    assert states == [DriverState.STOPPED.value] * 2 + [DriverState.READY.value] * 2
    assert [row.enabled for row in pair.rows(Driver)] == [False, False, True, True]


def test_silent_driver_keeps_its_hardware_and_backends(pair: UseCases) -> None:
    """The driver beside it tells that it has none any more; another host has the same ones."""
    for host in (FIRST, SECOND):
        pair.report(host, two_drivers(host))
    first, second = two_drivers(FIRST).drivers
    silent = replace(second, hardware=None, backends=None)
    pair.report(FIRST, Report((replace(first, hardware=(), backends=()), silent)))
    drivers = {row.id: (row.host_id, row.name) for row in pair.rows(Driver)}
    here, there = (pair.device(host).host_id for host in (FIRST, SECOND))
    kept = [(here, OTHER_DRIVER), (there, DRIVER), (there, OTHER_DRIVER)]
    assert [(row.host_id, row.driver) for row in pair.rows(Hardware)] == kept
    assert [drivers[row.driver_id] for row in pair.rows(Backend)] == kept


def test_refusals_of_placement_replace_earlier_ones(pair: UseCases) -> None:
    both(pair, 2)
    epoch = pair.epochs[FIRST]
    names = [f"{FIRST}_{index}" for index in range(2)]
    apply.store_published(
        pair.ctx, SendPublished(FIRST, epoch, dict.fromkeys(names, "no inventory"), {})
    )
    apply.store_published(pair.ctx, SendPublished(FIRST, epoch, {names[1]: "no trait"}, {}))
    errors = {row.name: row.publish_error for row in pair.rows(Deployable)}
    others = [f"{SECOND}_{index}" for index in range(2)]
    assert errors == {**dict.fromkeys([names[0], *others]), names[1]: "no trait"}


def test_new_units_of_two_devices_have_the_paths_of_their_own_devices(pair: UseCases) -> None:
    pair.report(FIRST, report_of(FIRST, 2, handles=1))
    generation = pair.generation(FIRST)
    pair.report(FIRST, report_of(FIRST, 2, handles=2))
    assert pair.generation(FIRST) == generation + 1
    paths = {row.id: row.device_id for row in pair.rows(ControlpathId)}
    for index, device in enumerate(pair.rows(Device)):
        units = pair.units(f"{FIRST}_{index}")
        assert [paths[unit.cpid_id] for unit in units] == [device.id] * 2


def test_trait_that_is_gone_changes_the_desired_state(pair: UseCases) -> None:
    """Nothing else of the two devices has changed."""
    both(pair, 2)
    (driver,) = report_of(FIRST, 2).drivers
    first, second = driver.devices
    (part,) = second.deployables
    less = tuple(one for one in part.attributes if one.value != "OWNER_CYBORG")
    second = replace(second, deployables=(replace(part, attributes=less),))
    generation = pair.generation(FIRST)
    pair.report(FIRST, Report((replace(driver, devices=(first, second)),)))
    assert pair.generation(FIRST) == generation + 1
    traits = [provider.traits for provider in pair.desired(FIRST).tree.providers]
    assert ["OWNER_CYBORG" in one for one in traits] == [True, False]


def healths(host: str, *conditions: Condition | None, devices: int = 0) -> DriverReport:
    """The report of a driver whose devices have these conditions."""
    (driver,) = report_of(host, devices or len(conditions)).drivers
    answers = (
        DeviceHealth(device.key, condition, ("hot",))
        for device, condition in zip(driver.devices, conditions, strict=False)
        if condition is not None
    )
    return replace(driver, health=tuple(answers))


def health_events(pair: UseCases) -> list[tuple[str, str]]:
    events = pair.rows(Event, Event.action.like("health%"))
    return [(row.noun, row.subject_uuid) for row in events]


def test_health_of_any_device_changes_the_desired_state(pair: UseCases) -> None:
    """The first one stays in service."""
    both(pair, 2)
    generation = pair.generation(FIRST)
    pair.report(FIRST, Report((healths(FIRST, Condition.DEGRADED, Condition.DRAIN),)))
    assert pair.generation(FIRST) == generation + 1
    assert pair.reserved(FIRST) == {f"{FIRST}_0": 0, f"{FIRST}_1": 2}


def test_fault_of_some_devices_of_a_driver_is_none_of_the_driver(pair: UseCases) -> None:
    """Another driver of the host has as many devices as have the fault."""
    faulty = healths(FIRST, Condition.DRAIN, Condition.DRAIN, devices=3)
    (other,) = report_of(f"{FIRST}_other", 2).drivers
    pair.report(FIRST, Report((faulty, replace(other, driver=OTHER_DRIVER))))
    mine = [row.uuid for row in pair.rows(Device, Device.driver == DRIVER)]
    assert health_events(pair) == [("device", mine[0]), ("device", mine[1])]


def test_fault_of_all_devices_is_that_of_the_driver_of_their_host(pair: UseCases) -> None:
    """Another host has a driver of the same name."""
    both(pair, 2)
    pair.report(FIRST, Report((healths(FIRST, Condition.DRAIN, Condition.DRAIN),)))
    pair.report(SECOND, Report((healths(SECOND, Condition.DRAIN, Condition.DRAIN),)))
    drivers = [row.uuid for row in pair.rows(Driver)]
    assert health_events(pair) == [("driver", drivers[0]), ("driver", drivers[1])]


def test_probation_ends_on_every_host(pair: UseCases) -> None:
    """A device that is lost is none of those that the driver has."""
    both(pair, 3)
    pair.report(FIRST, report_of(FIRST, 2))
    present = [row.id for row in pair.rows(Device, Device.lost_ms.is_(None))]
    pair.change(
        *(Device, Device.id.in_(present)),
        health="probation",
        health_until_ms=1,
        reported_health=None,
    )
    generations = [pair.generation(host) for host in (FIRST, SECOND)]
    pair.agents.received.clear()
    expire(pair.db, AT_ONCE)
    assert pair.agents.told == [(FIRST, DesiredChanged()), (SECOND, DesiredChanged())]
    assert {row.health for row in pair.rows(Device)} == {None}
    assert [pair.generation(host) for host in (FIRST, SECOND)] == [
        generation + 1 for generation in generations
    ]
    assert [noun for noun, _ in health_events(pair)] == ["driver", "driver"]


def parts(host: str, names: Sequence[str]) -> Report:
    """A host with one device, which has these deployables."""
    (driver,) = report_of(host, 1).drivers
    (device,) = driver.devices
    (whole,) = device.deployables
    deployables = tuple(replace(whole, name=f"{host}_{name}") for name in names)
    shown: facts.Device = replace(device, deployables=deployables)
    return Report((replace(driver, devices=(shown,)),))


def test_lost_device_stays_until_all_of_its_providers_are_deleted(pair: UseCases) -> None:
    pair.report(FIRST, parts(FIRST, ["a", "b"]))
    pair.report(FIRST, Report((DriverReport(DRIVER, DriverState.READY),)))
    lost_devices.request_removal(
        pair.ctx, DeleteDevice(OPERATOR, str(uuid4()), pair.device(FIRST).uuid)
    )
    lost_devices.confirm_removal(
        pair.ctx, SendProvidersRemoved(FIRST, pair.epochs[FIRST], [f"{FIRST}_a"])
    )
    assert len(pair.rows(Device)) == 1
    lost_devices.confirm_removal(
        pair.ctx,
        SendProvidersRemoved(FIRST, pair.epochs[FIRST], [f"{FIRST}_a", f"{FIRST}_b"]),
    )
    assert pair.rows(Device) == []


def test_confirmed_parts_are_removed_and_those_that_are_back_published(pair: UseCases) -> None:
    """The agent has deleted four providers; the host shows one of the deployables again."""
    pair.report(FIRST, parts(FIRST, "abcde"))
    pair.report(FIRST, parts(FIRST, "a"))
    lost_devices.request_removal(
        pair.ctx, DeleteDevice(OPERATOR, str(uuid4()), pair.device(FIRST).uuid)
    )
    obsolete = [one.name for one in pair.desired(FIRST).obsolete_providers]
    assert obsolete == [f"{FIRST}_{name}" for name in "bcde"]
    pair.report(FIRST, parts(FIRST, "ae"))
    generation = pair.generation(FIRST)
    lost_devices.confirm_removal(
        pair.ctx, SendProvidersRemoved(FIRST, pair.epochs[FIRST], obsolete)
    )
    assert [row.name for row in pair.rows(Deployable)] == [f"{FIRST}_a", f"{FIRST}_e"]
    assert pair.generation(FIRST) == generation + 1


def test_providers_of_children_are_deleted_first(pair: UseCases) -> None:
    """Three levels, of which the names sort the other way."""
    pair.report(FIRST, parts(FIRST, "abc"))
    top, middle, below = pair.rows(Deployable)
    pair.change(Deployable, Deployable.id == middle.id, parent_id=top.id, root_id=top.id)
    pair.change(Deployable, Deployable.id == below.id, parent_id=middle.id, root_id=top.id)
    pair.report(FIRST, Report((DriverReport(DRIVER, DriverState.READY),)))
    lost_devices.request_removal(
        pair.ctx, DeleteDevice(OPERATOR, str(uuid4()), pair.device(FIRST).uuid)
    )
    obsolete = [one.name for one in pair.desired(FIRST).obsolete_providers]
    assert obsolete == [below.name, middle.name, top.name]


def test_removal_of_an_arq_of_one_device_is_not_blocked_by_the_other(pair: UseCases) -> None:
    """Two devices that an operator wants to remove; one of them is in use."""
    pair.report(FIRST, report_of(FIRST, 2))
    arqs, _ = pair.boot(HERE)
    pair.report(FIRST, Report((DriverReport(DRIVER, DriverState.READY),)))
    used, unused = pair.rows(Device)
    with pytest.raises(exception.DeviceInUse, match=arqs[0]):
        lost_devices.request_removal(pair.ctx, DeleteDevice(OPERATOR, str(uuid4()), used.uuid))
    lost_devices.request_removal(pair.ctx, DeleteDevice(OPERATOR, str(uuid4()), unused.uuid))
    obsolete = [one.name for one in pair.desired(FIRST).obsolete_providers]
    assert obsolete == [f"{FIRST}_1"]


def test_removal_of_lost_parts_of_a_device_leaves_those_of_others(pair: UseCases) -> None:
    for host in (FIRST, SECOND):
        pair.report(host, parts(host, "ab"))
        pair.report(host, parts(host, "a"))
    lost_devices.request_removal(
        pair.ctx, DeleteDevice(OPERATOR, str(uuid4()), pair.device(FIRST).uuid)
    )
    assert [one.name for one in pair.desired(FIRST).obsolete_providers] == [f"{FIRST}_b"]
    assert pair.desired(SECOND).obsolete_providers == ()


def test_user_changes_labels_of_the_devices_that_the_project_uses(pair: UseCases) -> None:
    both(pair, 2)
    pair.boot(HERE)
    project = str(NOVA.project_id)
    for index in range(2):
        device, labels = pair.device(FIRST, index), {"mine": "yes"}
        change = (OPERATOR, str(uuid4()), device.uuid)
        if index == 0:
            update(pair, *change, labels=labels, project=project)
        else:
            with pytest.raises(exception.NotFound):
                update(pair, *change, labels=labels, project=project)
    assert [row.labels for row in pair.rows(Device)] == [{"mine": "yes"}, None, None, None]
