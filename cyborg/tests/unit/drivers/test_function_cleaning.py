# SPDX-License-Identifier: Apache-2.0
"""Whole PCI functions are reset and erased after their guests, on a simulated kernel."""

import errno
import json
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.base import CleanStep, Driver, no_progress
from cyborg.drivers.command import Completed
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.nvme_disk import NvmeDriver
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.privileged.disk_actions import StartVirtualControllers
from cyborg.model.cleaning import CleanLevel, HostClean
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.guest import guest
from cyborg.testing.kernel.nvme_tool import NvmeTool
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.unit.drivers.configured import configured, written

DISK, NIC, EDU = "0000:02:00.0", "0000:03:00.0", "0000:44:00.0"
NODE = "/dev/nvme1n1"
CANARY = b"data of the first tenant"
SIZE = 16_384
UUID = "11111111-2222-4333-8444-555555555555"
EVERYTHING = '{"vendor_id": "*"}'


@pytest.fixture
def host() -> FakeHost:
    """Return the machine of the kernel tests; its disks have content."""
    machine = guest()
    machine.programs["nvme"] = NvmeTool()
    machine.add_file(NODE, CANARY.ljust(SIZE, b"\0"))
    card = machine.realpath(f"/sys/bus/pci/devices/{NIC}")
    machine.add_file(f"{card}/net/ens3/operstate", "down\n")
    machine.add_link("/sys/class/net/ens3", f"{card}/net/ens3")
    return machine


def kernel(host: FakeHost) -> SimulatedKernel:
    assert isinstance(host.kernel, SimulatedKernel)
    return host.kernel


def pci(host: FakeHost, *, clean: str | None = None, entry: str = EVERYTHING) -> PciDriver:
    conf = configured(entry)
    conf.set_override("clean", clean, "pci")
    return PciDriver(host, conf)


def steps(driver: Driver, address: str) -> list[CleanStep]:
    name = f"compute-1_{address}"
    return list(driver.clean_steps(HandleTask("r", driver.name, address, name, address, UUID)))


def clean(driver: Driver, address: str = DISK) -> list[tuple[float, str]]:
    """Run the clean steps of a function, and return the progress that they told."""
    told: list[tuple[float, str]] = []
    for step in sorted(steps(driver, address), key=lambda step: -step.priority):
        assert callable(step.work)
        step.work(lambda *progress: told.append(progress))
    return told


def refusal(driver: Driver, address: str = DISK) -> str:
    """Return why a function cannot be cleaned."""
    with pytest.raises(exception.DriverFailed) as caught:
        clean(driver, address)
    return str(caught.value)


def words(driver: Driver) -> dict[str, HostClean | None]:
    return {device.key: device.deployables[0].clean for device in look(driver).discover()}


def test_function_is_cleaned_by_default_where_a_safe_step_exists(host: FakeHost) -> None:
    assert words(pci(host)) == {
        DISK: "default",
        "0000:01:00.0": "default",
        "0000:41:00.0": "default",
        # Its methods are pm and bus.
        NIC: "default",
        # A reset of its bus only: it is alone there.
        EDU: "default",
        "0000:45:00.0": "default",
    }
    listed = {entry.key: entry.capability.get("clean") for entry in look(pci(host)).hardware()}
    assert listed[DISK] == ["function reset", "NVMe erase"]
    assert listed[NIC] == ["function reset"]


def test_function_without_a_safe_step_is_not_cleaned_unless_full_is_explicit(
    host: FakeHost,
) -> None:
    host.remove(f"{host.realpath(f'/sys/bus/pci/devices/{NIC}')}/reset_method")
    for word, expected in ((None, None), ("none", None), ("reset", None), ("full", "full")):
        assert words(pci(host, clean=word))[NIC] == expected
        assert words(pci(host, clean=word))[DISK] == (word or "default")
    assert steps(pci(host), NIC) == []
    (entry,) = (entry for entry in look(pci(host)).hardware() if entry.key == NIC)
    assert entry.capability["clean"] == []


def test_function_that_shares_its_bus_is_never_reset_by_the_bus(host: FakeHost) -> None:
    directory = host.realpath(f"/sys/bus/pci/devices/{EDU}").rpartition("/")[0]
    neighbour = "0000:44:00.1"
    for name, text in {"vendor": "0x1234", "device": "0x11e8", "class": "0x00ff00"}.items():
        host.add_file(f"{directory}/{neighbour}/{name}", f"{text}\n")
    host.add_link(f"/sys/bus/pci/devices/{neighbour}", f"{directory}/{neighbour}")
    assert steps(pci(host), EDU) == []


