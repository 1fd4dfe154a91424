# SPDX-License-Identifier: Apache-2.0
"""The difference between a report and the rows of its host, case by case, without a database."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cyborg.conductor.reports.device_diff import DeviceDiff, StoredDevices
from cyborg.db.models import AttachHandle, Attribute, Deployable, Device
from cyborg.model import device as facts
from cyborg.tests.fixtures.machines import DRIVER, report_of

HOST = "compute"
#: A moment at which something was lost, and the mark of an operator who had it forgotten.
MOMENTS = [1_700_000_000_000, 0]


def reported(handles: int = 2) -> facts.Device:
    """The one device of a host."""
    (driver,) = report_of(HOST, 1, handles=handles).drivers
    (device,) = driver.devices
    return device


def rows_of(device: facts.Device, lost_ms: int | None = None) -> StoredDevices:
    """The rows that a device has when it stands in the database exactly as reported."""
    new = DeviceDiff(1, HOST, frozenset({"*"}))
    new.add_device(DRIVER, device, "uuid-of-device")
    common: dict[str, Any] = {"id": 1, "lost_ms": lost_ms, "leaving": False}
    (device_row,) = new.devices
    (deployable_row,) = new.deployables
    return StoredDevices(
        devices=[SimpleNamespace(**{**device_row, **common})],
        deployables=[SimpleNamespace(**{**deployable_row, **common, "device_id": 1})],
        handles=[
            SimpleNamespace(**{**row, **common, "id": number, "deployable_id": 1})
            for number, row in enumerate(new.handles, start=1)
        ],
        attributes=[
            SimpleNamespace(id=number, deployable_id=1, key=row["key"], value=row["value"])
            for number, row in enumerate(new.attributes, start=1)
        ],
    )


def compared(known: StoredDevices, device: facts.Device, driver: str = DRIVER) -> DeviceDiff:
    """What is new when ``driver`` reports this as the host's device."""
    new = DeviceDiff(1, HOST, frozenset())
    new.compare_device(known.devices[0], driver, device, known)
    return new


def without_deployables(device: facts.Device) -> facts.Device:
    return replace(device, deployables=())


def test_an_unchanged_device_is_no_difference() -> None:
    device = reported()
    new = compared(rows_of(device), device)
    assert not new
    assert new.history == []
    assert new.moved == {(DRIVER, device.key): "uuid-of-device"}


def test_what_is_not_reported_is_marked_lost_once() -> None:
    device = reported()
    known = rows_of(device)
    assert compared(known, reported(handles=1)).lost == {AttachHandle: {2}, Deployable: set()}
    assert compared(known, without_deployables(device)).lost == {Deployable: {1}}


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_is_lost_already_keeps_its_mark(moment: int) -> None:
    """Each report would start the retention over, and overwrite the mark of an operator."""
    device = reported()
    known = rows_of(device)
    for row in (*known.handles[1:],):
        row.lost_ms = moment
    new = compared(known, reported(handles=1))
    assert not any(new.lost.values())
    known.deployables[0].lost_ms = moment
    new = compared(known, without_deployables(device))
    assert not any(new.lost.values())
    known.devices[0].lost_ms = moment
    new = DeviceDiff(1, HOST, frozenset())
    new.lose_device(known.devices[0])
    assert not new
    assert new.history == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_is_reported_again_is_found(moment: int) -> None:
    device = reported()
    known = rows_of(device, lost_ms=moment)
    new = compared(known, device)
    assert new.found == {Device: {1}, Deployable: {1}, AttachHandle: {1, 2}}
    assert new.history == [("uuid-of-device", "found again", "enabled")]
    assert not any(new.lost.values())


def test_a_device_that_is_lost_says_so_in_the_history() -> None:
    known = rows_of(reported())
    new = DeviceDiff(1, HOST, frozenset())
    new.lose_device(known.devices[0])
    assert new.lost == {Device: {1}}
    assert new.history == [("uuid-of-device", "lost", None)]


def test_facts_that_changed_are_written_and_no_others() -> None:
    device = reported()
    (deployable,) = device.deployables
    changed = replace(
        device, model="newer", deployables=(replace(deployable, prepare=True, programmable=True),)
    )
    new = compared(rows_of(device), changed)
    assert new.changes == [
        (Device, 1, {"model": "newer"}),
        (Deployable, 1, {"prepare": True, "programmable": True}),
    ]


def test_a_device_that_another_driver_reports_keeps_its_row() -> None:
    device = reported()
    new = compared(rows_of(device), device, driver="other_driver")
    assert new.changes == [(Device, 1, {"driver": "other_driver"})]
    assert new.moved == {("other_driver", device.key): "uuid-of-device"}


def test_a_new_unit_is_added_to_its_deployable() -> None:
    new = compared(rows_of(reported(handles=1)), reported(handles=2))
    (handle,) = new.handles
    assert (handle["deployable_id"], handle["device_id"]) == (1, 1)
    # The number of units changes with it.
    assert new.changes == [(Deployable, 1, {"num_accelerators": 2})]


def test_attributes_follow_the_report() -> None:
    device = reported()
    (deployable,) = device.deployables
    first, *others = deployable.attributes
    news = facts.Attribute("trait9", "CUSTOM_NEW")
    changed = replace(device, deployables=(replace(deployable, attributes=(*others, news)),))
    new = compared(rows_of(device), changed)
    assert new.gone_attributes == {1}
    assert [(one["key"], one["value"], one["deployable_id"]) for one in new.attributes] == [
        ("trait9", "CUSTOM_NEW", 1)
    ]
    assert first.key == "rc"
    assert Attribute not in new.lost


def test_a_device_of_an_operator_keeps_its_facts() -> None:
    """The driver says that the device is there, and whether a bind needs the host's work."""
    device = reported()
    known = rows_of(device, lost_ms=5)
    (deployable,) = device.deployables
    told = replace(device, model="other", deployables=(replace(deployable, prepare=True),))
    new = DeviceDiff(1, HOST, frozenset())
    new.see_made(known.devices[0], told, known)
    assert new.changes == [(Deployable, 1, {"prepare": True})]
    assert new.found == {Device: {1}}


def test_a_device_that_an_operator_deletes_is_not_found_again() -> None:
    device = reported()
    known = rows_of(device, lost_ms=5)
    known.devices[0].leaving = True
    new = DeviceDiff(1, HOST, frozenset())
    new.see_made(known.devices[0], device, known)
    assert not new


@pytest.mark.parametrize(
    ("auto_enable", "waiting"), [(frozenset(), 1), (frozenset({DRIVER}), 0), (frozenset({"*"}), 0)]
)
def test_a_new_device_is_enabled_at_once_only_where_that_is_set(
    auto_enable: frozenset[str], waiting: int
) -> None:
    new = DeviceDiff(1, HOST, auto_enable)
    new.add_device(DRIVER, reported(), "uuid")
    assert new.waiting == waiting
    assert [what for _, what, _ in new.history] == ["discovered"]
