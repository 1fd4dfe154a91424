# SPDX-License-Identifier: Apache-2.0
"""Several mediated devices of one function, and functions below each other."""

from pathlib import Path

from cyborg.drivers.scan import Scan
from cyborg.testing import servers
from cyborg.tests.unit.drivers.test_mdev import (
    OTHER,
    PARENT,
    SMALL,
    STRANGER,
    UUID,
    conf_of,
    driver_on,
    host_with_parents,
    make,
    numbers,
    task,
)


def test_release_of_one_unit_keeps_another_that_was_prepared(tmp_path: Path) -> None:
    """Both were bound since the agent asked the conductor for the handles."""
    host = host_with_parents()
    driver = driver_on(host, tmp_path, conf_of(driver="create = prepare"))
    driver.attach_handles = {}
    before = numbers(driver, managed=True)
    units = [task(2), task(3, uuid=STRANGER)]
    for unit in units:
        driver.prepare(unit)
    assert numbers(driver, managed=True) == before
    driver.release(units[1])
    # The device of the other one is no left-over, and its number stays.
    assert numbers(driver, managed=True) == before
    assert [unit.handle_key for unit in driver.prepared(Scan(host))] == [UUID]


def test_mediated_devices_of_another_parent_take_no_units(tmp_path: Path) -> None:
    host = host_with_parents()
    driver = driver_on(host, tmp_path)
    before = numbers(driver)
    make(host, UUID, SMALL, OTHER)
    assert numbers(driver) == before


def test_mediated_device_of_a_virtual_function_is_none_of_its_card(tmp_path: Path) -> None:
    host = host_with_parents()
    before = numbers(driver_on(host, tmp_path))
    below = f"{host.realpath(f'/sys/bus/pci/devices/{PARENT}')}/{OTHER[:-1]}1"
    host.add_link(f"{below}/{STRANGER}/mdev_type", f"../mdev_supported_types/{SMALL}")
    host.add_link(f"/sys/bus/mdev/devices/{STRANGER}", f"{below}/{STRANGER}")
    assert servers.place(PARENT) in host.realpath(f"/sys/bus/mdev/devices/{STRANGER}")
    assert numbers(driver_on(host, tmp_path)) == before
