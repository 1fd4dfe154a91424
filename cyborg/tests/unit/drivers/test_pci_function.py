# SPDX-License-Identifier: Apache-2.0
"""A PCI function is parsed from its files, or refused with the reason."""

import pytest

from cyborg.drivers.pci_function import (
    PciFunction,
    RawFunction,
    addresses_in_path,
    parse_function,
    parse_name,
)
from cyborg.model.pci import PciAddress

FILES = {"vendor": "0x10de", "device": "0x20b5", "class": "0x030200"}


def raw(
    name: str = "0000:3b:00.0",
    *,
    files: dict[str, str] | None = None,
    links: dict[str, str] | None = None,
) -> RawFunction:
    return RawFunction(name, FILES | (files or {}), links or {})


def test_a_function_with_the_mandatory_files_only_is_parsed() -> None:
    assert parse_function(raw()) == PciFunction(PciAddress(0, 0x3B, 0, 0), 0x10DE, 0x20B5, 0x030200)


def test_a_function_with_all_files_and_links_is_parsed() -> None:
    function = parse_function(
        raw(
            files={
                "DRIVER": "vfio-pci",
                "PCI_SUBSYS_ID": "10DE:1533",
            },
            links={"iommu_group": "7", "physfn": "0000:3b:00.1"},
        )
    )
    assert function.group == "7"
    assert function.subsystem == (0x10DE, 0x1533)
    assert function.on_vfio
    assert function.parent == PciAddress(0, 0x3B, 0, 1)


def test_the_lines_of_uevent_count_before_the_files() -> None:
    lines = {"PCI_ID": "8086:37C8", "PCI_CLASS": "B4000", "vendor": "0x10de"}
    function = parse_function(RawFunction("0000:3d:00.0", lines))
    assert (function.vendor, function.product, function.class_code) == (0x8086, 0x37C8, 0x0B4000)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (raw("0000:3b:00"), "its name is not a PCI address"),
        (raw("0000:3b:20.0"), "its name is not a PCI address"),
        (raw("0000:3b:00.8"), "its name is not a PCI address"),
        (RawFunction("0000:3b:00.0", {}), "it has no vendor"),
        (raw(files={"vendor": "0xffff"}), "it does not answer on the bus"),
        (raw(files={"vendor": "10de"}), "its vendor reads '10de'"),
        (raw(files={"device": "0x20b"}), "its device reads '0x20b'"),
        (raw(files={"class": "0x0302"}), "its class reads '0x0302'"),
        (raw(files={"PCI_ID": "10DE", "PCI_CLASS": "30200"}), "its uevent has '10DE'"),
        (raw(files={"PCI_ID": "10DE:20B5"}), "and class ''"),
        (raw(links={"physfn": "nowhere"}), "its physfn points to 'nowhere'"),
        (RawFunction("0000:3b:00.0", error="reading it failed"), "reading it failed"),
    ],
)
def test_parse_function_fails_for_invalid_files(bad: RawFunction, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_function(bad)


def test_addresses_in_path_returns_all_functions_of_a_path() -> None:
    path = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/net/eno1"
    assert [str(address) for address in addresses_in_path(path)] == ["0000:3a:00.0", "0000:3b:00.0"]


@pytest.mark.parametrize("name", ["pci0000:00", "0:0:0:0", "00:1f.0", "1-1:1.0", "0000:3B:00.0"])
def test_parse_name_returns_none_for_other_names(name: str) -> None:
    assert parse_name(name) is None


def test_parse_name_accepts_domains_above_ffff() -> None:
    assert parse_name("10000:e1:00.0") == PciAddress(0x10000, 0xE1, 0, 0)
