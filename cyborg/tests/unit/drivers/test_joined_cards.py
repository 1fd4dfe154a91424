# SPDX-License-Identifier: Apache-2.0
"""Cards of one board that share internal links: a guest gets all of them, or each alone."""

from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.amd_gpu import AmdGpuDriver
from cyborg.drivers.card_driver import ListedCardDriver
from cyborg.drivers.habana import HabanaDriver
from cyborg.drivers.scan import Scan
from cyborg.model.work import HandleTask
from cyborg.testing import scenario_hosts, situations
from cyborg.testing.driver_checks import change, check_device, look
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.unit.drivers.configured import written

HOSTS = [(HabanaDriver, "gaudi3"), (AmdGpuDriver, "mi300x")]


def driver_on(
    kind: type[ListedCardDriver], host: FakeHost, tmp_path: Path, *lines: str
) -> ListedCardDriver:
    text = "\n".join((f"[{kind.group}]", *lines, ""))
    return kind(host, written(tmp_path / "cyborg.conf", text))


@pytest.mark.parametrize(("kind", "name"), HOSTS)
def test_guest_gets_all_cards_of_the_host_with_the_option(
    tmp_path: Path, kind: type[ListedCardDriver], name: str
) -> None:
    host = scenario_hosts.load(name)
    single = look(driver_on(kind, host, tmp_path)).discover()
    assert len(single) == 8
    driver = driver_on(kind, host, tmp_path, "group_size = 8")
    (device,) = look(driver).discover()
    check_device(device)
    (unit,) = device.deployables
    assert unit.group_size == 8
    assert [handle.key for handle in unit.handles] == [card.key for card in single]
    assert (device.key, unit.name) == (single[0].key, single[0].deployables[0].name)
    (item,) = [item for item in look(driver).hardware() if item.offered]
    assert item.capability["functions"] == [card.key for card in single]
    # The privileged process may reset all of them.
    assert {str(address) for address in driver.functions(Scan(host))} == {
        card.key for card in single
    }


@pytest.mark.parametrize(("kind", "name"), HOSTS)
def test_no_card_is_offered_while_one_is_missing_or_in_use(
    tmp_path: Path, kind: type[ListedCardDriver], name: str
) -> None:
    host = scenario_hosts.load(name)
    driver = driver_on(kind, host, tmp_path, "group_size = 8")
    (device,) = look(driver).discover()
    last = device.deployables[0].handles[-1].key
    situations.hold(host, last)
    assert look(driver).discover() == []
    host = scenario_hosts.load(name)
    host.remove(f"/sys/bus/pci/devices/{last}")
    driver = driver_on(kind, host, tmp_path, "group_size = 8")
    assert look(driver).discover() == []
    reasons = {item.reason for item in look(driver).hardware()}
    assert reasons == {"7 whole cards are there; option group_size is 8"}


@pytest.mark.parametrize(("kind", "name"), HOSTS)
def test_each_card_of_the_group_is_reset_after_the_guest(
    tmp_path: Path, kind: type[ListedCardDriver], name: str
) -> None:
    host = scenario_hosts.load(name)
    driver = driver_on(kind, host, tmp_path, "group_size = 8")
    (device,) = look(driver).discover()
    (unit,) = device.deployables
    if unit.clean is None:
        return
    for handle in unit.handles:
        change(
            driver, "release", HandleTask("o", driver.name, device.key, unit.name, handle.key, "u")
        )
    assert isinstance(host.kernel, SimulatedKernel)
    assert {handle.key for handle in unit.handles} <= set(host.kernel.functions.resets)


def test_health_of_the_group_is_that_of_all_cards(tmp_path: Path) -> None:
    host = scenario_hosts.load("mi300x")
    driver = driver_on(AmdGpuDriver, host, tmp_path, "group_size = 8")
    (device,) = look(driver).discover()
    last = device.deployables[0].handles[-1].key
    place = host.realpath(f"/sys/bus/pci/devices/{last}")
    host.add_file(f"{place}/ras/umc_err_count", "ue: 2\nce: 7\n")
    evidence = look(driver).health(device.key).evidence
    assert evidence == (f"{last}: 2 uncorrectable errors in block umc",)
    with pytest.raises(exception.DriverCannot):
        driver.stats(Scan(host), device.key)


def test_card_that_cannot_be_read_does_not_hide_the_fault_of_another(tmp_path: Path) -> None:
    host = scenario_hosts.load("mi300x")
    driver = driver_on(AmdGpuDriver, host, tmp_path, "group_size = 8")
    (device,) = look(driver).discover()
    keys = [handle.key for handle in device.deployables[0].handles]
    for key, text in ((keys[0], "Query currently inaccessible"), (keys[-1], "ue: 2\nce: 7")):
        place = host.realpath(f"/sys/bus/pci/devices/{key}")
        host.add_file(f"{place}/ras/umc_err_count", f"{text}\n")
    told: list[str] = []

    signals = driver.signals(Scan(host), device.key)
    with pytest.raises(exception.HostError, match="umc_err_count"):
        told.extend(signal.evidence for signal in signals)
    assert told == [f"{keys[-1]}: 2 uncorrectable errors in block umc"]


def test_option_and_virtual_functions_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(exception.ConfigError, match="exclude each other"):
        driver_on(
            AmdGpuDriver,
            scenario_hosts.load("mi300x"),
            *(tmp_path, "group_size = 8", "virtual_functions = 2"),
        )