def test_forced_function_is_not_cleaned(host: FakeHost) -> None:
    entry = f'{{"address": "{DISK}", "force": true}}'
    assert steps(pci(host, entry=entry), DISK) == []


@pytest.mark.proves("pci_driver", "cleaning", by="simulated")
def test_disk_is_reset_and_sanitized_and_has_nothing_of_its_guest(host: FakeHost) -> None:
    told = clean(pci(host))
    assert host.content(NODE) == bytes(SIZE)
    assert kernel(host).functions.resets == [DISK]
    assert [step for _, step in told if "sanitize" not in step] == [
        "reset by flr",
        "verification",
    ]
    fractions = [done for done, step in told if step == "sanitize"]
    assert fractions == sorted(fractions)
    assert len(fractions) > 5
    levels = {step.name: step.level for step in steps(pci(host), DISK)}
    assert levels == {"function reset": CleanLevel.RESET, "NVMe erase": CleanLevel.FULL}


@pytest.mark.parametrize(("crypto", "option"), [(True, "2"), (False, "1")])
def test_disk_without_sanitize_is_formatted(host: FakeHost, crypto: bool, option: str) -> None:
    host.programs["nvme"] = NvmeTool(sanitizes=False, crypto=crypto)
    clean(pci(host))
    assert host.content(NODE) == bytes(SIZE)
    assert ("nvme", "format", NODE, "-s", option) in host.commands


def test_disk_that_may_have_other_controllers_is_not_erased(host: FakeHost) -> None:
    host.programs["nvme"] = NvmeTool(shared=True)
    assert "may have other controllers" in refusal(pci(host))
    assert host.content(NODE) == CANARY.ljust(SIZE, b"\0")


def test_disk_whose_namespaces_only_it_has_is_formatted(host: FakeHost) -> None:
    """Other controllers of its subsystem keep their data."""
    host.programs["nvme"] = NvmeTool(private=True)
    clean(pci(host))
    assert host.content(NODE) == bytes(SIZE)
    assert not any("sanitize" in command for command in host.commands)


def test_namespace_that_the_host_does_not_show_fails_the_step(host: FakeHost) -> None:
    """Its data would stay."""
    tool = NvmeTool()

    def hiding(host: FakeHost, argv: tuple[str, ...]) -> Completed:
        if argv[1] == "list-ns":
            return Completed(0, json.dumps({"nsid_list": [{"nsid": 1}, {"nsid": 3}]}), "")
        return tool(host, argv)

    host.programs["nvme"] = hiding
    assert "the host does not show namespace 3 as a disk" in refusal(pci(host))


def test_disk_without_a_namespace_fails_the_step(host: FakeHost) -> None:
    def empty(host: FakeHost, argv: tuple[str, ...]) -> Completed:
        if argv[1] == "list-ns":
            return Completed(0, json.dumps({"nsid_list": []}), "")
        return NvmeTool()(host, argv)

    host.programs["nvme"] = empty
    assert "it has no namespace; create one, or attach one to it" in refusal(pci(host))


def test_virtual_function_has_its_driver_for_the_erasure_only(host: FakeHost) -> None:
    """It has none between its guests; a controller that is offline does not get it."""
    parent = "0000:01:00.0"
    host.write_text(f"/sys/bus/pci/devices/{parent}/sriov_drivers_autoprobe", "0")
    host.write_text(f"/sys/bus/pci/devices/{parent}/sriov_numvfs", "1")
    virtual = "0000:01:00.1"
    assert [step.name for step in steps(pci(host), virtual)] == ["function reset", "NVMe erase"]
    assert "its driver is None and not nvme" in refusal(pci(host), virtual)
    host.programs["nvme"] = NvmeTool(sanitizes=False, private=True)
    host.privileged.run(StartVirtualControllers(PciAddress.parse(parent), "nvme0", 1))
    node, place = "/dev/nvme101n1", f"/sys/bus/pci/devices/{virtual}"
    host.write_text(f"{place}/driver_override", "nvme\n")
    host.write_text("/sys/bus/pci/drivers_probe", virtual)
    host.add_file(node, CANARY.ljust(4096, b"\0"))
    host.write_text(f"{place}/driver_override", "\n")
    host.write_text(f"{place}/driver/unbind", virtual)
    assert not host.exists(node)
    clean(pci(host), virtual)
    assert not host.exists(f"{place}/driver")
    assert host.read_text(f"{place}/driver_override").strip() == "(null)"
    host.write_text(f"{place}/driver_override", "nvme\n")
    host.write_text("/sys/bus/pci/drivers_probe", virtual)
    assert host.content(node) == bytes(4096)


