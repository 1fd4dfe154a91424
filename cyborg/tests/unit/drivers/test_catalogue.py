# SPDX-License-Identifier: Apache-2.0
"""The device catalogue: lookups, errors with file and line, and the data of this package."""

import os
import textwrap
from pathlib import Path

import pytest

import cyborg
from cyborg import exception
from cyborg.agent.driver_manager import DriverManager
from cyborg.drivers import catalogue, loader
from cyborg.drivers.catalogue import SHIPPED, Catalogue
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.pci import PciDriver
from cyborg.model.device import DeviceType
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.tests.fixtures import malformed
from cyborg.tests.fixtures.properties import fuzzed, given, st
from cyborg.tests.unit.drivers.configured import written

ROOT = Path(cyborg.__file__).resolve().parent.parent
CARD = """\
- name: card
  pci_ids: [1d5f:0001]
  device_type: FPGA
  resource_class: CUSTOM_CARD
"""


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return Catalogue.load([SHIPPED])


def loaded(directory: Path, *texts: str) -> Catalogue:
    """Return the catalogue of files with these texts."""
    for number, text in enumerate(texts):
        (directory / f"{number}.yaml").write_text(text)
    return Catalogue.load([directory])


def model(entries: Catalogue, device: int, class_code: int = 0x120000, **kwargs: object) -> str:
    subsystem = kwargs.get("subsystem")
    assert subsystem is None or isinstance(subsystem, tuple)
    entry = entries.entry(0x1D5F, device, class_code, subsystem=subsystem)
    return entry.description.model or "unknown"


def test_ids_are_found_before_ranges_and_ranges_before_the_whole_vendor(tmp_path: Path) -> None:
    entries = loaded(
        tmp_path,
        '- {pci_ids: ["1d5f:*"], model: vendor}\n',
        "- {pci_ids: [1d5f:0100-01ff], model: wide}\n",
        "- {pci_ids: [1d5f:0110-011f, 1d5f:0300], model: narrow}\n",
        "- {pci_ids: [1d5f:0116], model: one}\n",
    )
    models = [model(entries, device) for device in (0x0116, 0x0117, 0x0100, 0x0300, 0x0200)]
    assert models == ["one", "narrow", "wide", "narrow", "vendor"]
    assert entries.entry(0x1D60, 0x0116, 0x120000).description.model is None


def test_the_board_distinguishes_devices_with_the_same_ids(tmp_path: Path) -> None:
    entries = loaded(
        tmp_path,
        "- {pci_ids: [1d5f:0001], model: any board}\n"
        "- {pci_ids: [1d5f:0001], subsystem_ids: [1d5f:00a0-00af], model: this board}\n"
        "- {pci_ids: [1d5f:0002], subsystem_ids: [1d5f:00a0], model: only this board}\n",
    )
    assert model(entries, 1, subsystem=(0x1D5F, 0x00A1)) == "this board"
    assert model(entries, 1, subsystem=(0x1D5F, 0x00B0)) == "any board"
    assert model(entries, 1) == "any board"
    assert model(entries, 2, subsystem=(0x1D5F, 0x00A0)) == "only this board"
    assert model(entries, 2) == "unknown"


def test_a_class_code_restricts_ids_and_is_the_fallback_without_ids(tmp_path: Path) -> None:
    entries = loaded(
        tmp_path,
        '- {pci_ids: ["1d5f:*"], pci_classes: ["1200"], model: accelerator}\n'
        "- {pci_ids: [1d5f:0009], kind: CRYPTO}\n"
        '- {pci_classes: ["12"], model: any class 12, device_type: AICHIP}\n'
        '- {pci_classes: ["118000"], model: exact}\n'
        '- {pci_classes: ["11"], model: any class 11}\n',
    )
    assert model(entries, 1) == "accelerator"
    assert model(entries, 1, 0x120100) == "any class 12"
    assert model(entries, 1, 0x118000) == "exact"
    assert model(entries, 1, 0x110000) == "any class 11"
    # An entry for the ids gets its type from the class code if it has none.
    assert entries.entry(0x1D5F, 0x0009, 0x120000).type is DeviceType.AICHIP
    assert entries.entry(0x1D5F, 0x0009, 0xFF0000).type is DeviceType.PCI


