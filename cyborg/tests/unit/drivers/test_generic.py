# SPDX-License-Identifier: Apache-2.0
"""The generic_driver on simulated servers: the contract for each selector, and details."""

import logging
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.command import Completed
from cyborg.drivers.generic import GenericDriver, parse_stats
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.scan import Scan
from cyborg.model import creation
from cyborg.model.creation import Creation
from cyborg.model.device import AttachType, Backend, BackendService, Device, DeviceType, Topology
from cyborg.model.health import Condition, Judgement
from cyborg.model.work import HandleTask, ProgramTask, Unit
from cyborg.testing import servers
from cyborg.testing.driver_checks import change, look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import configured, written

PCI = "/sys/bus/pci/devices/"
UUID = "6d2f7a7e-3c0e-4a0b-8f0e-0a6a1d7c5b11"
#: A backend with almost every option, for two GPUs.
GPUS = """\
[generic_driver]
backends = gpus
[generic_driver:gpus]
pci_ids = 10de:*
pci_classes = 0302
resource_class = CUSTOM_GPU
traits = CUSTOM_FAST
device_type = GPU
kind = COMPUTE
services = decoder, tensor
capabilities = {"num": 2, "tensor": {"fp16": true}}
install_command = /usr/sbin/card setup {address}
ready_file = /run/card/{address}/ready
reboot_file = /run/card/{address}/reboot
prepare_command = /usr/sbin/card give {handle}
release_command = /usr/sbin/card take {handle}
reset_command = /usr/sbin/card wipe {handle}
prepared_file = /run/card/{handle}/given
health_command = /usr/sbin/card health {address}
stats_command = /usr/sbin/card stats {address}
"""
#: A backend with a class of sysfs and a ready_command.
ACCELS = """\
[generic_driver]
backends = accels
[generic_driver:accels]
sysfs_class = accel
resource_class = CUSTOM_ACCEL
attach_type = MDEV
mdev_type = fpga-4
units = 4
install_command = /usr/sbin/card setup {address}
ready_command = /usr/sbin/card ready {address}
"""
#: Devices that the configuration declares.
DECLARED = """\
[generic_driver]
backends = one, two
[generic_driver:one]
devices = 0000:0a:00.0, 0000:0b:00.0
attach_type = TEST_PCI
units = 9
resource_class = FPGA
program_command = /usr/sbin/card load {address} {image}
program_timeout = 500
[generic_driver:two]
devices = 0000:0c:00.0
attach_type = TEST_PCI
resource_class = CUSTOM_TWO
model = Number two
ready_file = /run/two
"""


def card(host: FakeHost, argv: tuple[str, ...]) -> Completed:
    """Simulate the operator's program; its results are files below /run/card."""
    _, verb, what, *_ = argv
    place = f"/run/card/{what}"
    match verb:
        case "setup":
            host.add_file(f"{place}/ready", "")
        case "ready":
            return Completed(0 if host.exists(f"{place}/ready") else 1, "", "")
        case "give":
            host.add_file(f"{place}/given", "")
        case "take":
            host.remove(f"{place}/given")
            if host.exists(place) and not host.list_dir(place):
                host.remove(place)
        case "wipe":
            pass
        case "stats":
            return Completed(0, "temperature_celsius 41.5\nutilisation 0\n", "")
        case "health":
            broken = host.exists(f"{place}/broken")
            return Completed(int(broken), "", "uncorrectable errors\n" if broken else "")
    return Completed(0, "", "")


def mdevs(address: str, name: str) -> str:
    """The path of a file about the mediated devices of a card."""
    return f"{servers.place(address)}/mdev_supported_types/{name}"


def server() -> FakeHost:
    host = servers.server()
    host.programs["/usr/sbin/card"] = card
    host.add_dir("/run/card")
    host.add_link("/sys/class/accel/accel0", f"../../..{servers.place(servers.FPGA)}/accel/accel0")
    host.add_dir(f"{servers.place(servers.FPGA)}/accel/accel0")
    host.add_file(mdevs(servers.FPGA, "fpga-4/available_instances"), "4\n")
    return host


