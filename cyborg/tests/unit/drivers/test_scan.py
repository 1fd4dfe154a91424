# SPDX-License-Identifier: Apache-2.0
"""Malformed files, links and names of sysfs and /proc: their device is left out, with a reason."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import pci_ids, serial_numbers, vf_layout
from cyborg.drivers.base import Driver
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.scan import Scan
from cyborg.model import wire
from cyborg.model.pci import PciAddress
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.testing import servers
from cyborg.testing.driver_checks import check_device, look
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures import malformed
from cyborg.tests.fixtures.properties import fuzzed, given, st
from cyborg.tests.unit.drivers.configured import configured, written

GPU = servers.place(servers.GPU, servers.ROOT_PORT)
#: A section with mediated devices, and one that divides cards.
BACKENDS = {
    "mdev": {
        "pci_ids": "10de:20b5",
        "resource_class": "VGPU",
        "attach_type": "MDEV",
        "mdev_type": "nvidia-35",
    },
    "qat": {"sysfs_class": "crypto", "resource_class": "CUSTOM_QAT", "layout": "vfs=4"},
}


def machine() -> FakeHost:
    """A server with every file and link that a scan reads."""
    host = servers.server()
    uevent = (
        "DRIVER=vfio-pci\nPCI_CLASS=30200\nPCI_ID=10DE:20F1\nPCI_SUBSYS_ID=10DE:1533\n"
        f"PCI_SLOT_NAME={servers.GPU_ON_VFIO}\n"
    )
    free = servers.place(servers.GPU_ON_VFIO)
    host.add_file(f"{free}/uevent", uevent)
    host.add_file(f"{free}/serial_number", "00-1b-21-ff-ff-12-34-56\n")
    host.add_file(f"{free}/vpd", b"\x82\x04\x00card\x90\x09\x00SN\x06012345\x78")
    host.add_file(f"{free}/config", b"\xde\x10\xf1\x20" + bytes(252))
    host.add_link(f"{free}/vfio-dev/vfio0", "../vfio0")
    servers.open_vfio(host, "devices/vfio0", 4711, "qemu-system-x86")
    kind = f"{GPU}/mdev_supported_types/nvidia-35"
    host.add_file(f"{kind}/available_instances", "4\n")
    host.add_link(f"{kind}/devices/5a1fbd6e-6f5c-4c59-9c0b-6d1f1f0d3c11", "../x")
    host.add_link("/sys/bus/mdev/devices/5a1fbd6e-6f5c-4c59-9c0b-6d1f1f0d3c11", f"{GPU}/x")
    host.add_dir(f"{GPU}/x")
    mig = "/proc/driver/nvidia"
    host.add_file(f"{mig}/gpus/{servers.GPU}/information", "Model: A100\nDevice Minor: \t 0\n")
    host.add_dir(f"{mig}/capabilities/gpu0/mig/other")
    host.add_file("/sys/bus/pci/slots/4-1/address", "0000:af:00\n")
    host.add_link("/sys/class/crypto/c6xx_dev0", f"../../..{servers.place(servers.QAT_PF)}")
    host.add_link(f"{servers.place(servers.NIC_IDLE)}/net/eno2/master", "../../bond0")
    servers.append(host, "/proc/swaps", "/dev/nvme1n1 partition 1 0 -2\n")
    host.add_link("/sys/fs/ext4/nvme0n1p1", "../x")
    return host


MACHINE = machine()
EVERYTHING = configured("{}")
PATHS = [path for path in MACHINE.paths() if path != pci_ids.PATHS[0]]
#: NAME_MAX of the kernel.
_LONGEST_NAME = 255
#: Directories whose names are parsed.
DIRECTORIES = [
    *("/sys/bus/pci/devices", "/sys/class/net", "/sys/class/block", "/sys/bus/pci/slots", "/proc"),
    *(f"{GPU}/mdev_supported_types", "/sys/fs", "/sys/class/crypto"),
]


@st.composite
def machines(draw: st.DrawFn) -> FakeHost:
    """The machine with up to four malformed files, links and names."""
    host = MACHINE.copy()
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 3)) == 0:
            parent = draw(st.sampled_from(DIRECTORIES))
            near = draw(st.sampled_from([*host.list_dir(parent), "7"]))
            name = draw(
                malformed.texts(near).map(lambda text: re.sub("[/\0]", "", text)[:_LONGEST_NAME])
            )
            if name not in ("", ".", ".."):
                host.add_link(f"{parent}/{name}", draw(malformed.texts("../../devices/x")))
            continue
        path = draw(st.sampled_from(PATHS))
        target = host.target(path)
        if target is not None:
            host.add_link(path, draw(malformed.texts(target)))
        elif (content := host.content(path)) is not None:
            host.add_file(path, draw(malformed.contents(content)))
    return host


@pytest.fixture(scope="module")
def settings_of_backends(tmp_path_factory: pytest.TempPathFactory) -> cfg.ConfigOpts:
    """The configuration of the generic_driver with BACKENDS."""
    sections = (
        f"[generic_driver:{name}]\n"
        + "".join(f"{key} = {value}\n" for key, value in options.items())
        for name, options in BACKENDS.items()
    )
    text = f"[generic_driver]\nbackends = {', '.join(BACKENDS)}\n" + "".join(sections)
    return written(tmp_path_factory.mktemp("generic") / "cyborg.conf", text)


def ask(call: Any, *arguments: Any) -> Any:
    """Return the answer, or None for the declared error."""
    try:
        return call(*arguments)
    except exception.HostError as error:
        malformed.check_refusal(error, most=1000)
        return None


@given(machines())
@fuzzed(60)
def test_malformed_host_is_scanned(host: FakeHost) -> None:
    with malformed.bounded():
        scan = Scan(host)
        assert all(scan.unreadable.values())
        for function in scan.functions.values():
            for managed, whole in ((False, True), (True, True), (False, False)):
                reason = scan.refusal(function, managed=managed, whole=whole)
                assert reason is None or (reason and len(reason) < 1_000_000)
            ask(scan.numa_node, function.address)
            ask(scan.mdev_types, function.address)
            ask(scan.vfs, function.address)
            assert len(vf_layout.read(scan, function, 4).layouts) <= vf_layout.MOST + 1


@given(machines(), st.booleans())
@fuzzed(40)
def test_devices_of_a_malformed_host_can_be_stored(
    settings_of_backends: cfg.ConfigOpts, host: FakeHost, whitelisted: bool
) -> None:
    driver: Driver = (
        PciDriver(host, EVERYTHING) if whitelisted else GenericDriver(host, settings_of_backends)
    )
    with malformed.bounded():
        devices, hardware = look(driver).discover(), look(driver).hardware()
        for device in devices:
            check_device(device)
        state = DriverState.READY
        report = Report(
            (DriverReport(driver.name, state, tuple(devices), hardware=tuple(hardware)),)
        )
        assert wire.load(Report, json.loads(json.dumps(wire.dump(report)))) == report
        assert [device.validate() for device in devices] == [None] * len(devices)
        assert [entry.validate() for entry in hardware] == [None] * len(hardware)


@pytest.mark.parametrize("text", ["9" * 5_000, "\u0664", "-1", ""])
def test_number_of_mediated_devices_that_is_none_is_an_error(text: str) -> None:
    host = MACHINE.copy()
    file = f"{GPU}/mdev_supported_types/nvidia-35/available_instances"
    host.add_file(file, text)
    with pytest.raises(exception.HostError, match="available_instances of nvidia-35 reads"):
        Scan(host).mdev_types(PciAddress.parse(servers.GPU))


@given(st.data())
@fuzzed(40)
def test_malformed_function_changes_no_other_function(data: st.DataObject) -> None:
    host = MACHINE.copy()
    path = data.draw(st.sampled_from([path for path in PATHS if path.startswith("/sys/devices/")]))
    content = host.content(path)
    if content is not None:
        host.add_file(path, data.draw(malformed.contents(content)))
    before, after = Scan(MACHINE).functions, Scan(host).functions
    # The number of virtual functions of a card depends on those that can be understood.
    damaged = [
        address
        for address, function in before.items()
        if address not in after or function != replace(after[address], vfs=function.vfs)
    ]
    assert all(f"/{address}/" in path for address in damaged)
    assert len(damaged) <= 1


@given(malformed.contents(b"\x82\x04\x00card\x90\x0d\x00SN\x06012345RV\x01\x4a\x78"))
@fuzzed(200)
def test_malformed_vpd_has_a_printable_number_or_none(vpd: bytes) -> None:
    with malformed.bounded():
        number = serial_numbers.vpd_serial_number(vpd)
    assert number is None or (number.isprintable() and 0 < len(number) <= 255)


@given(malformed.contents(bytes(256) + b"\x03\x00\x01\x14" + b"\x01" * 8 + bytes(3820)))
@fuzzed(100)
def test_malformed_configuration_space_has_a_number_or_none(config: bytes) -> None:
    with malformed.bounded():
        number = serial_numbers.dsn_of_config(config)
    assert number is None or serial_numbers.dsn_of_file(number) == number


@given(malformed.texts("10de  NVIDIA\n\t20b5  GA100\n\t\t10de 1533  A100\nC 03  Display\n"))
@fuzzed(100)
def test_malformed_pci_ids_give_names_or_ids(text: str) -> None:
    with malformed.bounded():
        names = pci_ids.parse(text, [(0x10DE, 0x20B5)])
    assert 0 < len(names.product(0x10DE, 0x20B5)) <= 255
    assert 0 < len(names.vendor(0x10DE)) <= 255