def test_an_entry_of_the_operator_precedes_those_of_this_package(tmp_path: Path) -> None:
    text = '- {pci_ids: ["8086:*"], pci_classes: ["0c05"], model: ours, device_type: NIC}\n'
    (tmp_path / "mine.yaml").write_text(text)
    entries = Catalogue.load([SHIPPED, tmp_path])
    assert entries.entry(0x8086, 0xA1A3, 0x0C0500).type is DeviceType.NIC
    assert entries.platform_reason(0x8086, 0xA1A3, 0x0C0500) is None
    assert entries.platform_reason(0x8086, 0xA1A4, 0x0C8000) is not None


def test_memory_of_a_model_is_that_of_the_closest_entry_that_has_it(tmp_path: Path) -> None:
    text = "- {pci_ids: [10de:2331], model: ours}\n- {pci_ids: [10de:2330], memory: 96 GiB}\n"
    (tmp_path / "mine.yaml").write_text(text)
    entries = Catalogue.load([SHIPPED, tmp_path])
    sizes = [entries.entry(0x10DE, device, 0x030200).memory for device in (0x2331, 0x2330, 0x2901)]
    assert sizes == [80 << 30, 96 << 30, None]


def test_rules_of_the_operator_replace_those_of_this_package_for_the_same_trait(
    tmp_path: Path,
) -> None:
    arria = "CUSTOM_FPGA_INTEL_PAC_ARRIA10"
    other = "- {trait: CUSTOM_A, when: {numa_node: 0}}\n"
    texts = (
        f"- {{trait: {arria}, when: {{driver: first_driver}}}}\n{other}",
        f"- {{trait: {arria}, when: {{driver: second_driver}}}}\n",
    )
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.yaml").write_text(text)
    (rule,) = Catalogue.load([SHIPPED]).rules
    assert (rule.trait, rule.compat) == (arria, True)
    rules = Catalogue.load([SHIPPED, tmp_path]).rules
    assert [(rule.trait, rule.compat) for rule in rules] == [
        (arria, False),
        (arria, False),
        ("CUSTOM_A", False),
    ]
    assert rules[0].place == f"{tmp_path}/0.yaml:1"


def test_a_name_of_the_operator_replaces_that_of_this_package(tmp_path: Path) -> None:
    text = CARD.replace("name: card", "name: gaudi2")
    (tmp_path / "mine.yaml").write_text(text)
    entries = Catalogue.load([SHIPPED, tmp_path])
    assert entries.named["gaudi2"].options["resource_class"] == "CUSTOM_CARD"
    assert entries.entry(0x1DA3, 0x1020, 0x120000).type is DeviceType.AICHIP


def test_values_are_the_text_of_the_file_and_not_numbers_of_yaml(tmp_path: Path) -> None:
    entries = loaded(tmp_path, "- {pci_ids: [1e36:0010], pci_classes: [0302], model: 1e36}\n")
    assert entries.entry(0x1E36, 0x0010, 0x030200).description.model == "1e36"


def test_a_directory_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    entries = Catalogue.load([tmp_path / "none"])
    entry = entries.entry(0x10DE, 0x20B5, 0x030200)
    assert (entry.type, dict(entries.named), entries.enabled) == (DeviceType.PCI, {}, ())


def test_other_files_and_empty_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "card.yaml.rpmsave").write_text("{")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert not Catalogue.load([tmp_path]).named


