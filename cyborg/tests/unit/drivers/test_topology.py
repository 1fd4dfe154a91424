# SPDX-License-Identifier: Apache-2.0
"""What identifies functions of simulated hosts and where they are."""

import errno

import pytest

from cyborg import exception
from cyborg.drivers.files import TEXT_LIMIT
from cyborg.drivers.scan import Scan
from cyborg.drivers.topology import Cards, FactCache
from cyborg.drivers.worker import Worker
from cyborg.model.device import (
    Confidence,
    Device,
    DeviceType,
    Identity,
    IdentityKind,
    Topology,
)
from cyborg.model.pci import PciAddress
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import Gate
from cyborg.tests.unit.drivers.test_serial_numbers import (
    DSN,
    PART,
    SERIAL,
    capability,
    config,
    serial,
    vpd,
)

NIC, PORT_2, OTHER = "0000:18:00.0", "0000:18:00.1", "0000:5e:00.0"
NETWORK = "8086:1572:020000"


@pytest.fixture
def host() -> FakeHost:
    """Return a host with a network card of two ports, and another card of the same kind."""
    made = servers.bare()
    for address in (NIC, PORT_2, OTHER):
        servers.add_function(made, address, NETWORK)
    return made


def cards(host: FakeHost) -> Cards:
    return Cards(host, Scan(host).functions, Worker(), FactCache())


def identity(host: FakeHost, address: str) -> dict[str, str]:
    function = Scan(host).functions[PciAddress.parse(address)]
    return {item.kind.value: item.value for item in cards(host).identity(function)}


def identity_of(device: Device) -> dict[str, str]:
    return {item.kind.value: item.value for item in device.identity}


def topology(host: FakeHost, address: str) -> Topology | None:
    return cards(host).topology(Scan(host).functions[PciAddress.parse(address)])


def file(host: FakeHost, address: str, name: str, content: str | bytes) -> None:
    host.add_file(f"{servers.place(address)}/{name}", content)


def burn(host: FakeHost, text: str, *addresses: str) -> None:
    """Give functions a Device Serial Number."""
    for address in addresses:
        file(host, address, "config", config({0x100: capability(3, 0, serial(text))}))


def answering() -> bytes:
    """Return the configuration space of a card without a number; it begins with the vendor."""
    return config({0: bytes.fromhex("8680")})


def test_function_without_numbers_is_identified_by_its_address(host: FakeHost) -> None:
    [item] = cards(host).identity(Scan(host).functions[PciAddress.parse(NIC)])
    assert item == Identity(IdentityKind.ADDRESS, NIC, Confidence.PLACE)


def test_facts_are_ordered_by_strength_and_equal_in_each_scan(host: FakeHost) -> None:
    servers.add_function(host, NIC, NETWORK, driver="nvme")
    burn(host, DSN, NIC, PORT_2)
    file(host, NIC, "vpd", vpd(PART, SERIAL))
    file(host, NIC, "nvme/nvme0/model", "MODEL X   \n")
    file(host, NIC, "nvme/nvme0/serial", "S123  \n")
    host.add_file("/sys/bus/pci/slots/4-1/address", "0000:18:00\n")
    assert identity(host, NIC) == identity(host, NIC)
    assert list(identity(host, NIC).items()) == [
        ("vendor", "MODEL X S123"),
        ("dsn", DSN),
        ("slot", "4-1 8086:1572"),
        ("address", NIC),
    ]
    assert identity(host, PORT_2) == {
        "dsn": f"{DSN}/1",
        "slot": "4-1 8086:1572/1",
        "address": PORT_2,
    }


def test_number_of_the_kernel_saves_reading_the_configuration_space(host: FakeHost) -> None:
    file(host, NIC, "serial_number", f"{DSN}\n")
    host.faults[f"{servers.place(NIC)}/config"] = errno.EIO
    assert identity(host, NIC)["dsn"] == DSN
    # This is the file of amdgpu, which has the same name.
    file(host, PORT_2, "serial_number", "001b21ffff123456\n")
    burn(host, DSN, PORT_2)
    assert identity(host, PORT_2)["dsn"] == f"{DSN}/1"