def test_sanitize_that_an_earlier_agent_began_is_awaited(host: FakeHost) -> None:
    tool = NvmeTool()
    host.programs["nvme"] = tool
    tool(host, ("nvme", "sanitize", "/dev/nvme1", "-a", "4"))
    clean(pci(host))
    assert host.content(NODE) == bytes(SIZE)
    assert not any("sanitize" in command for command in host.commands)


def test_failed_sanitize_fails_the_step(host: FakeHost) -> None:
    host.programs["nvme"] = NvmeTool(fails=True)
    assert "its sanitize has failed; replace the disk" in refusal(pci(host))


def test_data_that_survives_the_erasure_is_found(host: FakeHost) -> None:
    tool = NvmeTool(sanitizes=False)

    def forgetful(host: FakeHost, argv: tuple[str, ...]) -> Completed:
        content = host.content(NODE)
        answer = tool(host, argv)
        host.add_file(NODE, content or b"")
        return answer

    host.programs["nvme"] = forgetful
    assert "still has data of its last guest" in refusal(pci(host))


def test_disk_that_the_host_has_mounted_is_not_touched(host: FakeHost) -> None:
    """A file system of the former guest may have been mounted automatically."""
    servers.add_mount(host, "259:1", "/media/disk")
    assert "nvme1n1 is mounted at /media/disk" in refusal(pci(host))
    assert host.content(NODE) == CANARY.ljust(SIZE, b"\0")
    assert kernel(host).functions.resets == []


def test_disk_that_is_claimed_in_the_last_moment_is_not_touched(host: FakeHost) -> None:
    """The kernel has the last word."""
    tool = NvmeTool()

    def claim(host: FakeHost, argv: tuple[str, ...]) -> Completed:
        if "id-ctrl" in argv:
            host.faults[NODE] = errno.EBUSY
        return tool(host, argv)

    host.programs["nvme"] = claim
    with pytest.raises(exception.HostError) as caught:
        clean(pci(host))
    assert caught.value.fields["errno"] == errno.EBUSY
    assert host.content(NODE) == CANARY.ljust(SIZE, b"\0")


def test_step_waits_until_libvirt_has_given_the_disk_back(host: FakeHost) -> None:
    simulated = kernel(host)
    driver = pci(host)
    override = f"/sys/bus/pci/devices/{DISK}/driver_override"

    def bind(name: str) -> None:
        host.write_text(override, f"{name}\n")
        host.write_text(f"/sys/bus/pci/devices/{DISK}/driver/unbind", DISK)
        host.write_text("/sys/bus/pci/drivers_probe", DISK)

    bind("vfio-pci")
    simulated.hold(DISK)
    pauses = iter(range(6))

    def give_back() -> None:
        match next(pauses, None):
            case 2:
                simulated.release(DISK)
            case 4:
                bind("")

    host.on_pause = give_back
    clean(driver)
    assert host.content(NODE) == bytes(SIZE)


def test_disk_that_stays_with_its_guest_is_not_cleaned(host: FakeHost) -> None:
    simulated = kernel(host)
    host.write_text(f"/sys/bus/pci/devices/{DISK}/driver_override", "vfio-pci\n")
    host.write_text(f"/sys/bus/pci/devices/{DISK}/driver/unbind", DISK)
    host.write_text("/sys/bus/pci/drivers_probe", DISK)
    simulated.hold(DISK)
    assert "held through VFIO by" in refusal(pci(host))
    assert simulated.functions.resets == []
    simulated.release(DISK)
    assert "its driver is vfio-pci and not nvme" in refusal(pci(host))


def test_disk_without_a_driver_is_probed(host: FakeHost) -> None:
    host.write_text(f"/sys/bus/pci/devices/{DISK}/driver/unbind", DISK)
    clean(pci(host))
    assert host.content(NODE) == bytes(SIZE)


def test_function_that_does_not_answer_after_its_reset_fails(host: FakeHost) -> None:
    config = f"{host.realpath(f'/sys/bus/pci/devices/{NIC}')}/config"

    def break_it(call: str) -> None:
        if call.endswith(f"{NIC}/reset"):
            host.add_file(config, b"\xff" * 64)

    host.on_call = break_it
    assert "it does not answer after the reset; reboot the host" in refusal(pci(host), NIC)