@pytest.mark.parametrize(
    ("line", "text", "reason"),
    [
        (2, "- pci_ids: [1d5f:0001]\n  pci_id: 1\n", "'pci_id' is not a key of an entry, which"),
        (2, "- pci_ids: [1d5f:0001]\n  health_command: /x\n", "only a section of the config"),
        (3, "- pci_ids: [1d5f:0001]\n  kind: A\n  kind: B\n", "kind is also set in line 2"),
        (1, "- pci_ids: [1d5f]\n", "'1d5f' is not of the form 10de:20b5, 10de:20b0-20bf or 10de:*"),
        (1, "- pci_ids: [1d5f:0002-0001]\n", "'1d5f:0002-0001' ends before it begins"),
        (1, "- pci_ids: {1d5f: 1}\n", "pci_ids is not a list of values"),
        (1, "- pci_ids: [[1d5f:0001]]\n", "pci_ids is not a list of values"),
        (2, "- pci_ids: [1d5f:0001]\n  model: [a]\n", "model is not one value"),
        (2, "- pci_ids: [1d5f:0001]\n  model:\n", "model cannot be '': '' is not a text of 1 to"),
        (2, "- pci_ids: [1d5f:0001]\n  kind: two words\n", "kind cannot be 'two words': it is"),
        (2, "- pci_ids: [1d5f:0001]\n  device_type: TOASTER\n", "it is none of GPU, FPGA"),
        (2, "- pci_classes: [06]\n  platform: perhaps\n", "platform cannot be 'perhaps'"),
        (1, "- pci_classes: ['3']\n", "'3' is not two, four or six hexadecimal digits"),
        (1, "- kind: A\n", "the entry must set pci_ids, or pci_classes alone"),
        (1, "- subsystem_ids: [1d5f:0001]\n  pci_classes: ['03']\n", "the entry must set pci_ids"),
        (2, "- pci_ids: [1d5f:0001]\n  traits: [CUSTOM_A]\n", "effect only together with name"),
        (1, "- name: card\n  pci_ids: [1d5f:0001]\n", "resource_class must be set, too"),
        (1, CARD.replace("card", "a card", 1), "it is not a name of letters, digits, - and _"),
        (4, CARD.replace("CUSTOM_CARD", "card"), "it is not the name of a resource class"),
        (5, CARD + "  traits: [fast]\n", "traits cannot be 'fast': 'fast' is not the name of"),
        (5, CARD + "  reset: maybe\n", "reset cannot be 'maybe': it is none of FUNCTION, BUS"),
        (5, CARD + "  unit: all\n", "unit cannot be 'all': unit_functions must be set, too"),
        (5, CARD + "  unit_functions: 2\n", "it has an effect only with unit CARD or ALL"),
        (6, CARD + "  unit: card\n  unit_functions: 9\n", "a card has at most 8 functions"),
        (2, "- pci_ids: [1d5f:0001]\n  unit: card\n", "effect only together with name"),
        (5, CARD + "  capabilities: '{'\n", "capabilities cannot be '{': it is not JSON"),
        (5, CARD + "  platform: true\n", "functions of the platform are never offered"),
        (5, CARD + CARD, "name cannot be 'card': "),
        (5, CARD + "- pci_ids: [1d5f:0001]\n", "pci_ids cannot be '1d5f:0001': "),
        (2, "- pci_ids: [1d5f:0001]\n  driver: amd gpu\n", "driver cannot be 'amd gpu': it is not"),
        (2, "- pci_ids: [1d5f:0001]\n  refused: it is old\n", "only together with driver"),
        (2, "- pci_classes: ['12']\n  driver: amd_gpu_driver\n", "only together with pci_ids"),
        (
            2,
            "- pci_ids: [1d5f:0001]\n  memory: 80\n",
            "memory cannot be '80': it is not a size such",
        ),
        (2, "- pci_classes: ['12']\n  memory: 8 GiB\n", "only together with pci_ids"),
        (2, "- pci_ids: ['1d5f:*']\n- pci_ids: ['1d5f:*']\n", ":1 has the same ids"),
        (2, "- kind: A\n  model: b: c\n", "it is not YAML: mapping values are not allowed"),
        (1, "name: card\n", "it is not a list of entries, each after '- '"),
        (1, "- card\n", "it is not an entry of the form 'key: value'"),
        (2, "- pci_classes: ['03']\n- pci_classes: ['03']\n", ":1 has 03, too"),
    ],
)
def test_an_error_has_file_line_and_one_sentence(
    tmp_path: Path, line: int, text: str, reason: str
) -> None:
    with pytest.raises(exception.ConfigError) as caught:
        loaded(tmp_path, text)
    sentence = str(caught.value)
    assert sentence.startswith(f"{tmp_path}/0.yaml:{line}: ")
    assert reason in sentence
    assert sentence.count("\n") == 0
    assert sentence.endswith(".")