class Contract(DriverContract):
    """The driver contract with one configuration."""

    text: str

    @pytest.fixture(autouse=True)
    def _configured(self, tmp_path: Path) -> None:
        self.conf = written(tmp_path / "cyborg.conf", self.text)

    def make_host(self) -> FakeHost:
        return server()

    def make_driver(self, host: FakeHost) -> Driver:
        return GenericDriver(host, self.conf)


@pytest.mark.proves("generic_driver", "discover", "health", by="simulated")
class TestGpus(Contract):
    text = GPUS

    def break_device(self, host: FakeHost, key: str) -> None:
        host.add_file(f"/run/card/{key}/broken", "")

    def mend_device(self, host: FakeHost, key: str) -> None:
        host.remove(f"/run/card/{key}/broken")


class TestAccels(Contract):
    text = ACCELS


class TestDeclared(Contract):
    text = DECLARED


class TestCatalogue(Contract):
    """Entries of the device catalogue: one is enabled, the section of the other has commands."""

    entries = """\
- name: gpus
  pci_ids: [10de:20b0-20ff]
  device_type: GPU
  resource_class: CUSTOM_GPU
  reset: FUNCTION
- name: fpgas
  pci_ids: [10ee:5001]
  device_type: FPGA
  model: Alveo
  resource_class: FPGA
  traits: [CUSTOM_FPGA_XILINX]
  capabilities: '{"memory": 64}'
  enable: true
"""
    text = """\
[generic_driver]
backends = gpus
devices_dir = {directory}
[generic_driver:gpus]
prepare_command = /usr/sbin/card give {{handle}}
release_command = /usr/sbin/card take {{handle}}
"""

    @pytest.fixture(autouse=True)
    def _configured(self, tmp_path: Path) -> None:
        (tmp_path / "cards.yaml").write_text(self.entries)
        text = self.text.format(directory=tmp_path)
        self.conf = written(tmp_path / "cyborg.conf", text)

    def test_entries_are_offered_by_name_or_when_enabled(self) -> None:
        host = self.make_host()
        driver = self.make_driver(host)
        devices = look(driver).discover()
        assert {device.key: device.backend for device in devices} == {
            servers.GPU: "gpus",
            servers.GPU_ON_VFIO: "gpus",
            servers.FPGA: "fpgas",
        }
        gpu, _, fpga = devices
        assert (gpu.type, gpu.deployables[0].prepare) == (DeviceType.GPU, True)
        assert (fpga.type, fpga.model) == (DeviceType.FPGA, "Alveo")
        assert fpga.deployables[0].traits == ("OWNER_CYBORG", "CUSTOM_FPGA_XILINX")
        capabilities = {entry.key: entry.capability for entry in look(driver).hardware()}
        assert capabilities[servers.GPU] == {"clean": [], "reset": "FUNCTION"}
        assert capabilities[servers.FPGA] == {"clean": [], "memory": 64}
        driver.prepare(task(servers.GPU))
        assert ran(host) == [f"give {servers.GPU}"]


class TestReset(Contract):
    """The kernel resets a function after each guest, and keeps nothing of the request."""

    text = """\
[generic_driver]
backends = gpu
[generic_driver:gpu]
pci_ids = 10de:*
resource_class = PGPU
reset = BUS
reset_after_release = true
"""

    def make_host(self) -> FakeHost:
        host = server()
        for address in (servers.GPU, servers.GPU_ON_VFIO):
            host.add_file(f"{host.realpath(PCI + address)}/reset", "")
            host.add_file(f"{host.realpath(PCI + address)}/reset_method", "bus")
        return host