def test_function_that_loses_its_driver_by_the_reset_fails(host: FakeHost) -> None:
    path = host.realpath(f"/sys/bus/pci/devices/{NIC}")

    def break_it(call: str) -> None:
        if call.endswith(f"{NIC}/reset"):
            host.add_file(f"{path}/driver_override", "vfio-pci\n")

    host.on_call = break_it
    assert "its driver is vfio-pci after the reset, not e1000e" in refusal(pci(host), NIC)


def drivers_at_reset(host: FakeHost) -> dict[str, bool]:
    """Return what maps each function that is reset to whether it has a driver then."""
    bound: dict[str, bool] = {}

    def look_at(call: str) -> None:
        if call.endswith("/reset"):
            address = call.split("/")[-2]
            bound[address] = host.target(call.replace("/reset", "/driver")) is not None

    host.on_call = look_at
    return bound


def test_function_is_taken_from_a_driver_that_does_not_expect_a_reset(host: FakeHost) -> None:
    """The driver begins anew afterwards."""
    bound = drivers_at_reset(host)
    clean(pci(host), NIC)
    clean(pci(host), DISK)
    assert bound == {NIC: False, DISK: True}
    for address, driver in ((NIC, "e1000e"), (DISK, "nvme")):
        assert host.readlink(f"/sys/bus/pci/devices/{address}/driver").endswith(f"/{driver}")


def test_function_that_an_interrupted_attempt_left_without_driver_gets_it_back(
    host: FakeHost,
) -> None:
    host.write_text(f"/sys/bus/pci/devices/{NIC}/driver/unbind", NIC)
    clean(pci(host), NIC)
    assert host.readlink(f"/sys/bus/pci/devices/{NIC}/driver").endswith("/e1000e")


GENERIC = """\
[generic_driver]
backends = disks
[generic_driver:disks]
pci_ids = 1b36:0010
resource_class = CUSTOM_SSD
"""


@pytest.mark.proves("generic_driver", "cleaning", by="simulated")
def test_generic_driver_cleans_functions_in_the_same_way(host: FakeHost, tmp_path: Path) -> None:
    driver = GenericDriver(host, written(tmp_path / "cyborg.conf", GENERIC))
    (part,) = (device.deployables[0] for device in look(driver).discover() if device.key == DISK)
    assert (part.clean, part.prepare) == ("default", False)
    (entry,) = (entry for entry in look(driver).hardware() if entry.key == DISK)
    assert entry.capability["clean"] == ["function reset", "NVMe erase"]
    clean(driver)
    assert host.content(NODE) == bytes(SIZE)
    assert kernel(host).functions.resets == [DISK]


@pytest.mark.parametrize(
    ("lines", "names", "word"),
    [
        ("clean = reset", ["function reset", "NVMe erase"], "reset"),
        ("reset = NONE", ["NVMe erase"], "default"),
        ("reset = FUNCTION\nreset_after_release = true", ["reset", "NVMe erase"], "default"),
        ("attach_type = TEST_PCI", [], None),
        ("attach_type = TEST_PCI\nclean = full", [], "full"),
    ],
)
def test_section_of_the_generic_driver_decides_about_its_steps(
    host: FakeHost, tmp_path: Path, lines: str, names: list[str], word: str | None
) -> None:
    driver = GenericDriver(host, written(tmp_path / "cyborg.conf", f"{GENERIC}{lines}\n"))
    assert words(driver)[DISK] == word
    (entry,) = (entry for entry in look(driver).hardware() if entry.key == DISK)
    assert entry.capability["clean"] == names


def test_unknown_level_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises((ValueError, exception.ConfigError)):
        GenericDriver(guest(), written(tmp_path / "cyborg.conf", f"{GENERIC}clean = often\n"))


def test_device_that_has_left_the_bus_cannot_be_cleaned(host: FakeHost) -> None:
    driver = pci(host)
    with pytest.raises(exception.DriverFailed, match="is not on the bus"):
        steps(driver, "0000:99:00.0")


def test_progress_of_a_reset_needs_no_listener(host: FakeHost) -> None:
    (step,) = steps(pci(host), NIC)
    assert callable(step.work)
    step.work(no_progress)
    assert kernel(host).functions.resets == [NIC]


