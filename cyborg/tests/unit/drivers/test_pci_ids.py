# SPDX-License-Identifier: Apache-2.0
"""Readable names of PCI ids, with and without the host's list."""

import errno

import pytest

from cyborg.drivers import pci_ids
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost

A100 = (0x10DE, 0x20B5)


def test_names_come_from_the_hosts_list() -> None:
    names = pci_ids.read_names(servers.server(), [A100])
    assert names.vendor(0x10DE) == "NVIDIA Corporation"
    assert names.product(*A100) == "GA100 [A100 PCIe 80GB]"
    assert (list(names.products), list(names.vendors)) == ([A100], [0x10DE])


def test_classes_in_the_list_are_not_vendors() -> None:
    """A careless parser would take ``C 03`` for vendor c03 with product 00."""
    names = pci_ids.read_names(servers.server(), [(0x0C03, 0x0000), (0x8086, 0x0000)])
    assert names.product(0x8086, 0x0000) == "0000"
    assert 0x0C03 not in names.vendors


def test_the_list_is_found_in_red_hats_directory() -> None:
    host = FakeHost({"/usr/share/hwdata/pci.ids": "10de  NVIDIA Corporation\n\t20b5  A100\n"})
    assert pci_ids.read_names(host, [A100]).product(*A100) == "A100"


def test_without_a_list_unknown_vendors_have_their_id() -> None:
    names = pci_ids.read_names(servers.bare(), [A100])
    assert names.vendor(0x10DE) == "NVIDIA"
    assert names.vendor(0x1D5F) == "1d5f"
    assert names.product(*A100) == "20b5"


@pytest.mark.parametrize("fault", [errno.EIO, errno.EACCES])
def test_a_list_that_cannot_be_read_is_ignored(fault: int) -> None:
    host = servers.server()
    host.faults[pci_ids.PATHS[0]] = fault
    assert pci_ids.read_names(host, [A100]).product(*A100) == "20b5"


def test_names_fit_their_database_column() -> None:
    names = pci_ids.parse(f"10de  X\n\t20b5  {'y' * 300}\n", [A100])
    assert names.product(*A100) == "y" * 255


@pytest.mark.parametrize(
    ("class_code", "word"),
    [(0x060400, "bridge"), (0x120000, "processing accelerator"), (0xFF0000, "other")],
)
def test_kind_names_the_base_class(class_code: int, word: str) -> None:
    assert pci_ids.kind(class_code) == word