def test_a_file_that_cannot_be_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(exception.ConfigError, match=r"binary\.yaml:1: it is not YAML: "):
        Catalogue.load([tmp_path])
    (tmp_path / "binary.yaml").unlink()
    (tmp_path / "directory.yaml").mkdir()
    with pytest.raises(exception.ConfigError, match=r"directory\.yaml: the file cannot be read"):
        Catalogue.load([tmp_path])
    with pytest.raises(exception.ConfigError, match="the directory cannot be listed"):
        Catalogue.load([os.devnull])


def test_a_reload_takes_a_correct_file_and_keeps_the_former_one_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = servers.server()
    directory = tmp_path / "devices.d"
    directory.mkdir()
    text = f"[generic_driver]\ndevices_dir = {directory}\n"
    conf = written(tmp_path / "cyborg.conf", text)
    manager = DriverManager(
        loader.load(["generic_driver", "pci_driver"], host, conf),
        lambda name, options: loader.load_with_options(name, host, conf, options=options),
    )

    def found() -> dict[str, str]:
        devices = look(manager.drivers["generic_driver"]).discover()
        return {device.key: device.deployables[0].resource_class for device in devices}

    assert found() == {}
    entry = CARD.replace("1d5f:0001", "10ee:5001") + "  enable: true\n"
    (directory / "card.yaml").write_text(entry)
    assert found() == {}
    assert manager.reload()
    assert found() == {servers.FPGA: "CUSTOM_CARD"}
    (directory / "card.yaml").write_text(entry.replace("CUSTOM_CARD", "card"))
    assert not manager.reload()
    assert found() == {servers.FPGA: "CUSTOM_CARD"}
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    reason = "resource_class cannot be 'card': it is not the name of a resource class."
    prefix = "Drivers generic_driver, pci_driver keep their former files"
    assert errors == [f"{prefix}: {directory}/card.yaml:4: {reason}"]
    (directory / "card.yaml").write_text(entry.replace("CUSTOM_CARD", "CUSTOM_OTHER"))
    assert manager.reload()
    assert found() == {servers.FPGA: "CUSTOM_OTHER"}


def test_the_page_has_an_entry_of_twelve_lines_that_offers_a_card(tmp_path: Path) -> None:
    page = (ROOT / "doc/source/admin/device-catalogue.rst").read_text()
    block = page.partition(".. code-block:: yaml\n\n")[2].partition("\n\n")[0]
    text = textwrap.dedent(block) + "\n"
    assert len(text.splitlines()) == 12
    (tmp_path / "acme.yaml").write_text(text)
    conf = written(tmp_path / "conf", f"[generic_driver]\ndevices_dir = {tmp_path}\n")
    host = servers.bare()
    servers.add_function(host, "0000:01:00.0", "1d5f:0116:120000")
    (device,) = look(GenericDriver(host, conf)).discover()
    assert (device.vendor, device.model, device.backend) == ("Acme", "Acme X1", "acme_x1")
    assert device.deployables[0].resource_class == "CUSTOM_ACME_X1"
    assert look(PciDriver(host, conf)).hardware()[0].kind == "CRYPTO"


@pytest.mark.parametrize("driver", ["generic_driver", "pci_driver"])
def test_no_request_over_the_bus_can_name_the_directory(tmp_path: Path, driver: str) -> None:
    options = {"generic_driver.devices_dir": str(tmp_path)}
    conf = written(tmp_path / "conf", "")
    result = loader.load_with_options(driver, servers.server(), conf, options=options)
    assert (result.error, result.ignored) == (None, tuple(options))


def test_a_configured_directory_must_exist(tmp_path: Path) -> None:
    conf = written(tmp_path / "conf", f"[generic_driver]\ndevices_dir = {tmp_path}/none\n")
    with pytest.raises(exception.ConfigError, match=r"devices_dir cannot be '.*/none': it is no"):
        catalogue.read(conf)


