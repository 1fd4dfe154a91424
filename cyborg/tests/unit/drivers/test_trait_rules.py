# SPDX-License-Identifier: Apache-2.0
"""Rules for traits: which facts hold for which units, and errors with file, line and key."""

import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

import cyborg
from cyborg import exception
from cyborg.drivers import entry_files, trait_rules
from cyborg.drivers.catalogue import Catalogue
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.trait_rules import FACTS, Rule, Unit
from cyborg.model.device import AttachHandle, AttachType, Deployable, Device, DeviceType
from cyborg.model.pci import PciAddress

ROOT = Path(cyborg.__file__).resolve().parent.parent
KEY = "0000:3b:00.0"
ADDRESS = PciAddress.parse(KEY)
UNIT = Unit(
    "pci_driver",
    Device(
        *(KEY, DeviceType.GPU, "10de", "H100 PCIe", ADDRESS.info(), ()),
        numa_node=1,
    ),
    Deployable(
        "unit",
        "CUSTOM_PCI",
        "d",
        (AttachHandle(KEY, AttachType.PCI, ADDRESS.info()),),
        traits=("OWNER_CYBORG", "CUSTOM_PCI_NVIDIA"),
    ),
    function=PciFunction(ADDRESS, 0x10DE, 0x2331, 0x030200, subsystem=(0x10DE, 0x1626)),
    memory=80 << 30,
    nics=((0x15B3, 0x1021),),
    island_size=8,
)
#: Nothing but what each device has.
BARE = Unit(
    "vendor_driver", replace(UNIT.device, numa_node=None), replace(UNIT.deployable, traits=())
)


def rule(directory: Path, text: str) -> Rule:
    """Return the rule of a file with this text."""
    file = directory / "rules.yaml"
    file.write_text(text)
    (node,) = entry_files.nodes(file)
    assert trait_rules.is_rule(node)
    return trait_rules.read(file, node)


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ("driver: pci_driver", True),
        ("driver: [generic_driver, pci_driver]", True),
        ("driver: generic_driver", False),
        ("device_type: gpu", True),
        ("device_type: [FPGA, NIC]", False),
        ("pci_ids: [10de:2330-2331]", True),
        ("pci_ids: ['10de:*', 1002:74a1]", True),
        ("pci_ids: 10de:2335", False),
        ("subsystem_ids: 10de:1626", True),
        ("subsystem_ids: 10de:1627", False),
        ("pci_classes: ['0302']", True),
        ("pci_classes: ['0300', '12']", False),
        ("vendor: 10de", True),
        ("vendor: 1002", False),
        ("model: [H100 PCIe, H200]", True),
        ("model: H100", False),
        ("resource_class: CUSTOM_PCI", True),
        ("resource_class: PGPU", False),
        ("traits: [CUSTOM_PCI_NVIDIA, OWNER_CYBORG]", True),
        ("traits: [CUSTOM_PCI_NVIDIA, CUSTOM_OTHER]", False),
        ("memory: {min: 80 GiB}", True),
        ("memory: {min: 81920MiB, max: 1 TiB}", True),
        ("memory: {max: 79 GiB}", False),
        ("memory: {min: 81 GiB}", False),
        ("memory: 80 GiB", True),
        ("units: 1", True),
        ("units: {min: 2}", False),
        ("numa_node: 1", True),
        ("numa_node: [0]", False),
        ("switch_nics: any", True),
        ("switch_nics: ['15b3:*']", True),
        ("switch_nics: [8086:1592]", False),
        ("island_size: {min: 4}", True),
        ("island_size: {max: 4}", False),
        ("numa_node: 1\n    device_type: GPU", True),
        ("numa_node: 0\n    device_type: GPU", False),
    ],
)
def test_rule_holds_if_all_its_facts_do(tmp_path: Path, when: str, holds: bool) -> None:
    made = rule(tmp_path, f"- trait: CUSTOM_A\n  when:\n    {when}\n")
    assert (made.trait, made.holds(UNIT), made.compat) == ("CUSTOM_A", holds, False)
    assert made.place == f"{tmp_path}/rules.yaml:1"
    assert made.facts == {line.split(":")[0].strip() for line in when.splitlines()}


@pytest.mark.parametrize(
    "when",
    [
        *("pci_ids: ['10de:*']", "subsystem_ids: ['10de:*']", "pci_classes: ['03']"),
        *("memory: {max: 9 TiB}", "numa_node: {min: 0}", "switch_nics: any"),
        *("island_size: {min: 0}", "traits: CUSTOM_PCI_NVIDIA"),
    ],
)
def test_fact_that_is_not_known_does_not_hold(tmp_path: Path, when: str) -> None:
    assert not rule(tmp_path, f"- trait: CUSTOM_A\n  when: {{{when}}}\n").holds(BARE)


def test_each_fact_has_a_case_here() -> None:
    (mark, *_) = vars(test_rule_holds_if_all_its_facts_do)["pytestmark"]
    assert {case[0].split(":")[0] for case in mark.args[1]} == FACTS.keys()


HEAD = "- trait: CUSTOM_A\n  when:\n    "


