# SPDX-License-Identifier: Apache-2.0
"""Units of several functions of the generic_driver: the contract, and why none is offered."""

from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver, ResetLevel
from cyborg.drivers.command import Completed
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device, Hardware
from cyborg.model.health import Condition, Judgement
from cyborg.model.work import HandleTask, ProgramTask, Unit
from cyborg.testing import servers, situations
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import written

UUID = "6d2f7a7e-3c0e-4a0b-8f0e-0a6a1d7c5b11"
#: Two cards with two functions each, and eight GPUs.
PORTS = ("0000:c1:00.0", "0000:c1:00.1")
OTHER_PORTS = ("0000:c2:00.0", "0000:c2:00.1")
GPUS = tuple(f"0000:{bus}:00.0" for bus in ("0a", "18", "3b", "44", "87", "90", "b8", "c3"))
CARDS = """\
[generic_driver]
backends = ports
[generic_driver:ports]
pci_ids = 1d55:0002
resource_class = CUSTOM_PORT
unit = card
install_command = /usr/sbin/card setup {address}
ready_file = /run/card/{address}/ready
prepare_command = /usr/sbin/card give {address}
release_command = /usr/sbin/card take {address}
prepared_file = /run/card/{address}/given
program_command = /usr/sbin/card load {address} {image}
health_command = /usr/sbin/card health {address}
"""
SERVER = """\
[generic_driver]
backends = gpus
[generic_driver:gpus]
pci_ids = 10de:2330
resource_class = CUSTOM_GPU
unit = all
unit_functions = 8
"""


def card(host: FakeHost, argv: tuple[str, ...]) -> Completed:
    """Simulate the operator's program; its results are files below /run/card."""
    place = f"/run/card/{argv[2]}"
    match argv[1]:
        case "setup":
            host.add_file(f"{place}/ready", "")
        case "give":
            host.add_file(f"{place}/given", "")
        case "take":
            host.remove(f"{place}/given")
        case "health":
            broken = host.exists(f"{place}/broken")
            return Completed(int(broken), "", "no link\n" if broken else "")
    return Completed(0, "", "")