@pytest.mark.parametrize(
    ("class_code", "expected"),
    [
        (0x030000, DeviceType.GPU),
        (0x030200, DeviceType.GPU),
        (0x120000, DeviceType.AICHIP),
        (0x0B4000, DeviceType.PCI),
        (0x020000, DeviceType.NIC),
        (0x020700, DeviceType.NIC),
        (0x010802, DeviceType.NVME),
        (0x010700, DeviceType.SSD),
        (0x0B0100, DeviceType.PCI),
        (0x001234, DeviceType.PCI),
        (0xFF0000, DeviceType.PCI),
    ],
)
def test_the_type_of_unknown_ids_follows_the_class_code(
    shipped: Catalogue, class_code: int, expected: DeviceType
) -> None:
    assert shipped.entry(0x1D5F, 0xAB01, class_code).type is expected


#: The ids of each kind: vendor, its devices, the class code that the cards have, and the type.
KINDS = {
    "NVIDIA": (
        "10de",
        "1eb8 20b5 20b7 2235 2236 26b5 26b9 27b8 2321 2331 2330 2335 2901 2941 2bb5 3182",
        0x030200,
        "GPU",
    ),
    "AMD": (
        "1002",
        "738c 740f 740c 7408 74a0 74a1 74a2 74a5 74a9 75a0 75a3 75a8 74b5 74b9 74bd",
        0x120000,
        "GPU",
    ),
    "AMD graphics": ("1002", "7461 7362", 0x038000, "GPU"),
    "Intel GPU": ("8086", "56c0 56c1 0bd5 e20b e211 e212 e223", 0x038000, "GPU"),
    "QAT": (
        "8086",
        "0435 0443 37c8 37c9 19e2 19e3 18ee 18ef 18a0 18a1 6f54 6f55 4940 4941 4942 4943 4944",
        0x0B4000,
        "QAT",
    ),
    "QAT of later processors": (
        "8086",
        "4945 4946 4947 4948 4949",
        0x0B4000,
        "QAT",
    ),
    "Intel FPGA": (
        "8086",
        "bcbd bcc0 bcc1 09c4 09c5 0b2b 0b2c 0b30 0b31 bcce bccf af00 af01 0ddb",
        0x120000,
        "FPGA",
    ),
    "Silicom": ("1c2c", "1000 1001 1002 1003", 0x120000, "FPGA"),
    "Alveo": ("10ee", "5000 5004 5005 500c 5020 505c 5001 5094 5095 50b0 50b1", 0x120000, "FPGA"),
    "Inspur FPGA": ("1bd4", "0911", 0x120000, "FPGA"),
    "NVMe": ("1bd4", "1000 100f", 0x010802, "NVME"),
    "Ascend": ("19e5", "d100 d500 d801 d802 d803 d107 d105", 0x120000, "AICHIP"),
    "Intel NIC": ("8086", "1572 158b 154c 1592 1593 159b 1889", 0x020000, "NIC"),
    "Mellanox": ("15b3", "1019 101b 101d 101f 1021 1023 101c 101e a2d6 a2dc", 0x020000, "NIC"),
    "Gaudi": ("1da3", "1000 1010 1020 1060 1063 0001 0030", 0x120000, "AICHIP"),
    "TPU": ("1ae0", "0027 005e 0063 0062 006f 0076", 0x120000, "AICHIP"),
    "Google disk": ("1ae0", "001f", 0x010802, "NVME"),
    "Google network": ("1ae0", "0042", 0x020000, "NIC"),
    "Coral": ("1ac1", "089a", 0x088000, "AICHIP"),
    "Neuron": ("1d0f", "7064 7164 7264 7364", 0x088000, "AICHIP"),
    "Cambricon": ("cabc", "0270 0370", 0x120000, "AICHIP"),
    "Enflame": ("1e36", "0001 8011", 0x120000, "AICHIP"),
    "Tenstorrent": ("1e52", "401e b140", 0x120000, "AICHIP"),
    "FuriosaAI": ("1ed2", "0000 0001", 0x120000, "AICHIP"),
    "Rebellions": ("1eff", "1120 1121 1220 1221 2030 2031", 0x120000, "AICHIP"),
    "Hygon": ("1d94", "6211", 0x120000, "AICHIP"),
    "Kunlun": ("1d22", "3684 3685", 0x120000, "AICHIP"),
    "Moore Threads": ("1ed5", "0222 0106", 0x030000, "GPU"),
    "Moore Threads audio": ("1ed5", "01ff", 0x040300, "PCI"),
    "Xeon Phi": ("8086", "2250 225c 225d 225e 2262", 0x0B4000, "PCI"),
    "Vector Engine": ("1bcf", "001c", 0x0B4000, "PCI"),
    "DSA and IAA": ("8086", "0b25 0cfe", 0x088000, "PCI"),
    "VMD": ("8086", "201d 28c0", 0x010400, "PCI"),
    "CXL memory": ("1d5f", "0001", 0x050210, "PCI"),
}


