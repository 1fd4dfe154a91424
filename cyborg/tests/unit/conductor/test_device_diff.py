# SPDX-License-Identifier: Apache-2.0
"""The difference between a report and the rows of its host, without a database."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cyborg.conductor.reports.comparison import Comparison
from cyborg.conductor.reports.device_diff import DeviceAction, DeviceDiff, Path, StoredDevices
from cyborg.model import device as facts
from cyborg.tests.fixtures.host_reports import DRIVER, report_of

HOST = "compute"
UUID = "uuid-of-device"
TABLES = ("devices", "deployables", "handles", "attributes")
#: A time at which a row was lost, and the mark of an operator who had it removed.
MOMENTS = [1_700_000_000_000, 0]


def reported(handles: int = 2) -> facts.Device:
    """Return the only device of a host."""
    (driver,) = report_of(HOST, 1, handles=handles).drivers
    (device,) = driver.devices
    return device


def rows_of(device: facts.Device, lost_ms: int | None = None) -> StoredDevices:
    """Return the rows of a device that is stored exactly as reported."""
    new = DeviceDiff(1, HOST, frozenset({"*"}), StoredDevices())
    new.add_device(DRIVER, device, UUID)
    stored = StoredDevices(devices=rows(new.devices, lost_ms, uuid=UUID))
    ((_, name),) = new.deployables.reported
    (stored.deployables[1][name],) = rows(new.deployables, lost_ms, name=name)
    for path, row in zip(new.handles.reported, rows(new.handles, lost_ms), strict=True):
        stored.handles[1][path[-1]] = row
    for path, row in zip(new.attributes.reported, rows(new.attributes, None), strict=True):
        stored.attributes[1][path[-2:]] = row
    return stored


def rows(table: Comparison[Path, Any], lost_ms: int | None, **facts: Any) -> list[Any]:
    """Return rows with the columns that were found, and ids from 1."""
    common = {"lost_ms": lost_ms, "being_removed": False, **facts}
    return [
        SimpleNamespace(**columns, **common, id=number)
        for number, columns in enumerate(table.reported.values(), start=1)
    ]


def compared(stored: StoredDevices, device: facts.Device, driver: str = DRIVER) -> DeviceDiff:
    """Return the difference when ``driver`` reports this as the host's device."""
    diff = DeviceDiff(1, HOST, frozenset(), stored)
    diff.compare_device(stored.devices[0], driver, device)
    return diff


def without_device(stored: StoredDevices) -> DeviceDiff:
    """Return the difference when the host's device is not reported."""
    diff = DeviceDiff(1, HOST, frozenset(), stored)
    diff.lose_device(stored.devices[0])
    return diff


def differences(diff: DeviceDiff) -> dict[str, Any]:
    """Return what would be written: the tables with something, and what that is."""
    tables = {name: getattr(diff, name) for name in TABLES}
    kinds = {
        f"{kind} {name}": [*getattr(table, kind)]
        for name, table in tables.items()
        for kind in ("added", "changed", "lost", "returned")
        if name != "attributes" or kind == "added"
    }
    kinds["gone attributes"] = [row.id for row in diff.attributes.missing]
    return {kind: entries for kind, entries in kinds.items() if entries}


def without_deployables(device: facts.Device) -> facts.Device:
    return replace(device, deployables=())


def test_no_difference_for_an_unchanged_device() -> None:
    device = reported()
    diff = compared(rows_of(device), device)
    assert differences(diff) == {}
    assert diff.history == []
    assert diff.uuids() == {(DRIVER, device.key): UUID}


def test_rows_that_are_not_reported_are_marked_lost() -> None:
    device = reported()
    stored = rows_of(device)
    assert differences(compared(stored, reported(handles=1))) == {
        "changed deployables": [(1, {"num_accelerators": 1})],
        "lost handles": [2],
    }
    # Handles and attributes of the deployable stay as they are.
    assert differences(compared(stored, without_deployables(device))) == {"lost deployables": [1]}