@pytest.mark.parametrize(
    ("driver", "name", "text", "value"),
    [
        ("amdgpu", "unique_id", "a1b2c3d4e5f60718\n", "a1b2c3d4e5f60718"),
        ("amdgpu", "unique_id", "0\n", None),
        ("other", "unique_id", "a1b2c3d4e5f60718\n", None),
        ("cxl_pci", "mem0/serial", "0x1234567\n", "0x1234567"),
        ("cxl_pci", "mem0/serial", "0x0\n", None),
        ("nvme", "nvme/nvme0/serial", "\n", None),
        ("nvme", "nvme/nvme0/serial", "S1\n", "S1"),
    ],
)
def test_number_of_the_manufacturer_comes_from_the_host_driver(
    host: FakeHost, driver: str, name: str, text: str, value: str | None
) -> None:
    servers.add_function(host, "0000:71:00.0", "1002:74a1:120000", driver=driver)
    file(host, "0000:71:00.0", name, text)
    assert identity(host, "0000:71:00.0").get("vendor") == value


def test_number_that_several_cards_have_identifies_none(host: FakeHost) -> None:
    burn(host, DSN, NIC, PORT_2, OTHER)
    assert [identity(host, address).get("dsn") for address in (NIC, PORT_2, OTHER)] == [None] * 3
    assert topology(host, NIC) == Topology(siblings=(PORT_2,))
    burn(host, "00-1b-21-ff-ff-65-43-21", OTHER)
    assert identity(host, NIC)["dsn"] == DSN
    assert identity(host, OTHER)["dsn"] == "00-1b-21-ff-ff-65-43-21"


def test_card_with_functions_at_two_places_has_one_number(host: FakeHost) -> None:
    engine, bridge = "0000:1a:00.0", "0000:17:00.0"
    servers.add_function(host, engine, "8086:37c8:0b4000")
    servers.add_function(host, bridge, "8086:37c0:060400")
    burn(host, DSN, NIC, PORT_2, engine, bridge)
    assert identity(host, engine)["dsn"] == DSN
    assert topology(host, engine) == Topology(siblings=(NIC, PORT_2))
    assert topology(host, PORT_2) == Topology(siblings=(NIC, engine))


def test_virtual_function_has_the_numbers_of_its_parent_with_its_own_number() -> None:
    host = servers.server()
    burn(host, DSN, servers.QAT_PF)
    first, second = servers.QAT_VFS
    host.add_file("/sys/bus/pci/slots/7/address", "0000:3d:00\n")
    assert identity(host, second) == {
        "dsn": f"{DSN}/vf1",
        "slot": "7 8086:37c8/vf1",
        "address": second,
    }
    assert identity(host, first)["dsn"] == f"{DSN}/vf0"
    assert topology(host, second) == Topology(siblings=(servers.QAT_PF,))
    # Without the link of its number, only its address is certain.
    host.remove(f"{servers.place(servers.QAT_PF)}/virtfn1")
    assert identity(host, second) == {"address": second}


def switched(host: FakeHost, *cards: str) -> None:
    """Add a root port, a switch with two downstream ports, and cards behind them."""
    root = "/sys/devices/pci0000:40"
    upstream = f"{root}/0000:40:01.0/0000:41:00.0"
    paths = [f"{root}/0000:40:01.0", upstream]
    for number, card in enumerate(cards):
        port = f"{upstream}/0000:42:{number:02x}.0"
        paths += [port, f"{port}/{card}"]
    for path in paths:
        name = path.rpartition("/")[2]
        kind = "030200" if name in cards else "060400"
        for file, text in {"vendor": "0x10de", "device": "0x20b5", "class": f"0x{kind}"}.items():
            host.add_file(f"{path}/{file}", text)
        host.add_link(f"/sys/bus/pci/devices/{name}", f"../../..{path.removeprefix('/sys')}")


def test_cards_behind_one_switch_have_its_upstream_port_in_common() -> None:
    host = servers.bare()
    switched(host, "0000:43:00.0", "0000:44:00.0")
    expected = Topology(root_port="0000:40:01.0", switch="0000:41:00.0")
    assert topology(host, "0000:43:00.0") == topology(host, "0000:44:00.0") == expected


def test_bridge_with_one_place_below_is_no_switch() -> None:
    host = servers.bare()
    switched(host, "0000:43:00.0")
    expected = Topology(root_port="0000:40:01.0")
    assert topology(host, "0000:43:00.0") == expected
    # Virtual functions have device numbers of their own.
    path = "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0"
    for name, text in {"vendor": "0x10de", "device": "0x20b6", "class": "0x030200"}.items():
        host.add_file(f"{path}/0000:43:01.0/{name}", text)
    host.add_link(f"{path}/0000:43:01.0/physfn", "../0000:43:00.0")
    host.add_link("/sys/bus/pci/devices/0000:43:01.0", f"../../..{path[4:]}/0000:43:01.0")
    assert topology(host, "0000:43:00.0") == expected


