# SPDX-License-Identifier: Apache-2.0
"""Names for people, from the host's list or without it."""

import errno

import pytest

from cyborg.drivers import pci_ids
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost

A100 = (0x10DE, 0x20B5)


def test_the_hosts_list_names_vendor_and_product() -> None:
    names = pci_ids.read_names(servers.server(), [A100])
    assert names.vendor(0x10DE) == "NVIDIA Corporation"
    assert names.product(*A100) == "GA100 [A100 PCIe 80GB]"


def test_only_what_was_asked_for_is_kept() -> None:
    names = pci_ids.read_names(servers.server(), [A100])
    assert list(names.products) == [A100]
    assert list(names.vendors) == [0x10DE]


def test_classes_at_the_end_are_no_vendors() -> None:
    """``C 03`` would read as a vendor c03 with a product 00 to a careless reader."""
    names = pci_ids.read_names(servers.server(), [(0x0C03, 0x0000), (0x8086, 0x0000)])
    assert names.product(0x8086, 0x0000) == "0000"
    assert 0x0C03 not in names.vendors


def test_red_hats_place_is_looked_at_too() -> None:
    host = FakeHost({"/usr/share/hwdata/pci.ids": "10de  NVIDIA Corporation\n\t20b5  A100\n"})
    assert pci_ids.read_names(host, [A100]).product(*A100) == "A100"


def test_without_a_list_some_vendors_have_names_and_the_rest_ids() -> None:
    names = pci_ids.read_names(servers.bare(), [A100])
    assert names.vendor(0x10DE) == "NVIDIA"
    assert names.vendor(0x1D5F) == "1d5f"
    assert names.product(*A100) == "20b5"


@pytest.mark.parametrize("fault", [errno.EIO, errno.EACCES])
def test_a_broken_list_is_no_list(fault: int) -> None:
    host = servers.server()
    host.faults[pci_ids.PATHS[0]] = fault
    assert pci_ids.read_names(host, [A100]).product(*A100) == "20b5"


def test_names_fit_the_column_that_keeps_them() -> None:
    names = pci_ids.parse(f"10de  X\n\t20b5  {'y' * 300}\n", [A100])
    assert names.product(*A100) == "y" * 255


@pytest.mark.parametrize(
    ("class_code", "word"),
    [(0x060400, "bridge"), (0x030200, "display"), (0x120000, "processing accelerator")],
)
def test_a_class_has_a_word(class_code: int, word: str) -> None:
    assert pci_ids.kind(class_code) == word


def test_an_odd_class_is_other() -> None:
    assert pci_ids.kind(0xFF0000) == "other"