class TestListed(Contract):
    text = f"""\
[generic_driver]
backends = list, rest
[generic_driver:list]
devices = {servers.NVME_FREE}, {servers.FPGA}
resource_class = CUSTOM_LISTED
[generic_driver:rest]
addresses = *:*:*.*
resource_class = CUSTOM_REST
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cyborg.conf"


def gpus(file: Path, host: FakeHost, more: str = "") -> GenericDriver:
    return GenericDriver(host, written(file, GPUS + more))


def task(address: str, handle: str | None = None) -> HandleTask:
    return HandleTask(
        request_key="operation",
        driver="generic_driver",
        device_key=address,
        deployable=f"compute-1_{address}",
        handle_key=handle or address,
        handle_uuid=UUID,
    )


def ran(host: FakeHost) -> list[str]:
    return [" ".join(argv[1:]) for argv in host.commands]


def test_a_device_has_the_values_of_its_backend(file: Path) -> None:
    driver = gpus(file, server(), "physical_network = physnet1\n")
    assert driver.device_type == "COMPUTE"
    first, second = look(driver).discover()
    assert (first.key, second.key) == (servers.GPU, servers.GPU_ON_VFIO)
    assert (first.type, first.vendor) == (DeviceType.GPU, "10de")
    assert first.model == "GA100 [A100 PCIe 80GB]"
    assert first.numa_node == 0
    assert first.topology == Topology(root_port=servers.ROOT_PORT)
    assert [(fact.kind, fact.value) for fact in first.identity] == [("address", servers.GPU)]
    assert first.backend == "gpus"
    (deployable,) = first.deployables
    assert deployable.name == f"compute-1_{servers.GPU}"
    assert (deployable.resource_class, deployable.driver_name) == ("CUSTOM_GPU", "gpus")
    assert deployable.traits == ("OWNER_CYBORG", "CUSTOM_FAST")
    assert deployable.prepare
    (handle,) = deployable.handles
    assert (handle.key, handle.type) == (servers.GPU, AttachType.PCI)
    assert handle.info == first.control_path | {"physical_network": "physnet1"}


def test_handles_of_mediated_devices_have_type_and_mark_for_nova(file: Path) -> None:
    (device,) = look(GenericDriver(server(), written(file, ACCELS))).discover()
    (deployable,) = device.deployables
    assert device.key == servers.FPGA
    assert len(deployable.handles) == 4
    assert deployable.handles[1].key == f"{servers.FPGA}/fpga-4_1"
    assert deployable.handles[1].info == {
        "domain": "0000",
        "bus": "af",
        "device": "00",
        "function": "0",
        "asked_type": "fpga-4",
        "vgpu_mark": "fpga-4_1",
    }
    assert not deployable.prepare


def test_a_function_has_the_same_deployable_name_in_both_drivers(file: Path) -> None:
    """The conductor has one deployable per name, so two drivers cannot both offer it."""
    host = server()
    (first, _) = look(gpus(file, host)).discover()
    pci = look(PciDriver(host, configured(f'{{"address": "{servers.GPU}"}}'))).discover()
    assert [device.deployables[0].name for device in pci] == [first.deployables[0].name]


def test_a_function_that_the_host_uses_is_never_offered(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    text = "[generic_driver]\nbackends = a\n[generic_driver:a]\nresource_class = CUSTOM_A\n"
    text += f"devices = {servers.NVME_MOUNTED}, {servers.NVME_FREE}, 0000:99:00.0\n"
    driver = GenericDriver(server(), written(file, text))
    for _ in range(2):
        assert [device.key for device in look(driver).discover()] == [servers.NVME_FREE]
    assert {entry.key: entry.reason for entry in look(driver).hardware()} == {
        servers.NVME_MOUNTED: "its disk nvme0n1p1 is mounted at /",
        servers.NVME_FREE: None,
        "0000:99:00.0": "it is not on the bus",
    }
    assert len(caplog.records) == 2
    # One that cannot be parsed is listed when its address is configured.
    host = server()
    host.add_file(f"{servers.place(servers.FPGA)}/vendor", "0xffff\n")
    text = "[generic_driver]\nbackends = a\n[generic_driver:a]\nresource_class = CUSTOM_A\n"
    broken = GenericDriver(host, written(file, f"{text}addresses = {servers.FPGA}\n"))
    assert look(broken).discover() == []
    (entry,) = look(broken).hardware()
    assert (entry.offered, entry.reason) == (False, "it does not answer on the bus")
    for verb in (
        lambda: driver.prepare(task(servers.NVME_MOUNTED)),
        lambda: driver.release(task(servers.NVME_MOUNTED)),
        lambda: driver.install(servers.NVME_MOUNTED, "operation"),
    ):
        with pytest.raises(exception.DriverFailed, match="mounted at /"):
            verb()


def test_the_lists_of_the_card_decide_how_many_mediated_devices_it_offers(file: Path) -> None:
    host = server()
    driver = GenericDriver(host, written(file, ACCELS))
    name = f"compute-1_{servers.FPGA}"

    def units(*managed: str) -> int | str | None:
        (entry,) = driver.hardware(Scan(host, managed_deployables={*managed}))
        return entry.num if entry.offered else entry.reason

    assert units() == 4
    # One is made by somebody else; a card that the conductor keeps has it from this service.
    host.add_file(mdevs(servers.FPGA, "fpga-4/available_instances"), "3\n")
    host.add_link(mdevs(servers.FPGA, "fpga-4/devices/8f5d"), "../../../8f5d")
    assert (units(), units(name)) == (3, 4)
    host.add_file(mdevs(servers.FPGA, "fpga-4/available_instances"), "0\n")
    assert (units(), units(name)) == ("it has no free mediated device of type fpga-4", 1)
    host.add_file(mdevs(servers.FPGA, "fpga-4/available_instances"), "many\n")
    assert "available_instances of fpga-4 reads 'many'" in str(units())
    host.remove(mdevs(servers.FPGA, "fpga-4"))
    host.add_file(mdevs(servers.FPGA, "fpga-8/available_instances"), "1\n")
    assert units() == "it has no type fpga-4, but fpga-8"


def test_a_device_in_a_guest_stays_in_its_backend_without_its_class_entry(file: Path) -> None:
    host = server()
    driver = GenericDriver(host, written(file, ACCELS))
    before = look(driver).discover()
    host.remove("/sys/class/accel/accel0")
    host.add_link(f"{servers.place(servers.FPGA)}/driver", "x/vfio-pci")
    assert look(driver).discover() == []
    scan = Scan(host, managed_deployables={f"compute-1_{servers.FPGA}"})
    assert driver.discover(scan) == before


def test_the_first_matching_backend_counts_and_sysfs_classes_come_last(file: Path) -> None:
    text = f"""\