def test_root_port_below_a_volume_management_device_is_that_of_its_own_complex() -> None:
    host = servers.bare()
    path = "/sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:01.0/10000:e1:00.0"
    for name, text in {"vendor": "0x8086", "device": "0x0a54", "class": "0x010802"}.items():
        host.add_file(f"{path}/{name}", text)
    host.add_link("/sys/bus/pci/devices/10000:e1:00.0", f"../../..{path[4:]}")
    assert topology(host, "10000:e1:00.0") == Topology(root_port="10000:e0:01.0")


def test_function_that_has_left_the_bus_is_an_error(host: FakeHost) -> None:
    function = Scan(host).functions[PciAddress.parse(NIC)]
    reader = cards(host)
    host.remove(servers.place(NIC))
    with pytest.raises(exception.HostError):
        reader.topology(function)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_files_that_cannot_be_read_hide_no_other_fact(host: FakeHost, number: int) -> None:
    for name in ("vpd", "config"):
        file(host, NIC, name, b"")
        host.faults[f"{servers.place(NIC)}/{name}"] = number
    host.add_file("/sys/bus/pci/slots/1/address", "0000:18:00\n")
    host.add_file("/sys/bus/pci/slots/2/address", "\0no place\n")
    assert identity(host, NIC) == {"slot": "1 8086:1572", "address": NIC}
    reader, function = cards(host), Scan(host).functions[PciAddress.parse(NIC)]
    host.faults[servers.place(NIC)] = number
    assert reader.topology(function) is None
    assert [item.value for item in reader.identity(function)] == ["1 8086:1572", NIC]
    assert identity(host, PORT_2)["address"] == PORT_2


