# SPDX-License-Identifier: Apache-2.0
"""Partitions of an NVSwitch fabric: a guest gets the GPUs of one, which is active meanwhile."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.drivers import nvidia_fabric
from cyborg.drivers.base import Driver
from cyborg.drivers.command import Completed
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device
from cyborg.model.work import HandleTask, Unit
from cyborg.testing import scenario_hosts, servers, situations
from cyborg.testing.driver_checks import change, look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.simulated_fabric import (
    FMPM,
    GPUS,
    PARTITIONS,
    FabricManager,
    options,
)
from cyborg.tests.unit.drivers.test_nvidia_gpu import Nvml

#: The two partitions of four GPUs.
LOW, HIGH = (tuple(sorted(GPUS[module] for module in PARTITIONS[number])) for number in (1, 2))


@pytest.fixture
def manager() -> FabricManager:
    return FabricManager()


@pytest.fixture
def host(manager: FabricManager) -> FakeHost:
    return manager.install(scenario_hosts.load("hgx-b200"))


@pytest.fixture
def driver(host: FakeHost, tmp_path: Path) -> NvidiaGpuDriver:
    """A driver for partitions of four GPUs."""
    return driver_on(host, tmp_path, options(4))


def driver_on(host: FakeHost, tmp_path: Path, text: str) -> NvidiaGpuDriver:
    return NvidiaGpuDriver(host, written(tmp_path / "cyborg.conf", text))


def found(driver: Driver) -> dict[str, Device]:
    return {device.key: device for device in look(driver).discover()}


def reasons(driver: Driver) -> dict[str, str | None]:
    return {item.key: item.reason for item in look(driver).hardware() if not item.offered}


def tasks(gpus: tuple[str, ...]) -> list[HandleTask]:
    name = f"compute-1_{gpus[0]}"
    return [
        HandleTask("r", NvidiaGpuDriver.name, gpus[0], name, gpu, f"uuid-{gpu}") for gpu in gpus
    ]


def units(gpus: tuple[str, ...]) -> set[Unit]:
    return {task.unit for task in tasks(gpus)}


def changes(host: FakeHost) -> list[tuple[str, ...]]:
    """Return the arguments of the commands that change a partition."""
    return [words[1:] for words in host.commands if words[0] == FMPM and words[1] != "-l"]


@pytest.mark.proves("nvidia_gpu_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.parametrize("size", [2, 4])
class TestContract(DriverContract):
    """The driver contract; each call of prepare and release is interrupted."""

    commands_in_discover = True
    selects_by_address = True

    @pytest.fixture(autouse=True)
    def _options(self, tmp_path: Path, size: int) -> None:
        self.tmp_path, self.size = tmp_path, size

    def make_host(self) -> FakeHost:
        host = FabricManager().install(scenario_hosts.load("hgx-b200"))
        for gpu in GPUS.values():
            # An interrupted choice between two methods leaves one: the subject of other tests.
            host.write_text(f"/sys/bus/pci/devices/{gpu}/reset_method", "flr")
        host.writes.clear()
        return host

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path, options(self.size))


@pytest.mark.parametrize(("size", "numbers"), [(1, range(7, 15)), (2, range(3, 7)), (8, [0])])
def test_guests_get_the_gpus_of_one_partition(
    host: FakeHost, tmp_path: Path, size: int, numbers: list[int]
) -> None:
    devices = found(driver_on(host, tmp_path, options(size)))
    groups = {
        device.key: [handle.key for handle in device.deployables[0].handles]
        for device in devices.values()
    }
    expected = [sorted(GPUS[module] for module in PARTITIONS[number]) for number in numbers]
    assert groups == {gpus[0]: gpus for gpus in expected}
    for device in devices.values():
        [unit] = device.deployables
        assert (unit.name, unit.group_size, unit.prepare) == (f"compute-1_{device.key}", size, True)
        assert unit.resource_class == "PGPU"
        assert unit.traits == ("OWNER_CYBORG", "CUSTOM_NVIDIA_2901")


def test_gpus_of_a_partition_are_listed(driver: NvidiaGpuDriver) -> None:
    rows = {item.key: item for item in look(driver).hardware()}
    assert set(rows) == {LOW[0], HIGH[0]}
    assert (rows[LOW[0]].num, rows[LOW[0]].capability["functions"]) == (4, list(LOW))


def test_first_unit_activates_the_partition_and_the_others_find_it_active(
    driver: NvidiaGpuDriver, host: FakeHost, manager: FabricManager
) -> None:
    assert look(driver).prepared() == []
    for task in tasks(HIGH):
        driver.prepare(task)
        assert manager.active(host) == [2]
        assert set(look(driver).prepared()) == units(HIGH)
    assert changes(host) == [("-a", "2")]


def test_partition_that_is_active_already_counts(
    driver: NvidiaGpuDriver, host: FakeHost, manager: FabricManager
) -> None:
    manager.set(host, 2, active=True)
    driver.prepare(tasks(HIGH)[0])
    assert changes(host) == []


def test_partition_that_becomes_active_meanwhile_counts(
    driver: NvidiaGpuDriver, host: FakeHost, manager: FabricManager
) -> None:
    """An answer that was lost, or another program: Fabric Manager says that it is in use."""

    def other(words: str) -> None:
        if words == f"{FMPM} -a 2":
            manager.set(host, 2, active=True)

    host.on_call = other
    driver.prepare(tasks(HIGH)[0])
    assert manager.active(host) == [2]


def test_two_guests_have_partitions_of_their_own(
    driver: NvidiaGpuDriver, host: FakeHost, manager: FabricManager
) -> None:
    for task in (*tasks(LOW), *tasks(HIGH)):
        driver.prepare(task)
    assert manager.active(host) == [1, 2]
    situations.hold(host, HIGH[1])
    for task in tasks(LOW):
        change(driver, "release", task)
    assert manager.active(host) == [2]
    assert set(look(driver).prepared()) == units(HIGH)
    assert changes(host) == [("-a", "1"), ("-a", "2"), ("-d", "1")]
    assert isinstance(host.kernel, SimulatedKernel)
    assert set(host.kernel.functions.resets) == set(LOW)


def test_offer_does_not_change_with_a_guest(
    driver: NvidiaGpuDriver, host: FakeHost, tmp_path: Path
) -> None:
    before = found(driver)
    for task in tasks(LOW):
        driver.prepare(task)
    for gpu in LOW:
        situations.hold(host, gpu)
    managed = {f"compute-1_{gpus[0]}" for gpus in (LOW, HIGH)}
    again = driver_on(host, tmp_path, options(4))
    devices = again.discover(Scan(host, managed_deployables=managed))
    assert {device.key: device for device in devices} == before
    # Without its guest's record the partition is in use.
    assert set(found(again)) == {HIGH[0]}


def test_partition_stays_while_a_process_has_one_of_its_gpus(
    driver: NvidiaGpuDriver, host: FakeHost, manager: FabricManager
) -> None:
    for task in tasks(LOW):
        driver.prepare(task)
    situations.hold(host, LOW[2])
    for task in tasks(LOW):
        with pytest.raises(exception.DriverFailed) as caught:
            driver.release(task)
        assert f"{LOW[2]} of partition 1 is held through VFIO by " in str(caught.value)
    assert manager.active(host) == [1]
    assert ("-d", "1") not in changes(host)


def test_partition_stays_while_its_users_are_not_known(
    driver: NvidiaGpuDriver, host: FakeHost, manager: FabricManager
) -> None:
    driver.prepare(tasks(LOW)[0])
    host.remove("/proc/self/ns/pid")
    host.add_link("/proc/self/ns/pid", "pid:[4026532000]")
    with pytest.raises(exception.DriverFailed, match="who uses partition 1 is not known"):
        driver.release(tasks(LOW)[0])
    assert manager.active(host) == [1]


def test_failed_activation_says_what_the_command_says(
    driver: NvidiaGpuDriver, host: FakeHost, manager: FabricManager
) -> None:
    manager.broken.add(2)
    with pytest.raises(exception.DriverFailed) as caught:
        driver.prepare(tasks(HIGH)[3])
    assert caught.value.fields["reason"] == (
        f"{HIGH[3]}: partition 2 is not active after {FMPM} -a 2: it ended with status 254: Failed "
        "to activate partition. fmReturn: -2"
    )


def test_failed_deactivation_is_a_failed_release(
    driver: NvidiaGpuDriver, host: FakeHost, manager: FabricManager
) -> None:
    driver.prepare(tasks(HIGH)[0])
    manager.broken.add(2)
    with pytest.raises(exception.DriverFailed, match="partition 2 is still active after"):
        driver.release(tasks(HIGH)[0])
    manager.broken.clear()
    driver.release(tasks(HIGH)[0])
    driver.release(tasks(HIGH)[1])
    assert manager.active(host) == []


def test_command_that_hangs_ends_at_its_deadline(
    driver: NvidiaGpuDriver, host: FakeHost, manager: FabricManager
) -> None:
    def hang(words: str) -> None:
        host.hanging = words.startswith(f"{FMPM} -a")

    host.on_call = hang
    with pytest.raises(
        exception.DriverFailed, match=f"running {FMPM} failed: it did not end in time"
    ):
        driver.prepare(tasks(HIGH)[0])
    assert host.patience[-1] == 60
    assert manager.active(host) == []


def test_nothing_is_offered_while_fabric_manager_is_silent(
    driver: NvidiaGpuDriver, host: FakeHost, manager: FabricManager
) -> None:
    manager.stopped = True
    assert found(driver) == {}
    said = reasons(driver)
    assert set(said) == set(GPUS.values())
    text = str(said[LOW[0]])
    assert text.startswith("Fabric Manager does not tell its partitions: ")
    assert "Failed to connect to Fabric Manager instance" in text
    for verb in (driver.prepare, driver.release):
        with pytest.raises(exception.DriverFailed, match="Failed to connect"):
            verb(tasks(LOW)[0])
    with pytest.raises(exception.DriverFailed, match="Failed to connect"):
        look(driver).prepared()
    # Root still lists them for the privileged process.
    assert {str(address) for address in driver.functions(Scan(host))} == set(GPUS.values())


def test_program_that_others_can_change_is_not_run(driver: NvidiaGpuDriver, host: FakeHost) -> None:
    host.foreign.add(FMPM)
    assert found(driver) == {}
    assert "others than root can change" in str(reasons(driver)[LOW[0]])
    assert host.commands == []


def test_active_partition_of_another_size_is_in_the_way(
    driver: NvidiaGpuDriver, host: FakeHost, manager: FabricManager
) -> None:
    manager.set(host, 5, active=True)
    assert set(found(driver)) == {LOW[0]}
    assert reasons(driver) == dict.fromkeys(
        HIGH,
        "its module 5 belongs to partition 5 of 2 GPUs, which is active; end it with "
        f"{FMPM} -d 5 if nobody uses it",
    )
    with pytest.raises(exception.DriverFailed, match="belongs to partition 5"):
        driver.prepare(tasks(HIGH)[0])
    assert look(driver).prepared() == []
    # What a guest has left before the option was changed goes with its release.
    driver.release(tasks((GPUS[7],))[0])
    assert manager.active(host) == []


@pytest.mark.parametrize(
    ("change", "gpu", "reason"),
    [
        (
            lambda manager: manager.partitions.pop(2),
            GPUS[5],
            "Fabric Manager has no partition of 4 GPUs with its module 5",
        ),
        (
            lambda manager: manager.partitions.update({15: (5, 6, 1, 2)}),
            GPUS[7],
            "partitions 2 and 15 of 4 GPUs both have module 5",
        ),
        (
            lambda manager: manager.places.update({5: "00000000:DB:00.0"}),
            GPUS[8],
            (
                f"Fabric Manager says that module 5 is {GPUS[6]}, and option fabric_modules that "
                f"it is {GPUS[5]}"
            ),
        ),
    ],
)
def test_gpu_without_a_known_partition_is_listed_with_the_reason(
    driver: NvidiaGpuDriver,
    manager: FabricManager,
    change: Callable[[FabricManager], Any],
    gpu: str,
    reason: str,
) -> None:
    change(manager)
    parts = [part for device in found(driver).values() for part in device.deployables]
    assert GPUS[5] not in {handle.key for part in parts for handle in part.handles}
    assert reasons(driver)[gpu] == reason
    with pytest.raises(exception.DriverFailed):
        driver.prepare(tasks((gpu,))[0])


def test_addresses_that_fabric_manager_confirms_are_fine(
    driver: NvidiaGpuDriver, manager: FabricManager
) -> None:
    manager.places = {module: f"0000{address}".upper() for module, address in GPUS.items()}
    assert set(found(driver)) == {LOW[0], HIGH[0]}


def test_partition_with_a_missing_gpu_is_not_offered(
    driver: NvidiaGpuDriver, host: FakeHost
) -> None:
    situations.unplug(host, LOW[1])
    assert set(found(driver)) == {HIGH[0]}
    text = f"its partition 1 also has {LOW[1]}, which is not on the bus as a whole GPU"
    assert reasons(driver) == dict.fromkeys((LOW[0], *LOW[2:]), text)


def test_partition_with_a_gpu_in_use_is_not_offered(
    driver: NvidiaGpuDriver, host: FakeHost
) -> None:
    situations.hold(host, HIGH[1])
    assert set(found(driver)) == {LOW[0]}
    assert f"guests get it together with {HIGH[1]}" in str(reasons(driver)[HIGH[0]])


def test_gpu_that_the_option_does_not_name_is_not_offered(
    host: FakeHost, tmp_path: Path, manager: FabricManager
) -> None:
    modules = ", ".join(f"{GPUS[module]}={module}" for module in PARTITIONS[1])
    driver = driver_on(host, tmp_path, options(4, fabric_modules=modules))
    assert set(found(driver)) == {LOW[0]}
    assert reasons(driver) == dict.fromkeys(HIGH, "option fabric_modules does not name it")
    manager.set(host, 2, active=True)
    assert look(driver).prepared() == []


def test_without_the_options_each_gpu_is_offered_alone(host: FakeHost, tmp_path: Path) -> None:
    driver = driver_on(host, tmp_path, "")
    devices = found(driver)
    assert set(devices) == set(GPUS.values())
    assert not any(device.deployables[0].prepare for device in devices.values())
    assert host.commands == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fabric_partition_size": ""}, "set all of them, or none"),
        (
            {"fabric_command": "fmpm"},
            "fabric_command: 'fmpm' is not the absolute path of a program",
        ),
        ({"fabric_command": f"{FMPM} {{address}}"}, "fabric_command: it has a placeholder"),
        ({"fabric_modules": "3a:00.0=1"}, "'3a:00.0' is not a PCI address with domain"),
        ({"fabric_modules": f"{GPUS[1]}"}, "does not end with = and the number of a module"),
        ({"fabric_modules": f"{GPUS[1]}=x"}, "does not end with = and the number of a module"),
        ({"fabric_modules": f"{GPUS[1]}=1, {GPUS[1]}=2"}, "an address or a module that is there"),
        ({"fabric_modules": f"{GPUS[1]}=1, {GPUS[2]}=1"}, "an address or a module that is there"),
        ({"fabric_modules": f"{GPUS[1]}=1"}, "1 GPUs are not partitions of 4 GPUs"),
        ({"mig_layouts": f"{GPUS[1]}=off"}, f"{GPUS[1]} is in mig_layouts, too"),
    ],
)
def test_driver_does_not_start_with_options_that_cannot_be_used(
    host: FakeHost, tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    with pytest.raises(exception.ConfigError) as caught:
        driver_on(host, tmp_path, options(4, **change))
    assert reason in str(caught.value)


def test_fixed_arguments_come_before_those_of_the_driver(host: FakeHost, tmp_path: Path) -> None:
    socket = f"{FMPM} --unix-domain-socket /run/fm/socket"
    driver = driver_on(host, tmp_path, options(4, fabric_command=socket))
    found(driver)
    assert host.commands == [(FMPM, "--unix-domain-socket", "/run/fm/socket", "-l")]


@pytest.mark.parametrize(
    "output",
    [
        "",
        "[]",
        "{}",
        '{"partitionInfo": 1}',
        '{"partitionInfo": [1]}',
        '{"partitionInfo": [{"partitionId": true, "isActive": 0, "gpuInfo": [{"physicalId": 1}]}]}',
        '{"partitionInfo": [{"partitionId": 64, "isActive": 0, "gpuInfo": [{"physicalId": 1}]}]}',
        '{"partitionInfo": [{"partitionId": 1, "isActive": 2, "gpuInfo": [{"physicalId": 1}]}]}',
        '{"partitionInfo": [{"partitionId": 1, "isActive": 0, "gpuInfo": []}]}',
        '{"partitionInfo": [{"partitionId": 1, "isActive": 0, "gpuInfo": [{"physicalId": "1"}]}]}',
        '{"partitionInfo": [{"partitionId": 1, "isActive": 0, "gpuInfo": [7, {"physicalId": 1}]}]}',
        json.dumps(
            {
                "partitionInfo": [
                    {"partitionId": 1, "isActive": 0, "gpuInfo": [{"physicalId": module}]}
                    for module in (1, 2)
                ]
            }
        ),
    ],
)
def test_output_that_is_no_list_of_partitions_offers_nothing(
    driver: NvidiaGpuDriver, host: FakeHost, output: str
) -> None:
    with pytest.raises(exception.HostError, match="reading the output of fmpm"):
        nvidia_fabric.parse(output, "fmpm")
    host.programs[FMPM] = lambda host, argv: Completed(0, output, "")
    assert found(driver) == {}
    assert "Fabric Manager does not tell its partitions" in str(reasons(driver)[LOW[0]])


@pytest.fixture
def asked(manager: FabricManager) -> tuple[FakeHost, Nvml]:
    """A host whose driver nvidia has the GPUs, so that NVML tells about them."""
    host = manager.install(servers.bare())
    for gpu in GPUS.values():
        servers.add_function(host, gpu, "10de:2901:030200", driver="nvidia")
    program = Nvml()
    host.programs[sys.executable] = program
    return host, program


def test_health_of_a_partition_is_that_of_all_its_gpus(
    asked: tuple[FakeHost, Nvml], tmp_path: Path, manager: FabricManager
) -> None:
    host, program = asked
    driver = driver_on(host, tmp_path, options(4))
    assert look(driver).health(LOW[0]).evidence == ()
    program.facts[LOW[2]] = {"remap_failure": True}
    text = f"{LOW[2]}: a row of its memory could not be remapped"
    assert look(driver).health(LOW[0]).evidence == (text,)
    assert look(driver).health(HIGH[0]).evidence == ()
    with pytest.raises(exception.DriverCannot, match="several GPUs"):
        driver.stats(Scan(host), LOW[0])
    manager.stopped = True
    with pytest.raises(exception.DriverFailed, match="does not tell its partitions"):
        look(driver).health(LOW[0])


def test_single_gpus_of_a_fabric_are_measured_and_asked_alone(
    asked: tuple[FakeHost, Nvml], tmp_path: Path, manager: FabricManager
) -> None:
    host, program = asked
    program.facts[LOW[1]] = {"temperature": 41, "remap_failure": True}
    manager.stopped = True
    driver = driver_on(host, tmp_path, options(1))
    assert driver.stats(Scan(host), LOW[1]) == {"temperature_celsius": 41}
    assert look(driver).health(LOW[1]).evidence == ("a row of its memory could not be remapped",)


def test_lasting_settings_of_each_gpu_of_a_partition_are_compared(
    asked: tuple[FakeHost, Nvml], tmp_path: Path
) -> None:
    host, program = asked
    program.facts |= {gpu: {"vbios": f"97.00.{place}"} for place, gpu in enumerate(LOW)}
    driver = driver_on(host, tmp_path, options(4))
    values = [driver.settings(Scan(host), LOW[0], gpu)["firmware"] for gpu in LOW]
    assert values == [f"97.00.{place}" for place in range(4)]


def test_partition_of_a_gpu_that_has_left_the_bus_is_deactivated(
    driver: NvidiaGpuDriver, host: FakeHost, manager: FabricManager
) -> None:
    driver.prepare(tasks(LOW)[0])
    situations.unplug(host, LOW[1])
    driver.release(tasks(LOW)[1])
    assert manager.active(host) == []
