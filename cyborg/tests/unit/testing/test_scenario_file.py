# SPDX-License-Identifier: Apache-2.0
"""Tests of the schema of scenario hosts: what a file may say, and what errors name."""

import dataclasses
import inspect
from pathlib import Path

import pytest

import cyborg
from cyborg.testing import scenario_file, scenario_hosts

MINIMAL = """\
description: A host
sources: [nobody]
kernel: 6.8.0
nodes: [{cpus: 0-3}]
functions:
  - {address: 0000:00:01.0, ids: "8086:352a", class: "060400", node: 0}
  - {address: 0000:01:00.0, ids: "8086:1533", class: "020000", below: 0000:00:01.0,
     interface: {name: eno1}}
drivers: []
refused: []
mounts: {}
default_route: eno1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "host.yaml"


def parsed(file: Path, text: str) -> scenario_file.Scenario:
    file.write_text(text)
    return scenario_file.read(file)


def test_texts_that_look_like_numbers_stay_texts(file: Path) -> None:
    root, port = parsed(file, MINIMAL).functions
    assert (root.address, root.class_, root.node) == ("0000:00:01.0", "060400", 0)
    assert (port.below, port.node) == ("0000:00:01.0", None)


def test_entry_with_several_addresses_stands_for_several_functions(file: Path) -> None:
    more = """\
  - address: [0000:02:00.0, 0000:03:00.0]
    number: 4
    ids: 10ee:5004
    class: ["120000", "0b4000"]
    sriov: {total: 8, device: 000a, offset: [1, 8]}
    dev: ["/dev/card{n}", "/dev/{address}"]
    files: {"card{n:02d}/bus": "{ADDRESS}"}
  - {address: 0000:0f:1f.7, count: 3, step: 0000:01:00.0, ids: "10ee:5004", class: "120000"}
drivers: []
"""
    functions = parsed(file, MINIMAL.replace("drivers: []\n", more)).functions[2:]
    first, second = functions[:2]
    assert (first.class_, second.class_) == ("120000", "0b4000")
    assert first.sriov is not None
    assert second.sriov is not None
    assert (first.sriov.offset, second.sriov.offset) == (1, 8)
    assert second.dev == ("/dev/card5", "/dev/0000:03:00.0")
    assert second.files == {"card05/bus": "0000:03:00.0"}
    assert [one.address for one in functions[2:]] == [
        "0000:0f:1f.7",
        "0000:10:1f.7",
        "0000:11:1f.7",
    ]


def test_parts_are_merged_and_own_keys_win(file: Path) -> None:
    more = """\
parts:
  card: &card {ids: "10ee:5004", class: "120000", revision: "01"}
  linked: &linked {link: 8.0 GT/s x8, revision: "02"}
functions:
  - {<<: [*card, *linked], address: 0000:02:00.0, class: "120001"}
"""
    function = parsed(file, MINIMAL.replace("functions:\n", more)).functions[0]
    assert (function.ids, function.class_) == ("10ee:5004", "120001")
    assert (function.revision, function.link) == ("01", "8.0 GT/s x8")


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("kernel: 6.8.0\n", "", "kernel: the key is missing"),
        ("kernel: ", "kernels: ", "kernels: no such key; there are description, sources"),
        ("sources: [nobody]", "sources: nobody", "sources: it is not a list"),
        ("mounts: {}", "mounts: []", "mounts: it is not a mapping"),
        ("kernel: 6.8.0", "kernel: [6.8.0]", "kernel: it is not one value"),
        ("node: 0", "node: x", "functions[0].node: 'x' is not a whole number"),
        ("node: 0", "node: 1", "functions, 0000:00:01.0.node: there are 1 nodes, counted from 0"),
        ("node: 0", "node: [0, 0]", "functions[0].node: it has 2 values for 1 addresses"),
        ("8086:352a", "8086:352A", "functions[0].ids: '8086:352A' is not two ids such as 10de"),
        ("0000:00:01.0, ids", "00:01.0, ids", "functions[0].address: '00:01.0' is not an address"),
        ("node: 0", "count: 2", "functions[0].count: it needs one address, and a step such as"),
        ("below: 0000:00:01.0", "below: 0000:00:02.0", "0000:01:00.0.below: no function before it"),
        ("0000:01:00.0", "0000:00:01.0", "functions, 0000:00:01.0: the address is there twice"),
        ("node: 0", "bars: [16]", "functions[0].bars[0]: '16' is not a size such as 16M"),
        ("name: eno1", "name: eno2", "default_route: there is no interface 'eno1'"),
        (
            "refused: []",
            "refused: [{address: 0000:09:00.0, reason: x}]",
            "refused: there is no function",
        ),
        ("mounts: {}", "mounts: {/: sda1}", "mounts: there is no block device 'sda1'"),
        ("mounts: {}", "mounts: {}\nswaps: [sda1]", "swaps: there is no block device 'sda1'"),
        ("mounts: {}", "mounts: {}\niommu: off", "iommu: 'off' is neither true nor false"),
        ("mounts: {}", "mounts: {}\nbonds: [{name: bond0, ports: [x]}]", "bonds, bond0: there is"),
        ("node: 0", "sriov: {total: 1, device: 000a, enabled: 2}", "enabled: it is more than"),
        ("kernel: 6.8.0", "kernel: {", "it is not YAML"),
    ],
)
def test_error_names_file_and_key(file: Path, old: str, new: str, error: str) -> None:
    with pytest.raises(ValueError, match=r"host\.yaml: ") as caught:
        parsed(file, MINIMAL.replace(old, new, 1))
    assert error in str(caught.value)


def test_file_that_cannot_be_read_is_named(file: Path) -> None:
    with pytest.raises(ValueError, match=r"host\.yaml: the file cannot be read: No such file"):
        scenario_file.read(file)


def test_every_key_and_host_is_documented() -> None:
    page = Path(cyborg.__file__).parents[1] / "doc/source/contributor/scenario-hosts.rst"
    text = page.read_text()
    kinds = [kind for _, kind in inspect.getmembers(scenario_file, dataclasses.is_dataclass)]
    keys = {
        one.name.removesuffix("_")
        for kind in kinds
        if kind.__module__ == scenario_file.__name__ and kind is not scenario_file.Form
        for one in dataclasses.fields(kind)
    }
    keys |= set(scenario_hosts.names())
    assert [key for key in sorted(keys) if f"``{key}``" not in text] == []