@pytest.mark.parametrize(("vendor", "devices", "class_code", "kind"), KINDS.values(), ids=KINDS)
def test_the_ids_of_each_kind_have_its_type(
    shipped: Catalogue, vendor: str, devices: str, class_code: int, kind: str
) -> None:
    types = {
        device: shipped.entry(int(vendor, 16), int(device, 16), class_code).type.value
        for device in devices.split()
    }
    assert types == dict.fromkeys(devices.split(), kind)


#: Functions that are on every server, as vendor:device:class, and no accelerator.
PLATFORM = {
    "host bridge": "8086:2020:060000",
    "SMBus": "8086:a1a3:0c0500",
    "SMBus of AMD": "1022:790b:0c0500",
    "flash of the firmware": "8086:a1a4:0c8000",
    "management engine": "8086:a1ba:078000",
    "serial port of the management engine": "8086:a1bd:070002",
    "thermal sensors": "8086:a1b1:118000",
    "memory of the chipset": "8086:a1a1:058000",
    "IPMI": "1a03:2402:0c0701",
    "performance counters": "8086:2f36:110100",
    "registers of the home agent": "8086:2fa0:088000",
    "registers without a class": "8086:2f98:000000",
    "DMA engine": "8086:2021:088000",
    "IOMMU": "1022:1451:080600",
    "instrumentation": "1022:1455:130000",
    "secure processor": "1022:1456:108000",
    "VMD": "8086:201d:010400",
    "VMD of Ice Lake": "8086:28c0:010400",
    "Alveo golden image": "10ee:d004:120000",
}
#: Functions that a whitelist may name.
OFFERED = {
    "GPU": "10de:20b5:030200",
    "QAT": "8086:37c8:0b4000",
    "QAT among the registers of Xeon D": "8086:6f54:0b4000",
    "DSA": "8086:0b25:088000",
    "IAA": "8086:0cfe:088000",
    "Coral": "1ac1:089a:088000",
    "Neuron": "1d0f:7064:088000",
    "disk": "144d:a808:010802",
    "RAID": "1000:005d:010400",
    "network card": "8086:1572:020000",
    "USB": "8086:a1af:0c0330",
    "USB-C of a GPU": "10de:1ad9:0c8000",
    "Vector Engine": "1bcf:001c:0b4000",
    "FPGA with the class of memory": "10ee:9038:058000",
    "unknown": "1d5f:0001:ff0000",
}


def platform_reason(entries: Catalogue, function: str) -> str | None:
    vendor, device, class_code = (int(part, 16) for part in function.split(":"))
    return entries.platform_reason(vendor, device, class_code)


@pytest.mark.parametrize("function", PLATFORM.values(), ids=PLATFORM)
def test_functions_of_the_platform_have_a_reason(shipped: Catalogue, function: str) -> None:
    reason = platform_reason(shipped, function)
    assert reason is not None
    assert reason.startswith("a function of the platform (")
    assert f"add an entry for {function.rpartition(':')[0]} to" in reason


@pytest.mark.parametrize("function", OFFERED.values(), ids=OFFERED)
def test_accelerators_and_cards_have_no_reason(shipped: Catalogue, function: str) -> None:
    assert platform_reason(shipped, function) is None


def test_no_entry_of_this_package_is_enabled(shipped: Catalogue) -> None:
    assert shipped.enabled == ()
    assert {"gaudi2", "tpu_v5e", "vector_engine"} <= shipped.named.keys()


def test_every_file_of_this_package_names_its_sources() -> None:
    files = sorted(SHIPPED.glob("*.yaml"))
    assert files
    for file in files:
        lines = file.read_text().splitlines()
        assert lines[0] == "# SPDX-License-Identifier: Apache-2.0"
        assert any("Source" in line for line in lines), file