@pytest.mark.parametrize(
    ("line", "text", "reason"),
    [
        (1, "- trait: CUSTOM_A\n", "the rule must set when, the facts that give the trait"),
        (1, "- trait: [CUSTOM_A]\n  when: {units: 1}\n", "trait is not one value"),
        (
            1,
            "- trait: fast\n  when: {units: 1}\n",
            "trait cannot be 'fast': 'fast' is not the name",
        ),
        (1, "- trait: OWNER_NOVA\n  when: {units: 1}\n", "the trait of a rule begins with CUSTOM_"),
        (1, f"- trait: CUSTOM_{'A' * 194}\n  when: {{units: 1}}\n", "at most 200 characters"),
        (2, "- trait: CUSTOM_A\n  traits: [CUSTOM_B]\n", "'traits' is not a key of a rule, which"),
        (2, "- trait: CUSTOM_A\n  pci_ids: [1d5f:0001]\n", "'pci_ids' is not a key of a rule"),
        (3, "- trait: CUSTOM_A\n  when: {units: 1}\n  compat: often\n", "compat cannot be 'often'"),
        (3, "- trait: CUSTOM_A\n  when: {units: 1}\n  when: {}\n", "when is also set in line 2"),
        (2, "- trait: CUSTOM_A\n  when: {}\n", "when is not a mapping of facts: driver, device_t"),
        (2, "- trait: CUSTOM_A\n  when: [memory]\n", "when is not a mapping of facts"),
        (2, "- trait: CUSTOM_A\n  when: memory > 80 GiB\n", "when is not a mapping of facts"),
        (
            3,
            f"{HEAD}memories: 80 GiB\n",
            "'memories' is not a key of when, which can have driver, dev",
        ),
        (3, f"{HEAD}memory: 80\n", "memory cannot be '80': it is not a size such as 80 GiB, with"),
        (3, f"{HEAD}memory: 80 GB\n", "memory cannot be '80 GB': it is not a size"),
        (
            3,
            f"{HEAD}memory: [80 GiB, 96 GiB]\n",
            "it is one number, or has the members min and max",
        ),
        (3, f"{HEAD}memory: {{}}\n", "memory has neither min nor max"),
        (3, f"{HEAD}memory: {{least: 80 GiB}}\n", "'least' is not a key of memory, which can have"),
        (3, f"{HEAD}memory: {{min: [1]}}\n", "min of memory is not one value"),
        (3, f"{HEAD}memory: {{min: 2 GiB, max: 1 GiB}}\n", "min is larger than max"),
        (3, f"{HEAD}memory: >= 80 GiB\n", "it is not YAML"),
        (3, f"{HEAD}numa_node: -1\n", "numa_node cannot be '-1': it is not a whole number"),
        (3, f"{HEAD}model: {{min: 1}}\n", "model cannot be 'min: 1': min and max are limits of"),
        (3, f"{HEAD}model: []\n", "model has 0 values and not 1 to 1000"),
        (3, f"{HEAD}model: [{'a, ' * 1001}]\n", "model has 1001 values and not 1 to 1000"),
        (3, f"{HEAD}model: [[a]]\n", "model is not a list of values"),
        (
            3,
            f"{HEAD}device_type: [GPU, TOASTER]\n",
            "device_type cannot be 'GPU, TOASTER': it is n",
        ),
        (3, f"{HEAD}pci_ids: [10de]\n", "'10de' is not of the form 10de:20b5"),
        (3, f"{HEAD}switch_nics: [any, 15b3:1021]\n", "'any' is not of the form 10de:20b5"),
        (3, f"{HEAD}driver: my driver\n", "it is not the name of a driver"),
        (3, f"{HEAD}traits: fast\n", "'fast' is not the name of a trait"),
    ],
)
def test_error_has_file_line_and_key(tmp_path: Path, line: int, text: str, reason: str) -> None:
    with pytest.raises(exception.ConfigError) as refused:
        rule(tmp_path, text)
    sentence = str(refused.value)
    assert sentence.startswith(f"{tmp_path}/rules.yaml:{line}: ")
    assert reason in sentence
    assert sentence.endswith(".")
    assert len(sentence) < 1000


def test_the_page_has_rules_that_can_be_used_and_all_facts(tmp_path: Path) -> None:
    page = (ROOT / "doc/source/admin/device-catalogue.rst").read_text()
    section = page.partition("\nTraits by rule\n")[2].partition("\nErrors and changes\n")[0]
    blocks = re.findall(r"\.\. code-block:: yaml\n\n((?:    .*\n|\n)+)", section)
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.yaml").write_text(textwrap.dedent(block))
    entries = Catalogue.load([tmp_path])
    assert {made.trait for made in entries.rules} == {
        "CUSTOM_GPU_MEMORY_80G",
        "CUSTOM_TIER_INFERENCE",
        "CUSTOM_GPU_NEAR_NIC",
        "CUSTOM_FPGA_INTEL_PAC_ARRIA10",
    }
    assert entries.entry(0x10DE, 0x2901, 0x030200).memory == 180 << 30
    facts = section.partition("fact               value\n")[2]
    assert re.findall(r"^``(\w+)``", facts, re.MULTILINE) == list(FACTS)