def server() -> FakeHost:
    """A machine whose cards have both functions in one IOMMU group, with drivers of the host."""
    host = servers.bare()
    host.programs["/usr/sbin/card"] = card
    for node, ports in enumerate((PORTS, OTHER_PORTS)):
        for address in ports:
            path = servers.add_function(
                host, address, "1d55:0002:120000", driver="port_core", node=node
            )
            host.add_link(f"{path}/iommu_group", f"/sys/kernel/iommu_groups/9{node}")
            host.add_dir(f"/run/card/{address}")
    for number, address in enumerate(GPUS):
        servers.add_function(host, address, "10de:2330:030200", node=number // 4)
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

    def break_device(self, host: FakeHost, key: str) -> None:
        # The last function of the card, which is not the one that names it.
        host.add_file(f"/run/card/{key[:-1]}1/broken", "")

    def mend_device(self, host: FakeHost, key: str) -> None:
        host.remove(f"/run/card/{key[:-1]}1/broken")


@pytest.mark.proves("generic_driver", "discover", by="simulated")
class TestCards(Contract):
    text = CARDS


@pytest.mark.filterwarnings("ignore:.* has room for one guest")
class TestServer(Contract):
    text = SERVER


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cyborg.conf"


def driver_of(file: Path, host: FakeHost, text: str = CARDS) -> GenericDriver:
    return GenericDriver(host, written(file, text))


def rows(driver: Driver) -> dict[str, Hardware]:
    return {entry.key: entry for entry in look(driver).hardware()}


def task(handle: str, key: str = PORTS[0]) -> HandleTask:
    return HandleTask("operation", "generic_driver", key, f"compute-1_{key}", handle, UUID)


def ran(host: FakeHost) -> list[str]:
    return [" ".join(argv[1:]) for argv in host.commands]


def test_functions_of_a_card_are_one_device(file: Path) -> None:
    host = server()
    for address in (*PORTS, *OTHER_PORTS):
        host.add_file(f"/run/card/{address}/ready", "")
    driver = driver_of(file, host)
    first, second = look(driver).discover()
    assert (first.key, second.key) == (PORTS[0], OTHER_PORTS[0])
    (deployable,) = first.deployables
    assert deployable.name == f"compute-1_{PORTS[0]}"
    assert [handle.key for handle in deployable.handles] == list(PORTS)
    assert [handle.info["function"] for handle in deployable.handles] == ["0", "1"]
    assert deployable.group_size == 2
    assert first.validate() is None
    row = rows(driver)[PORTS[0]]
    assert (row.offered, row.reason, row.num) == (True, None, 2)
    assert row.capability == {"clean": [], "functions": list(PORTS)}


def test_all_functions_of_a_host_are_one_device(file: Path) -> None:
    (device,) = look(driver_of(file, server(), SERVER)).discover()
    (deployable,) = device.deployables
    assert (device.key, deployable.name) == (GPUS[0], f"compute-1_{GPUS[0]}")
    assert [handle.key for handle in deployable.handles] == list(GPUS)
    assert deployable.group_size == 8
    # They are on two nodes, and a new card in one slot is no other server.
    assert (device.numa_node, device.identity, device.topology) == (None, (), None)


def test_entry_of_the_catalogue_offers_whole_cards(tmp_path: Path) -> None:
    (tmp_path / "cards.yaml").write_text("""\
- name: ports
  pci_ids: [1d55:0002]
  resource_class: CUSTOM_PORT
  unit: card
  enable: true
""")
    text = f"[generic_driver]\ndevices_dir = {tmp_path}\n"
    devices = look(driver_of(tmp_path / "cyborg.conf", server(), text)).discover()
    sizes = {device.key: device.deployables[0].group_size for device in devices}
    assert sizes == {PORTS[0]: 2, OTHER_PORTS[0]: 2}


@pytest.mark.parametrize(
    ("text", "member", "whole"), [(CARDS, PORTS[1], "card"), (SERVER, GPUS[5], "unit")]
)
def test_refused_member_is_named_in_the_reason(
    file: Path, text: str, member: str, whole: str
) -> None:
    host = server()
    host.add_file(f"{servers.place(member)}/sriov_numvfs", "2\n")
    driver = driver_of(file, host, text)
    key = PORTS[0] if text is CARDS else GPUS[0]
    reason = rows(driver)[key].reason or ""
    assert reason.startswith(f"function {member} of the {whole}: its sriov_numvfs reads '2'")
    assert key not in [device.key for device in look(driver).discover()]


@pytest.mark.parametrize(
    ("missing", "key", "reason"),
    [
        (GPUS[:2], GPUS[2], "6 of 8 functions are there; see option unit_functions"),
        (GPUS[7:], GPUS[0], "7 of 8 functions are there; see option unit_functions"),
    ],
)
def test_missing_member_hides_the_unit(
    file: Path, missing: tuple[str, ...], key: str, reason: str
) -> None:
    host = server()
    for address in missing:
        situations.unplug(host, address)
    driver = driver_of(file, host, SERVER)
    assert look(driver).discover() == []
    assert {row.key: row.reason for row in look(driver).hardware()} == {key: reason}


def test_one_function_of_a_card_is_no_unit(file: Path) -> None:
    host = server()
    situations.unplug(host, PORTS[0])
    row = rows(driver_of(file, host))[PORTS[1]]
    assert (row.offered, row.reason) == (
        False,
        "1 of 2 functions are there; see option unit_functions",
    )


def test_unexpected_member_hides_the_unit(file: Path) -> None:
    host = server()
    servers.add_function(host, "0000:c1:00.2", "1d55:0002:120000")
    reason = rows(driver_of(file, host))[PORTS[0]].reason
    assert reason == "3 functions match, and a unit has 2; see option unit_functions"


def test_card_with_four_functions_is_one_unit(file: Path) -> None:
    host = server()
    for number in (2, 3):
        servers.add_function(host, f"0000:c1:00.{number}", "1d55:0002:120000")
    text = CARDS + "unit_functions = 4\n"
    reasons = {row.key: row.reason for row in look(driver_of(file, host, text)).hardware()}
    assert reasons[OTHER_PORTS[0]] == "2 of 4 functions are there; see option unit_functions"
    assert rows(driver_of(file, host, text))[PORTS[0]].num == 4


def test_listed_functions_that_are_missing_are_named(file: Path) -> None:
    text = SERVER.replace("pci_ids = 10de:2330", f"devices = {', '.join(GPUS)}")
    host = server()
    situations.unplug(host, GPUS[3])
    (row,) = look(driver_of(file, host, text)).hardware()
    assert (row.key, row.num) == (GPUS[0], 8)
    assert row.reason == f"function {GPUS[3]} of the unit: it is not on the bus"


def test_iommu_group_may_have_only_functions_of_the_unit(file: Path) -> None:
    host = server()
    assert rows(driver_of(file, host))[PORTS[0]].offered
    path = servers.add_function(host, "0000:c4:00.0", "144d:a808:010802", driver="nvme")
    host.add_link(f"{path}/iommu_group", "/sys/kernel/iommu_groups/90")
    reason = rows(driver_of(file, host))[PORTS[0]].reason or ""
    assert reason.startswith(
        f"function {PORTS[0]} of the card: its IOMMU group 90 has 0000:c4:00.0, too"
    )
    # Alone, none of the two functions could be assigned.
    alone = CARDS.replace("unit = card\n", "")
    assert not rows(driver_of(file, server(), alone))[PORTS[0]].offered


def test_audio_function_goes_with_its_gpu_into_a_unit(file: Path) -> None:
    host = servers.bare()
    servers.add_function(host, "0000:c1:00.0", "10de:1eb8:030000")
    servers.add_function(host, "0000:c1:00.1", "10de:10f8:040300")
    text = """\
[generic_driver]
backends = cards
[generic_driver:cards]
addresses = 0000:c1:00.*
resource_class = CUSTOM_GPU
unit = {unit}
"""
    (device,) = look(driver_of(file, host, text.format(unit="card"))).discover()
    assert device.deployables[0].group_size == 2
    offered = look(driver_of(file, host, text.format(unit="function"))).discover()
    assert [device.key for device in offered] == ["0000:c1:00.0"]


def test_virtual_functions_are_no_part_of_a_card(file: Path) -> None:
    host = server()
    parent = "0000:c5:00.0"
    servers.add_function(host, parent, "1d55:0003:120000")
    servers.add_vfs(host, parent, ("0000:c5:00.1", "0000:c5:00.2"), "1d55:0002:120000")
    found = rows(driver_of(file, host))
    for key in ("0000:c5:00.1", "0000:c5:00.2"):
        assert found[key].reason == (
            "it is a virtual function, and no part of a unit CARD; use unit FUNCTION"
        )


def test_unit_without_iommu_has_the_reason_of_the_host(file: Path) -> None:
    host = server()
    for address in (*PORTS, *OTHER_PORTS, *GPUS):
        host.remove(f"{servers.place(address)}/iommu_group")
    reason = rows(driver_of(file, host))[PORTS[0]].reason or ""
    assert reason.startswith("the host has no IOMMU")


def test_unit_stays_offered_only_to_the_guest_that_has_all_of_it(file: Path) -> None:
    host = server()
    for address in GPUS:
        situations.hold(host, address)
    driver = driver_of(file, host, SERVER)
    kept = Scan(host, managed_deployables={f"compute-1_{GPUS[0]}"})
    assert [device.key for device in driver.discover(kept)] == [GPUS[0]]
    # The conductor keeps one function only: another service may have given out the others.
    other = Scan(host, managed_deployables={f"compute-1_{GPUS[1]}"})
    assert driver.discover(other) == []


def test_function_that_a_guest_has_alone_hides_the_unit(file: Path) -> None:
    """The section offered single functions before, and a guest still has the second one."""
    host = server()
    situations.hold(host, GPUS[1])
    driver = driver_of(file, host, SERVER)
    names = {f"compute-1_{address}" for address in GPUS[:2]}
    (row,) = driver.hardware(Scan(host, managed_deployables=names))
    assert not row.offered
    assert (row.reason or "").startswith(
        f"function {GPUS[1]} of the unit: held through VFIO by qemu-system-x86"
    )


def test_commands_of_a_unit_get_the_address_of_its_function(file: Path) -> None:
    host = server()
    driver = driver_of(file, host)
    driver.install(PORTS[0], "operation")
    assert ran(host) == [f"setup {address}" for address in PORTS]
    row = rows(driver)[PORTS[0]]
    assert (row.reason, row.setup_required) == (None, False)
    host.commands.clear()
    for handle in PORTS:
        driver.prepare(task(handle))
    name = f"compute-1_{PORTS[0]}"
    assert look(driver).prepared() == [Unit(name, handle) for handle in PORTS]
    driver.release(task(PORTS[1]))
    assert look(driver).prepared() == [Unit(name, PORTS[0])]
    assert ran(host) == [f"give {PORTS[0]}", f"give {PORTS[1]}", f"take {PORTS[1]}"]
    host.commands.clear()
    driver.program(ProgramTask("operation", driver.name, PORTS[0], name, "image"), "/tmp/image")
    assert ran(host) == [f"load {address} /tmp/image" for address in PORTS]
    with pytest.raises(exception.DriverFailed, match=f"has no unit {OTHER_PORTS[0]}"):
        driver.prepare(task(OTHER_PORTS[0]))


def test_reset_of_a_unit_is_one_of_each_of_its_functions(file: Path) -> None:
    host = server()
    for address in (*PORTS, *OTHER_PORTS):
        host.add_file(f"{servers.place(address)}/reset", "")
    driver_of(file, host).reset(PORTS[0], ResetLevel.FUNCTION)
    assert host.writes == [(f"{servers.place(address)}/reset", "1") for address in PORTS]


def test_unit_needs_set_up_until_each_function_is_ready(file: Path) -> None:
    host = server()
    host.add_file(f"/run/card/{PORTS[0]}/ready", "")
    driver = driver_of(file, host)
    assert rows(driver)[PORTS[0]].setup_required
    driver.install(PORTS[0], "operation")
    assert ran(host) == [f"setup {PORTS[1]}"]


def test_unit_is_as_healthy_as_its_worst_function(file: Path) -> None:
    host = server()
    driver = driver_of(file, host)
    assert look(driver).health(PORTS[0]) == Judgement()
    host.add_file(f"/run/card/{PORTS[1]}/broken", "")
    health = look(driver).health(PORTS[0])
    assert health.condition is Condition.DRAIN
    assert health.evidence == (f"{PORTS[1]}: it ended with status 1: no link",)


def test_operators_create_nothing_on_a_backend_with_units(file: Path) -> None:
    (backend,) = look(driver_of(file, server())).backends()
    assert backend.creates is None


class SplitsUnits(GenericDriver):
    """Offers the functions of a unit one by one when the unit is not offered."""

    def __init__(self, host: FakeHost, file: Path) -> None:
        super().__init__(host, written(file, SERVER))
        single = SERVER.replace("unit = all\nunit_functions = 8\n", "")
        self._single = GenericDriver(host, written(file, single))

    def discover(self, scan: Scan) -> list[Device]:
        return super().discover(scan) or self._single.discover(scan)


def test_contract_refuses_a_driver_that_splits_units(file: Path) -> None:
    class Splitting(Contract):
        def make_driver(self, host: FakeHost) -> Driver:
            return SplitsUnits(host, file)

    with pytest.raises(AssertionError, match="because guests get them together") as caught:
        Splitting().test_what_is_in_use_is_not_offered()
    assert f"discover() must not offer any of {', '.join(GPUS)}" in str(caught.value)