class SlowVpd(FakeHost):
    """A host whose VPD is not readable before the end of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.end = Gate()
        self.reads = 0

    def read_bytes(self, path: str, limit: int = TEXT_LIMIT) -> bytes:
        """See Host."""
        if path.endswith("/vpd"):
            self.reads += 1
            self.end.hold()
        return super().read_bytes(path, limit)


def test_vpd_is_read_only_where_no_other_number_is_known(host: FakeHost) -> None:
    """Cards answer this slowly, and some not at all."""
    file(host, NIC, "vpd", vpd(PART, SERIAL))
    assert identity(host, NIC) == {"vpd": "MT2201X00123", "address": NIC}
    burn(host, DSN, NIC)
    assert identity(host, NIC) == {"dsn": DSN, "address": NIC}


def test_vpd_that_is_slow_is_left_out() -> None:
    host = SlowVpd()
    servers.add_function(host, NIC, NETWORK)
    file(host, NIC, "vpd", vpd(SERIAL))
    function = Scan(host).functions[PciAddress.parse(NIC)]
    worker = Worker(wait=host.end.limit)
    try:
        facts = [
            Cards(host, {function.address: function}, worker, FactCache()).identity(function)
            for _ in range(3)
        ]
    finally:
        host.end.set()
    assert [[item.kind.value for item in items] for items in facts] == [["address"]] * 3
    assert host.reads == 1


def test_number_that_the_driver_knows_replaces_that_of_the_host(host: FakeHost) -> None:
    servers.add_function(host, NIC, NETWORK, driver="nvme")
    file(host, NIC, "nvme/nvme0/serial", "S1\n")
    own = Identity(IdentityKind.VENDOR, "GPU-1", Confidence.UNIQUE)
    device = Device(NIC, DeviceType.NIC, "8086", "m", {}, (), identity=(own,))
    scan = Scan(host)
    described = scan.with_facts(device, scan.functions[PciAddress.parse(NIC)])
    address = Identity(IdentityKind.ADDRESS, NIC, Confidence.PLACE)
    assert described.identity == (own, address)


def facts_of(host: FakeHost, address: str, cache: FactCache) -> Device:
    """Return an offered function with the facts of a new scan that shares a cache with others."""
    scan = Scan(host, cache=cache)
    device = Device(address, DeviceType.NIC, "8086", "m", {}, ())
    return scan.with_facts(device, scan.functions[PciAddress.parse(address)])


def test_later_scan_reads_nothing_that_cannot_change(host: FakeHost) -> None:
    """Cards answer the configuration space and the VPD slowly."""
    burn(host, DSN, NIC)
    file(host, PORT_2, "config", answering())
    file(host, PORT_2, "vpd", vpd(PART, SERIAL))
    file(host, OTHER, "config", answering())
    cache, calls = FactCache(), list[str]()
    host.on_call = calls.append
    slow = ("config", "vpd", "serial_number")

    def read() -> tuple[list[Device], list[str]]:
        calls.clear()
        devices = [facts_of(host, address, cache) for address in (NIC, PORT_2, OTHER)]
        return devices, [call for call in calls if call.rpartition("/")[2] in slow]

    first, touched = read()
    assert f"{servers.place(NIC)}/config" in touched
    assert f"{servers.place(PORT_2)}/vpd" in touched
    assert read() == (first, [])
    assert [list(identity_of(device)) for device in first] == [
        ["dsn", "address"],
        ["vpd", "address"],
        ["address"],
    ]


def test_card_in_the_slot_of_another_has_its_own_facts(host: FakeHost) -> None:
    """No scan and no uevent need to come between: the new directory has another number."""
    burn(host, DSN, NIC)
    cache = FactCache()
    assert identity_of(facts_of(host, NIC, cache))["dsn"] == DSN
    card = host.take(servers.place(NIC))
    host.put_back(card)
    burn(host, "00-1b-21-ff-ff-65-43-21", NIC)
    assert identity_of(facts_of(host, NIC, cache))["dsn"] == "00-1b-21-ff-ff-65-43-21"
    host.remove(servers.place(NIC))
    switched(host, NIC)
    topology = facts_of(host, NIC, cache).topology
    assert topology == Topology(root_port="0000:40:01.0", siblings=(PORT_2,))


def test_virtual_function_with_the_address_of_another_has_its_own_number() -> None:
    host = servers.server()
    burn(host, DSN, servers.QAT_PF)
    cache, (first, second) = FactCache(), servers.QAT_VFS
    assert identity_of(facts_of(host, second, cache))["dsn"] == f"{DSN}/vf1"
    parent = servers.place(servers.QAT_PF)
    real = host.realpath(f"/sys/bus/pci/devices/{second}")
    host.put_back(host.take(real))
    for name in ("virtfn0", "virtfn1"):
        host.remove(f"{parent}/{name}")
    host.add_link(f"{parent}/virtfn0", f"../{second}")
    assert identity_of(facts_of(host, second, cache))["dsn"] == f"{DSN}/vf0"
    assert identity_of(facts_of(host, first, cache)) == {"address": first}


@pytest.mark.parametrize("config_space", [b"\xff" * 4096, b"", None])
def test_number_of_a_card_that_does_not_answer_is_read_again(
    host: FakeHost, config_space: bytes | None
) -> None:
    cache = FactCache()
    for name, content in {"config": config_space, "vpd": b""}.items():
        if content is not None:
            file(host, NIC, name, content)
    host.faults[f"{servers.place(NIC)}/vpd"] = errno.EIO
    assert list(identity_of(facts_of(host, NIC, cache))) == ["address"]
    host.faults.clear()
    file(host, NIC, "vpd", vpd(PART, SERIAL))
    assert list(identity_of(facts_of(host, NIC, cache))) == ["vpd", "address"]
    burn(host, DSN, NIC)
    assert identity_of(facts_of(host, NIC, cache))["dsn"] == DSN


def test_facts_that_can_change_are_read_in_each_scan(host: FakeHost) -> None:
    """The number of a host driver, the slot, the NUMA node and the neighbours."""
    cache = FactCache()
    servers.add_function(host, NIC, NETWORK, driver="nvme", node=0)
    before = facts_of(host, NIC, cache)
    file(host, NIC, "nvme/nvme0/serial", "S1\n")
    file(host, NIC, "numa_node", "1\n")
    host.add_file("/sys/bus/pci/slots/1/address", "0000:18:00\n")
    host.remove(f"/sys/bus/pci/devices/{PORT_2}")
    after = facts_of(host, NIC, cache)
    assert (before.numa_node, after.numa_node) == (0, 1)
    assert list(identity_of(before)) == ["address"]
    assert list(identity_of(after)) == ["vendor", "slot", "address"]
    assert (before.topology, after.topology) == (Topology(siblings=(PORT_2,)), Topology())


def test_facts_of_a_function_that_was_removed_are_an_error(host: FakeHost) -> None:
    cache = FactCache()
    facts_of(host, NIC, cache)
    scan = Scan(host, cache=cache)
    function = scan.functions[PciAddress.parse(NIC)]
    host.remove(servers.place(NIC))
    with pytest.raises(exception.HostError):
        scan.with_facts(Device(NIC, DeviceType.NIC, "8086", "m", {}, ()), function)