[generic_driver]
backends = classy, exact, rest
[generic_driver:classy]
sysfs_class = accel
resource_class = CUSTOM_CLASSY
[generic_driver:exact]
pci_classes = 1200
resource_class = CUSTOM_EXACT
[generic_driver:rest]
addresses = {servers.FPGA}, {servers.NVME_FREE}
resource_class = CUSTOM_REST
"""
    devices = look(GenericDriver(server(), written(file, text))).discover()
    assert {device.key: device.deployables[0].driver_name for device in devices} == {
        servers.FPGA: "exact",
        servers.NVME_FREE: "rest",
    }


@pytest.mark.parametrize(
    ("section", "model", "resource_class"),
    [
        ("", "Gaudi 2", "CUSTOM_GAUDI"),
        ("[generic_driver:gaudi2]\nmodel = Ours\n", "Ours", "CUSTOM_GAUDI"),
        ("[generic_driver:gaudi2]\nresource_class = PGPU\n", "Gaudi 2", "PGPU"),
    ],
)
def test_a_section_overrides_the_entry_of_its_name(
    file: Path, section: str, model: str, resource_class: str
) -> None:
    host = servers.bare()
    servers.add_function(host, "0000:01:00.0", "1da3:1020:120000")
    conf = written(file, f"[generic_driver]\nbackends = gaudi2\n{section}")
    (device,) = look(GenericDriver(host, conf)).discover()
    assert (device.type, device.vendor) == (DeviceType.AICHIP, "Habana Labs")
    assert (device.model, device.deployables[0].resource_class) == (model, resource_class)


def test_an_entry_of_this_package_is_not_offered_until_it_is_named(file: Path) -> None:
    host = servers.bare()
    servers.add_function(host, "0000:01:00.0", "1da3:1020:120000")
    assert look(GenericDriver(host, written(file, ""))).discover() == []


def test_install_sets_up_a_device_once(file: Path) -> None:
    host = server()
    driver = gpus(file, host)
    before = {entry.key: entry for entry in look(driver).hardware()}[servers.GPU]
    assert (before.offered, before.setup_required, before.kind) == (True, True, "COMPUTE")
    assert (before.num, before.remote) == (1, 0)
    assert before.capability == {
        "clean": ["reset_command"],
        "num": 2,
        "tensor": {"fp16": True},
    }
    assert before.reason == "it has not been set up yet"
    driver.install(servers.GPU, "operation")
    driver.install(servers.GPU, "operation")
    assert ran(host) == [f"setup {servers.GPU}"]
    after = {entry.key: entry for entry in look(driver).hardware()}
    assert (after[servers.GPU].setup_required, after[servers.GPU].reason) == (False, None)
    assert after[servers.GPU_ON_VFIO].setup_required


def test_a_device_that_waits_for_a_reboot_is_not_installed_again(file: Path) -> None:
    host = server()
    driver = gpus(file, host)
    host.programs["/usr/sbin/card"] = lambda host, argv: (
        host.add_file(f"/run/card/{argv[2]}/reboot", "") or Completed(0, "", "")  # type: ignore[func-returns-value]
    )
    driver.install(servers.GPU, "operation")
    driver.install(servers.GPU, "another operation")
    assert len(host.commands) == 1
    entry = {row.key: row for row in look(driver).hardware()}[servers.GPU]
    assert (entry.offered, entry.setup_required, entry.reboot_required) == (True, True, True)
    assert entry.reason == "the host must be rebooted first"
    host.remove(f"/run/card/{servers.GPU}/reboot")
    host.add_file(f"/run/card/{servers.GPU}/ready", "")
    entry = {row.key: row for row in look(driver).hardware()}[servers.GPU]
    assert (entry.setup_required, entry.reboot_required, entry.reason) == (False, False, None)


def test_install_and_prepare_fail_when_their_command_has_no_effect(file: Path) -> None:
    host = server()
    host.programs["/usr/sbin/card"] = lambda _host, _argv: Completed(0, "", "")
    with pytest.raises(exception.DriverFailed, match="is not ready, although install_command"):
        gpus(file, host).install(servers.GPU, "operation")
    with pytest.raises(exception.DriverFailed, match="is not prepared, although prepare_command"):
        gpus(file, host).prepare(task(servers.GPU))


def test_a_check_that_hangs_runs_once_per_backend(file: Path) -> None:
    host = server()
    text = GPUS.replace("ready_file = /run/card/{address}/ready", "ready_command = /usr/sbin/card")
    driver = GenericDriver(host, written(file, text))
    host.hanging = True
    entries = look(driver).hardware()
    assert host.clock.monotonic() == 10
    assert [entry.setup_required for entry in entries] == [True, True]
    assert {entry.reason for entry in entries} == {
        (
            "the check whether it is set up failed: "
            "running /usr/sbin/card failed: it did not end in time"
        )
    }


@pytest.mark.proves("generic_driver", "bind", "cleaning", by="simulated")
def test_a_unit_is_prepared_once_then_released_and_reset(file: Path) -> None:
    host = server()
    driver = gpus(file, host)
    unit = task(servers.GPU)
    driver.prepare(unit)
    driver.prepare(unit)
    assert look(driver).prepared() == [Unit(unit.deployable, unit.handle_key)]
    assert look(gpus(file, host)).prepared() == look(driver).prepared()
    change(driver, "release", unit)
    assert look(driver).prepared() == []
    assert ran(host) == [f"give {servers.GPU}", f"take {servers.GPU}", f"wipe {servers.GPU}"]


def test_a_repeated_release_resets_the_unit_after_a_failed_reset(file: Path) -> None:
    host = server()
    driver = gpus(file, host)

    def stuck(host: FakeHost, argv: tuple[str, ...]) -> Completed:
        return Completed(1, "", "busy") if argv[1] == "wipe" else card(host, argv)

    host.programs["/usr/sbin/card"] = stuck
    driver.prepare(task(servers.GPU))
    with pytest.raises(exception.HostError, match="busy"):
        change(driver, "release", task(servers.GPU))
    host.programs["/usr/sbin/card"] = card
    host.add_dir("/run/card")
    change(driver, "release", task(servers.GPU))
    assert ran(host)[-1] == f"wipe {servers.GPU}"


RESET = """\
[generic_driver]
backends = gpu
[generic_driver:gpu]
addresses = 0000:3b:*.*
resource_class = PGPU
reset = FUNCTION
reset_after_release = true
reset_command = /usr/sbin/card wipe {handle}
"""


@pytest.mark.parametrize(("reset", "method"), [("FUNCTION", None), ("BUS", "bus")])
@pytest.mark.proves("generic_driver", "cleaning", by="simulated")
def test_the_kernel_resets_a_function_before_its_reset_command(
    file: Path, reset: str, method: str | None
) -> None:
    host = server()
    place = host.realpath(PCI + servers.GPU)
    host.add_file(f"{place}/reset", "")
    host.add_file(f"{place}/reset_method", "flr bus\n")
    driver = GenericDriver(host, written(file, RESET.replace("FUNCTION", reset)))
    (device,) = look(driver).discover()
    assert device.deployables[0].prepare
    before = host.tree()
    change(driver, "release", task(servers.GPU))
    chosen = [(f"{place}/reset_method", method)] if method else []
    kept = [(f"{place}/reset_method", "flr bus\n")] if method else []
    assert host.writes == [*chosen, (f"{place}/reset", "1"), *kept]
    assert ran(host) == [f"wipe {servers.GPU}"]
    assert host.tree() == before


def test_a_function_that_cannot_be_reset_keeps_its_release_from_ending(file: Path) -> None:
    host = server()
    with pytest.raises(exception.HostError, match="reset"):
        change(GenericDriver(host, written(file, RESET)), "release", task(servers.GPU))
    assert ran(host) == []


@pytest.mark.parametrize(
    ("former", "now", "reason"),
    [
        ("reset = FUNCTION", "reset = NONE", "it requires option reset, FUNCTION or BUS"),
        ("reset = FUNCTION", "", "it requires option reset, FUNCTION or BUS"),
        ("resource_class", "attach_type = TEST_PCI\nresource_class", "only whole PCI functions"),
    ],
)
def test_a_reset_after_release_needs_a_way_to_reset(
    file: Path, former: str, now: str, reason: str
) -> None:
    with pytest.raises(exception.ConfigError, match=f"reset_after_release .*{reason}"):
        GenericDriver(server(), written(file, RESET.replace(former, now)))


@pytest.mark.parametrize(
    ("address", "handle", "reason"),
    [
        ("0000:99:00.0", None, "belongs to no backend"),
        ("../../etc", None, "belongs to no backend"),
        (servers.GPU, "../../etc", "has no unit ../../etc"),
        (servers.GPU, servers.GPU_ON_VFIO, "has no unit 0000:86:00.0"),
    ],
)
def test_no_command_runs_for_an_unknown_device_or_unit(
    file: Path, address: str, handle: str | None, reason: str
) -> None:
    host = server()
    with pytest.raises(exception.DriverFailed) as caught:
        gpus(file, host).prepare(task(address, handle))
    assert reason in str(caught.value)
    assert host.commands == []


@pytest.mark.proves("generic_driver", "health", "stats", by="simulated")
def test_health_and_stats_come_from_the_commands(file: Path) -> None:
    host = server()
    driver = gpus(file, host)
    assert look(driver).health(servers.GPU) == Judgement()
    host.add_file(f"/run/card/{servers.GPU}/broken", "")
    health = look(driver).health(servers.GPU)
    assert health.condition is Condition.DRAIN
    assert health.evidence == ("it ended with status 1: uncorrectable errors",)
    assert look(driver).stats(servers.GPU) == {"temperature_celsius": 41.5, "utilisation": 0.0}


@pytest.mark.parametrize("text", ["temperature", "a b", "a nan", "a inf", "a 1 2", "<html>\n"])
def test_parse_stats_fails_for_a_line_without_name_and_number(text: str) -> None:
    with pytest.raises(exception.HostError, match="is not a name and a number"):
        parse_stats(text)


def image(address: str) -> ProgramTask:
    return ProgramTask("operation", "generic_driver", address, f"compute-1_{address}", UUID)


@pytest.mark.proves("generic_driver", "programming", by="simulated")
def test_program_passes_the_path_of_the_image(file: Path) -> None:
    host = server()
    host.programs["/usr/sbin/card"] = lambda _host, _argv: Completed(0, "", "")
    driver = GenericDriver(host, written(file, DECLARED))
    assert driver.can_program
    devices = {device.key: device.deployables[0].programmable for device in look(driver).discover()}
    assert devices == {"0000:0a:00.0": True, "0000:0b:00.0": True, "0000:0c:00.0": False}
    driver.program(image("0000:0a:00.0"), "/var/lib/cyborg/images/x y/image")
    assert host.commands == [
        ("/usr/sbin/card", "load", "0000:0a:00.0", "/var/lib/cyborg/images/x y/image")
    ]
    assert host.patience == [500]
    with pytest.raises(exception.HostError, match="is not a valid image"):
        driver.program(image("0000:0a:00.0"), "--force")
    with pytest.raises(exception.DriverFailed, match="belongs to no backend"):
        driver.program(image("0000:0d:00.0"), "/image")


def made(backend: str, *units: str, kind: AttachType = AttachType.PCI) -> dict[str, Device]:
    """Return a device that an operator created on a backend, by key."""
    request = Creation(
        "compute-1",
        "generic_driver",
        backend,
        model="soft",
        type=DeviceType.FPGA,
        resource_class="CUSTOM_SOFT",
        units=None,
        addresses=units,
    )
    device = creation.device(request, creation.handles(request, kind, ()), "compute-1")
    return {device.key: device}


def test_a_created_device_has_the_values_of_its_backend(file: Path) -> None:
    host = server()
    driver = gpus(file, host, "addresses = *:3b:*.*, *:86:*.*\n")
    host.add_file(f"/run/card/{servers.FPGA}/ready", "")
    # The section leaves it out by its address alone.
    servers.add_function(host, servers.FPGA, "10de:20b5:030200", node=1)
    driver.operator_created = made("gpus", servers.FPGA)
    (device,) = [row for row in look(driver).discover() if row.operator_created]
    assert (device.key, device.vendor, device.numa_node) == (servers.FPGA, "10de", 1)
    assert [deployable.prepare for deployable in device.deployables] == [True]
    driver.prepare(task(device.key))
    assert task(device.key).unit in look(driver).prepared()
    driver.release(task(device.key))
    assert task(device.key).unit not in look(driver).prepared()


@pytest.mark.parametrize(
    ("created", "reason"),
    [
        (made("gpus", servers.NVME_MOUNTED), "mounted"),
        (made("gpus", servers.NVME_FREE), "backend gpus selects no devices of its kind"),
        (made("gpus", "0000:77:00.0"), "not on the bus"),
        (made("gpus", servers.FPGA, kind=AttachType.TEST_PCI), "backend gpus offers PCI"),
    ],
)
def test_a_created_device_that_the_host_cannot_offer_has_a_reason(
    file: Path, created: dict[str, Device], reason: str
) -> None:
    driver = gpus(file, server())
    before = look(driver).discover()
    driver.operator_created = created
    assert look(driver).discover() == before
    (entry,) = [entry for entry in look(driver).hardware() if entry.key in created]
    assert not entry.offered
    assert reason in str(entry.reason)


def test_a_created_device_of_a_removed_backend_is_ignored(file: Path) -> None:
    driver = GenericDriver(server(), written(file, DECLARED))
    before = look(driver).hardware()
    driver.operator_created = made("three", "0000:0d:00.0", kind=AttachType.TEST_PCI)
    assert look(driver).hardware() == before
    driver.operator_created = made("one", "0000:0d:00.1", "0000:0d:00.2", kind=AttachType.TEST_PCI)
    (device,) = [row for row in look(driver).discover() if row.operator_created]
    assert len(device.deployables[0].handles) == 2


def test_a_declared_device_that_the_host_uses_is_not_offered(file: Path) -> None:
    """Otherwise the commands of the section would run on it."""
    text = DECLARED.replace("0000:0a:00.0", servers.NVME_MOUNTED)
    host = server()
    driver = GenericDriver(host, written(file, text))
    assert servers.NVME_MOUNTED not in {device.key for device in look(driver).discover()}
    (entry,) = (row for row in look(driver).hardware() if row.key == servers.NVME_MOUNTED)
    assert str(entry.reason).startswith(f"{servers.NVME_MOUNTED}: ")
    with pytest.raises(exception.DriverFailed, match="mounted"):
        driver.program(image(servers.NVME_MOUNTED), "/image")
    assert host.commands == []


def test_declared_devices_are_offered_on_a_host_without_pci_bus(file: Path) -> None:
    host = FakeHost()
    idle = GenericDriver(host, configured())
    assert (look(idle).discover(), look(idle).hardware(), look(idle).backends()) == (
        [],
        [],
        [],
    )
    assert idle.device_type is None
    driver = GenericDriver(host, written(file, DECLARED))
    devices = look(driver).discover()
    assert [(device.key, device.model) for device in devices] == [
        ("0000:0a:00.0", "one"),
        ("0000:0b:00.0", "one"),
        ("0000:0c:00.0", "Number two"),
    ]
    keys = [handle.key for handle in devices[0].deployables[0].handles]
    assert (len(keys), keys[0], keys[-1]) == (9, "0000:0a:00.1", "0000:0a:01.1")
    driver.install("0000:0a:00.0", "operation")
    with pytest.raises(exception.DriverCannot):
        driver.install("0000:0c:00.0", "operation")


def test_services_of_a_backend_have_the_states_of_their_files_or_command(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host, calls = server(), list[str]()

    def states(driver: GenericDriver) -> list[str]:
        (backend,) = look(driver).backends()
        return [service.state for service in backend.services]

    def run(_host: FakeHost, argv: tuple[str, ...]) -> Completed:
        calls.append(argv[1])
        if host.exists("/run/hanging"):
            raise exception.HostError(action="running /sbin/running", reason="it did not end")
        return Completed(0 if argv[1] == "decoder" else 3, "", "")

    driver = gpus(file, host, "service_file = /run/gpus/{service}.pid\n")
    host.add_file("/run/gpus/tensor.pid", "17")
    assert states(driver) == ["STOPPED", "READY"]
    host.remove("/run/gpus/tensor.pid")
    host.add_file("/run/gpus/decoder.pid", "18")
    assert states(driver) == ["READY", "STOPPED"]
    host.programs["/sbin/running"] = run
    driver = gpus(file, host, "service_command = /sbin/running {service}\n")
    assert states(driver) == ["READY", "STOPPED"]
    host.add_file("/run/hanging", "")
    calls.clear()
    for _ in range(2):
        assert states(driver) == ["unknown", "unknown"]
    # After one that hangs the others are not asked, and it is logged once.
    assert calls == ["decoder", "decoder"]
    assert (
        caplog.messages.count(
            "The state of service decoder on backend gpus is unknown: "
            "running /sbin/running failed: it did not end"
        )
        == 1
    )
    driver = gpus(file, host)
    for state in ("READY", "STOPPED"):
        services = tuple(BackendService(name, "unknown") for name in ("decoder", "tensor"))
        capabilities = {"num": 2, "tensor": {"fp16": True}}
        expected = Backend("gpus", state, services, capabilities, creates=AttachType.PCI)
        assert look(driver).backends() == [expected]
        host.remove("/sys/bus/pci/devices")