@pytest.mark.parametrize("moment", MOMENTS)
def test_lost_rows_that_are_not_reported_keep_their_mark(moment: int) -> None:
    """Else each report would restart the retention and overwrite the mark of an operator."""
    device = reported()
    stored = rows_of(device)
    for row in [*stored.handles[1].values()][1:]:
        row.lost_ms = moment
    assert compared(stored, reported(handles=1)).handles.lost == []
    (deployable,) = stored.deployables[1].values()
    deployable.lost_ms = moment
    assert differences(compared(stored, without_deployables(device))) == {}
    stored.devices[0].lost_ms = moment
    diff = without_device(stored)
    assert differences(diff) == {}
    assert diff.history == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_lost_rows_that_are_reported_are_restored(moment: int) -> None:
    device = reported()
    diff = compared(rows_of(device, lost_ms=moment), device)
    assert differences(diff) == {
        "returned devices": [1],
        "returned deployables": [1],
        "returned handles": [1, 2],
    }
    assert diff.history == [DeviceAction(UUID, "found again", "enabled")]


def test_a_lost_device_is_recorded_in_the_history() -> None:
    diff = without_device(rows_of(reported()))
    assert differences(diff) == {"lost devices": [1]}
    assert diff.history == [DeviceAction(UUID, "lost")]


def test_only_changed_facts_are_written() -> None:
    device = reported()
    (deployable,) = device.deployables
    changed = replace(
        device,
        model="newer",
        deployables=(replace(deployable, prepare=True, programmable=True, group_size=2),),
    )
    assert differences(compared(rows_of(device), changed)) == {
        "changed devices": [(1, {"model": "newer"})],
        "changed deployables": [(1, {"prepare": True, "programmable": True, "group_size": 2})],
    }


def test_a_device_keeps_its_row_when_another_driver_reports_it() -> None:
    device = reported()
    diff = compared(rows_of(device), device, driver="other_driver")
    assert differences(diff) == {"changed devices": [(1, {"driver": "other_driver"})]}
    assert diff.uuids() == {("other_driver", device.key): UUID}


def test_a_new_unit_is_added_to_its_deployable() -> None:
    device = reported(handles=2)
    (deployable,) = device.deployables
    assert differences(compared(rows_of(reported(handles=1)), device)) == {
        # The number of units changes with it.
        "changed deployables": [(1, {"num_accelerators": 2})],
        "added handles": [(UUID, deployable.name, deployable.handles[1].key)],
    }


def test_attributes_follow_the_report() -> None:
    device = reported()
    (deployable,) = device.deployables
    first, *others = deployable.attributes
    added = facts.Attribute("trait9", "CUSTOM_NEW")
    changed = replace(device, deployables=(replace(deployable, attributes=(*others, added)),))
    assert first.key == "rc"
    assert differences(compared(rows_of(device), changed)) == {
        "gone attributes": [1],
        "added attributes": [(UUID, deployable.name, "trait9", "CUSTOM_NEW")],
    }


def test_an_operator_created_device_keeps_its_facts() -> None:
    """The driver decides whether the device is present and whether a bind needs preparation."""
    device = reported()
    stored = rows_of(device, lost_ms=5)
    (deployable,) = device.deployables
    changed = replace(device, model="other", deployables=(replace(deployable, prepare=True),))
    diff = DeviceDiff(1, HOST, frozenset(), stored)
    diff.compare_created(stored.devices[0], changed)
    assert differences(diff) == {
        "changed deployables": [(1, {"prepare": True})],
        "returned deployables": [1],
        "returned devices": [1],
    }


def test_a_device_that_an_operator_deletes_is_not_restored() -> None:
    device = reported()
    stored = rows_of(device, lost_ms=5)
    stored.devices[0].being_removed = True
    diff = DeviceDiff(1, HOST, frozenset(), stored)
    diff.compare_created(stored.devices[0], device)
    assert differences(diff) == {}


@pytest.mark.parametrize(
    ("auto_enable", "waiting"), [(frozenset(), 1), (frozenset({DRIVER}), 0), (frozenset({"*"}), 0)]
)
def test_a_new_device_waits_unless_auto_enable_names_its_driver(
    auto_enable: frozenset[str], waiting: int
) -> None:
    diff = DeviceDiff(1, HOST, auto_enable, StoredDevices())
    diff.add_device(DRIVER, reported(), UUID)
    assert diff.waiting == waiting
    assert [change.action for change in diff.history] == ["discovered"]
