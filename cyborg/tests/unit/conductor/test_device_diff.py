# SPDX-License-Identifier: Apache-2.0
"""The difference between a report and the rows of its host, without a database."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cyborg.conductor.reports.device_diff import DeviceDiff, StoredDevices
from cyborg.db.models import AttachHandle, Attribute, Deployable, Device
from cyborg.model import device as facts
from cyborg.tests.fixtures.host_reports import DRIVER, report_of

HOST = "compute"
#: A time at which a row was lost, and the mark of an operator who had it removed.
MOMENTS = [1_700_000_000_000, 0]


def reported(handles: int = 2) -> facts.Device:
    """Return the only device of a host."""
    (driver,) = report_of(HOST, 1, handles=handles).drivers
    (device,) = driver.devices
    return device


def rows_of(device: facts.Device, lost_ms: int | None = None) -> StoredDevices:
    """Return the rows of a device that is stored exactly as reported."""
    diff = DeviceDiff(1, HOST, frozenset({"*"}))
    diff.add_device(DRIVER, device, "uuid-of-device")
    common: dict[str, Any] = {"id": 1, "lost_ms": lost_ms, "being_removed": False}
    (device_row,) = diff.devices
    (deployable_row,) = diff.deployables
    return StoredDevices(
        devices=[SimpleNamespace(**{**device_row, **common})],
        deployables=[SimpleNamespace(**{**deployable_row, **common, "device_id": 1})],
        handles=[
            SimpleNamespace(**{**row, **common, "id": number, "deployable_id": 1})
            for number, row in enumerate(diff.handles, start=1)
        ],
        attributes=[
            SimpleNamespace(id=number, deployable_id=1, key=row["key"], value=row["value"])
            for number, row in enumerate(diff.attributes, start=1)
        ],
    )


def compared(stored: StoredDevices, device: facts.Device, driver: str = DRIVER) -> DeviceDiff:
    """Return the difference when ``driver`` reports this as the host's device."""
    diff = DeviceDiff(1, HOST, frozenset())
    diff.compare_device(stored.devices[0], driver, device, stored)
    return diff


def without_deployables(device: facts.Device) -> facts.Device:
    return replace(device, deployables=())


def test_no_difference_for_an_unchanged_device() -> None:
    device = reported()
    diff = compared(rows_of(device), device)
    assert not diff
    assert diff.history == []
    assert diff.moved == {(DRIVER, device.key): "uuid-of-device"}


def test_rows_that_are_not_reported_are_marked_lost() -> None:
    device = reported()
    stored = rows_of(device)
    assert compared(stored, reported(handles=1)).lost == {AttachHandle: {2}, Deployable: set()}
    assert compared(stored, without_deployables(device)).lost == {Deployable: {1}}


@pytest.mark.parametrize("moment", MOMENTS)
def test_lost_rows_that_are_not_reported_keep_their_mark(moment: int) -> None:
    """Else each report would restart the retention and overwrite the mark of an operator."""
    device = reported()
    stored = rows_of(device)
    for row in stored.handles[1:]:
        row.lost_ms = moment
    diff = compared(stored, reported(handles=1))
    assert not any(diff.lost.values())
    stored.deployables[0].lost_ms = moment
    diff = compared(stored, without_deployables(device))
    assert not any(diff.lost.values())
    stored.devices[0].lost_ms = moment
    diff = DeviceDiff(1, HOST, frozenset())
    diff.lose_device(stored.devices[0])
    assert not diff
    assert diff.history == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_lost_rows_that_are_reported_are_restored(moment: int) -> None:
    device = reported()
    stored = rows_of(device, lost_ms=moment)
    diff = compared(stored, device)
    assert diff.returned == {Device: {1}, Deployable: {1}, AttachHandle: {1, 2}}
    assert diff.history == [("uuid-of-device", "found again", "enabled")]
    assert not any(diff.lost.values())


def test_a_lost_device_is_recorded_in_the_history() -> None:
    stored = rows_of(reported())
    diff = DeviceDiff(1, HOST, frozenset())
    diff.lose_device(stored.devices[0])
    assert diff.lost == {Device: {1}}
    assert diff.history == [("uuid-of-device", "lost", None)]


def test_only_changed_facts_are_written() -> None:
    device = reported()
    (deployable,) = device.deployables
    changed = replace(
        device, model="newer", deployables=(replace(deployable, prepare=True, programmable=True),)
    )
    diff = compared(rows_of(device), changed)
    assert diff.changes == [
        (Device, 1, {"model": "newer"}),
        (Deployable, 1, {"prepare": True, "programmable": True}),
    ]


def test_a_device_keeps_its_row_when_another_driver_reports_it() -> None:
    device = reported()
    diff = compared(rows_of(device), device, driver="other_driver")
    assert diff.changes == [(Device, 1, {"driver": "other_driver"})]
    assert diff.moved == {("other_driver", device.key): "uuid-of-device"}


def test_a_new_unit_is_added_to_its_deployable() -> None:
    diff = compared(rows_of(reported(handles=1)), reported(handles=2))
    (handle,) = diff.handles
    assert (handle["deployable_id"], handle["device_id"]) == (1, 1)
    # The number of units changes with it.
    assert diff.changes == [(Deployable, 1, {"num_accelerators": 2})]


def test_attributes_follow_the_report() -> None:
    device = reported()
    (deployable,) = device.deployables
    first, *others = deployable.attributes
    added = facts.Attribute("trait9", "CUSTOM_NEW")
    changed = replace(device, deployables=(replace(deployable, attributes=(*others, added)),))
    diff = compared(rows_of(device), changed)
    assert diff.gone_attributes == {1}
    assert [(row["key"], row["value"], row["deployable_id"]) for row in diff.attributes] == [
        ("trait9", "CUSTOM_NEW", 1)
    ]
    assert first.key == "rc"
    assert Attribute not in diff.lost


def test_an_operator_created_device_keeps_its_facts() -> None:
    """The driver decides whether the device is present and whether a bind needs preparation."""
    device = reported()
    stored = rows_of(device, lost_ms=5)
    (deployable,) = device.deployables
    changed = replace(device, model="other", deployables=(replace(deployable, prepare=True),))
    diff = DeviceDiff(1, HOST, frozenset())
    diff.compare_created(stored.devices[0], changed, stored)
    assert diff.changes == [(Deployable, 1, {"prepare": True})]
    assert diff.returned == {Device: {1}}


def test_a_device_that_an_operator_deletes_is_not_restored() -> None:
    device = reported()
    stored = rows_of(device, lost_ms=5)
    stored.devices[0].being_removed = True
    diff = DeviceDiff(1, HOST, frozenset())
    diff.compare_created(stored.devices[0], device, stored)
    assert not diff


@pytest.mark.parametrize(
    ("auto_enable", "waiting"), [(frozenset(), 1), (frozenset({DRIVER}), 0), (frozenset({"*"}), 0)]
)
def test_a_new_device_waits_unless_auto_enable_names_its_driver(
    auto_enable: frozenset[str], waiting: int
) -> None:
    diff = DeviceDiff(1, HOST, auto_enable)
    diff.add_device(DRIVER, reported(), "uuid")
    assert diff.waiting == waiting
    assert [action for _, action, _ in diff.history] == ["discovered"]