def test_key_that_is_no_text_is_refused_without_its_aliases(tmp_path: Path) -> None:
    """Written out, the aliases of this key have 60 million words."""
    levels = [f"&a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 8)]
    with pytest.raises(
        exception.ConfigError, match=r"0\.yaml:1: a key of an entry is not one word"
    ):
        loaded(tmp_path, f"- ? [&a0 [{', '.join('x' * 9)}], {', '.join(levels)}]\n  : 1\n")


def test_refused_list_of_aliases_is_shown_in_part(tmp_path: Path) -> None:
    text = f"- name: &a {'x' * 10_000}\n  pci_ids: [{', '.join(['*a'] * 10_000)}]\n"
    with pytest.raises(exception.ConfigError) as refused:
        loaded(tmp_path, text)
    assert len(str(refused.value)) < 20_000


def test_file_that_is_larger_than_any_catalogue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(exception.ConfigError, match="it has more than 1048576 bytes"):
        loaded(tmp_path, "# \n" * (1 << 19))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"a": NaN}', "it has a number that JSON does not have"),
        ('{"a": [-1e999]}', "it has a number that JSON does not have"),
        ('{"a": ' + "9" * 5_000 + "}", "it has a number that JSON does not have"),
        ('{"a":' * 100_000, "it is nested too deeply"),
        ('{"a": ' + "[" * 40 + "]" * 40 + "}", "it is nested too deeply"),
    ],
)
def test_capabilities_that_cannot_be_reported_are_refused(
    tmp_path: Path, value: str, reason: str
) -> None:
    with pytest.raises(exception.ConfigError, match=reason):
        loaded(tmp_path, f"{CARD}  capabilities: '{value}'\n")


#: A file with every key.
EVERY_KEY = b"""\
- name: card
  pci_ids: [1d5f:0001, "1d5f:0010-001f"]
  subsystem_ids: ["1d5f:*"]
  pci_classes: [0x1200]
  device_type: FPGA
  kind: CRYPTO
  vendor: &vendor Example
  model: "Card \\u00e9"
  resource_class: CUSTOM_CARD
  traits: [CUSTOM_A, CUSTOM_B]
  capabilities: '{"a": {"num": 1}}'
  reset: FUNCTION
  unit: CARD
  unit_functions: 2
  enable: true
  memory: 80 GiB
- {pci_classes: ["0604"], platform: yes, vendor: *vendor}
- trait: CUSTOM_TIER_1
  compat: no
  when:
    driver: [pci_driver, generic_driver]
    device_type: FPGA
    pci_ids: ["1d5f:*"]
    model: *vendor
    memory: {min: 40 GiB, max: 80 GiB}
    numa_node: 1
    switch_nics: any
"""
#: Pieces of YAML: bombs of aliases, nesting, tags, merges, directives, documents.
YAML = [
    *(
        b"? ",
        b"- ",
        b"[[[[",
        b"{{{{",
        b"[" * 5_000,
        b"- " * 5_000,
        b"? " * 5_000,
        b"!!python/name:x ",
    ),
    *(
        b"&a [&b [*a, *a], *b]",
        b"*vendor",
        b"<<: *vendor\n",
        b"%YAML 9.9\n",
        b"...\n---\n",
        b"|\n  ",
    ),
    *(
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\x00",
        b'"\\ud800"',
        b'"\\0"',
        b">-\n",
        b"1_000",
        b"0o7",
        b"~",
    ),
]


@given(malformed.contents(EVERY_KEY), st.sampled_from(YAML), st.integers(0, len(EVERY_KEY)))
@fuzzed(200)
def test_malformed_catalogue_is_loaded_or_refused(
    tmp_path: Path, content: bytes, piece: bytes, place: int
) -> None:
    file = tmp_path / "card.yaml"
    for text in (content, content[:place] + piece + content[place:]):
        file.write_bytes(text)
        with malformed.bounded():
            try:
                entries = Catalogue.load([tmp_path])
            except exception.ConfigError as error:
                malformed.check_refusal(error, f"{file}:", 200_000)
                continue
            entry = entries.entry(0x1D5F, 1, 0x120000, subsystem=(0x1D5F, 1))
        assert entry.description.model is None or 0 < len(entry.description.model) <= 255