@pytest.mark.proves("nvme_driver", "cleaning", by="simulated")
def test_the_nvme_driver_erases_its_disks(host: FakeHost, tmp_path: Path) -> None:
    text = f'[nvme]\ndevice_spec = {{"address": "{DISK}"}}\n'
    clean(NvmeDriver(host, written(tmp_path / "cyborg.conf", text)))
    assert CANARY not in (host.content(NODE) or b"")


def disks(host: FakeHost, tmp_path: Path, keys: dict[str, str], options: str = "") -> NvmeDriver:
    """Return the driver of NVMe disks with these keys in the entry of the disk."""
    entry = json.dumps({"address": DISK, **keys})
    text = f"[nvme]\ndevice_spec = {entry}\n{options}"
    # The first entry that matches decides.
    text += 'device_spec = {"vendor_id": "*", "clear_strategy": "auto"}\n'
    return NvmeDriver(host, written(tmp_path / "cyborg.conf", text))


@pytest.mark.parametrize(
    ("keys", "sanitizes", "command"),
    [
        ({}, True, ("nvme", "sanitize", "/dev/nvme1", "-a", "4")),
        ({"clear_action": "auto"}, False, ("nvme", "format", NODE, "-s", "2")),
        ({"clear_action": "sanitize"}, True, ("nvme", "sanitize", "/dev/nvme1", "-a", "4")),
        ({"clear_strategy": "crypto"}, True, ("nvme", "sanitize", "/dev/nvme1", "-a", "4")),
        ({"clear_strategy": "block"}, True, ("nvme", "sanitize", "/dev/nvme1", "-a", "2")),
        ({"clear_strategy": "crypto"}, False, ("nvme", "format", NODE, "-s", "2")),
        ({"clear_strategy": "block"}, False, ("nvme", "format", NODE, "-s", "1")),
    ],
)
def test_the_entry_of_a_disk_says_how_it_is_erased(
    host: FakeHost,
    tmp_path: Path,
    keys: dict[str, str],
    sanitizes: bool,
    command: tuple[str, ...],
) -> None:
    host.programs["nvme"] = NvmeTool(sanitizes=sanitizes)
    clean(disks(host, tmp_path, keys))
    assert command in host.commands
    assert CANARY not in (host.content(NODE) or b"")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"clear_action": "sanitize"}, "its methods of sanitize are none; it has format without"),
        ({"clear_strategy": "crypto"}, "as clear_action and clear_strategy of its entry"),
    ],
)
def test_a_disk_that_cannot_be_erased_as_its_entry_says_is_not_erased(
    host: FakeHost, tmp_path: Path, keys: dict[str, str], words: str
) -> None:
    host.programs["nvme"] = NvmeTool(sanitizes=False, crypto=False)
    assert words in refusal(disks(host, tmp_path, keys))
    assert CANARY in (host.content(NODE) or b"")


def test_the_operator_limits_the_time_of_an_erasure(host: FakeHost, tmp_path: Path) -> None:
    host.programs["nvme"] = NvmeTool(seconds=1000)
    driver = disks(host, tmp_path, {}, "cleanup_timeout = 90\n")
    assert [step.timeout for step in steps(driver, DISK)] == [300, 90]
    assert "its sanitize did not end within 90 s" in refusal(driver)
    # The next attempt joins the sanitize of the first one.
    clean(disks(host, tmp_path, {}))
    assert [command[1] for command in host.commands].count("sanitize") == 1


def test_a_disk_that_is_gone_cannot_be_cleaned(host: FakeHost, tmp_path: Path) -> None:
    driver = NvmeDriver(host, written(tmp_path / "cyborg.conf", ""))
    with pytest.raises(exception.DriverFailed, match="is not on the bus"):
        steps(driver, "0000:ff:00.0")


@pytest.mark.parametrize("generic", [False, True])
def test_disk_is_not_withdrawn_while_the_agent_itself_has_claimed_it(
    host: FakeHost, tmp_path: Path, generic: bool
) -> None:
    driver: Driver = pci(host)
    if generic:
        driver = GenericDriver(host, written(tmp_path / "cyborg.conf", GENERIC))
    tool = NvmeTool(sanitizes=False)
    offered: list[bool] = []

    def claiming(host: FakeHost, argv: tuple[str, ...]) -> Completed:
        if argv[1] == "format":
            host.claimed.add(NODE)
            offered.append(DISK in words(driver))
            host.claimed.discard(NODE)
        return tool(host, argv)

    host.programs["nvme"] = claiming
    clean(driver)
    assert offered == [True]
    host.claimed.add(NODE)
    assert DISK not in words(driver)
