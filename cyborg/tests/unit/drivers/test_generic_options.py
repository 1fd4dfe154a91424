# SPDX-License-Identifier: Apache-2.0
"""The errors of the generic_driver's configuration are sentences with option and value."""

from pathlib import Path

import pytest

from cyborg import exception
from cyborg.conf import generic
from cyborg.drivers import catalogue, generic_options
from cyborg.drivers.catalogue import Catalogue
from cyborg.drivers.device_options import UnitScope
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.generic_backend import GenericBackend
from cyborg.drivers.pci_function import PciFunction
from cyborg.model.device import AttachType, DeviceType
from cyborg.model.pci import PciAddress
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import written

LEAST = {"pci_ids": "10de:*", "resource_class": "CUSTOM_GPU"}
CATALOGUE = Catalogue([])
SETUP = "/usr/sbin/card-setup {address}"


def section(name: str, **options: str) -> str:
    lines = "".join(f"{option} = {value}\n" for option, value in options.items())
    return f"[generic_driver:{name}]\n{lines}"


def backends(file: Path, *sections: str, names: str = "a") -> tuple[GenericBackend, ...]:
    text = f"[generic_driver]\nbackends = {names}\n" + "".join(sections)
    conf = written(file, text)
    return generic_options.read(conf, FakeHost(), catalogue.read(conf))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cyborg.conf"


def test_a_backend_needs_only_a_selector_and_a_resource_class(file: Path) -> None:
    (backend,) = backends(file, section("a", **LEAST))
    assert (backend.name, backend.resource_class, backend.units) == ("a", "CUSTOM_GPU", 1)
    assert (backend.device_type, backend.kind) == (DeviceType.PCI, "PCI")
    assert backend.attach_type is AttachType.PCI
    assert not backend.prepares
    assert not backend.is_declared


def test_enumerations_ignore_case_and_lists_keep_their_order(file: Path) -> None:
    options = {"device_type": "fpga", "kind": "CRYPTO", "traits": "CUSTOM_B, CUSTOM_A"}
    services = {"services": "aes, rsa", "capabilities": '{"ipsec": {"num": 1}}'}
    (backend,) = backends(file, section("a", **LEAST, **options, **services))
    assert (backend.device_type, backend.kind) == (DeviceType.FPGA, "CRYPTO")
    assert backend.traits == ("CUSTOM_B", "CUSTOM_A")
    assert backend.services == ("aes", "rsa")
    assert backend.capabilities == {"ipsec": {"num": 1}}


@pytest.mark.parametrize(
    ("options", "unit", "size"),
    [
        ({}, UnitScope.FUNCTION, 1),
        ({"unit": "card"}, UnitScope.CARD, 2),
        ({"unit": "card", "unit_functions": "4"}, UnitScope.CARD, 4),
        ({"unit": "ALL", "unit_functions": "8"}, UnitScope.ALL, 8),
    ],
)
def test_unit_has_a_number_of_functions(
    file: Path, options: dict[str, str], unit: UnitScope, size: int
) -> None:
    (backend,) = backends(file, section("a", **LEAST, **options))
    assert (backend.unit, backend.group_size) == (unit, size)


def test_ranges_and_boards_select_functions(file: Path) -> None:
    options = {"pci_ids": "10de:20b0-20bf", "subsystem_ids": "10de:1533, 1028:*"}
    (backend,) = backends(file, section("a", resource_class="CUSTOM_A", **options))
    address = PciAddress.parse("0000:3b:00.0")
    assert address is not None

    def matches(product: int, subsystem: tuple[int, int] | None) -> bool:
        function = PciFunction(address, 0x10DE, product, 0x030200)
        return backend.selector.matches(function, {}, managed=False, subsystem=subsystem)

    assert matches(0x20B0, (0x10DE, 0x1533))
    assert matches(0x20BF, (0x1028, 0x0001))
    assert not matches(0x20C0, (0x10DE, 0x1533))
    assert not matches(0x20B0, (0x10DE, 0x1534))
    assert not matches(0x20B0, None)


def test_backends_come_in_the_configured_order(file: Path) -> None:
    loaded = backends(file, section("a", **LEAST), section("b", **LEAST), names="b, a, b")
    assert [backend.name for backend in loaded] == ["b", "a"]


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("pci_ids", "10de", "'10de' is not of the form 10de:20b5, 10de:20b0-20bf or 10de:*"),
        ("pci_classes", "3", "'3' is not two, four or six hexadecimal digits"),
        ("addresses", "zz", "is neither '*' nor hexadecimal"),
        ("sysfs_class", "../net", "it is not the name of a directory below /sys/class"),
        ("devices", "0000:81:*.0", "is not a PCI address such as 0000:81:00.0"),
        ("devices", "0000:81:00.0", "a fixed list excludes the other options that select devices"),
        ("resource_class", "gpu", "it is not the name of a resource class"),
        ("traits", "fast", "'fast' is not the name of a trait"),
        ("device_type", "TOASTER", "it is none of GPU, FPGA"),
        ("attach_type", "USB", "it is none of PCI, MDEV, TEST_PCI"),
        ("units", "2", "a whole PCI function is one unit"),
        ("units", "many", "invalid literal for int"),
        ("mdev_type", "nvidia-223", "it must be set with attach_type MDEV, and only with it"),
        ("physical_network", "", "physical_network is not a name of 1 to 64 ASCII characters"),
        ("physical_network", "n" * 65, "physical_network is not a name of 1 to 64"),
        ("capabilities", "[]", "it is not a JSON object"),
        ("capabilities", "{", "it is not JSON"),
        ("kind", "two words", "it is not a word of 1 to 64 letters, digits and _"),
        ("services", "aes, aes", "'aes' is there twice"),
        ("model", "x" * 256, "is not a text of 1 to 255 printable characters"),
        ("services", "aes, r\x1bsa", "is not a text of 1 to 255 printable characters"),
        ("remote_units", "2", "a device has only 1 unit(s), see option units"),
        ("service_file", "/run/{service}", "option services is empty"),
        ("service_command", "/bin/true {address}", "{address} is not one of the placeholders"),
        ("ready_file", "run/ready", "it is not an absolute path in its shortest form"),
        ("prepared_file", "/run/ready", "it must contain {handle} to distinguish the units"),
        ("program_command", "/usr/sbin/load {address}", "it must contain {image}"),
        ("program_command", "/usr/sbin/load {handle}", "{handle} is not one of the placeholders"),
        ("program_command", "load {image}", "'load' is not the absolute path of a program"),
        ("install_command", SETUP, "it requires ready_file or ready_command"),
        ("health_command", "health", "'health' is not the absolute path of a program"),
        ("health_command", "/bin/health {handle}", "{handle} is not one of the placeholders"),
        ("unit", "slot", "it is none of FUNCTION, CARD, ALL"),
        ("unit", "all", "unit_functions must be set, too"),
        ("unit_functions", "2", "it has an effect only with unit CARD or ALL"),
        ("unit_functions", "1", "Should be greater than or equal to 2"),
        ("layout", "vfs", "it is not vfs=N with N from 0 to 255"),
        ("layout", "vfs=256", "it is not vfs=N with N from 0 to 255"),
        ("layout", "vfs=-1", "it is not vfs=N with N from 0 to 255"),
        ("check_timeout", "0", "Should be greater than or equal to 0.1"),
    ],
)
def test_an_invalid_value_raises_config_error_with_one_sentence(
    file: Path, option: str, value: str, reason: str
) -> None:
    with pytest.raises(exception.ConfigError) as caught:
        backends(file, section("a", **{**LEAST, option: value}))
    sentence = str(caught.value)
    assert sentence.startswith(f"Option [generic_driver:a] {option} cannot be ")
    assert reason in sentence
    assert sentence.count("\n") == 0
    assert sentence.endswith(".")


NETWORK = {"attach_type": "TEST_PCI", "physical_network": "physnet1"}
SAME = "which has the same purpose."


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"attach_type": "MDEV"}, "mdev_type cannot be None: it must be set with attach_type MDEV"),
        (
            {"unit": "card", "unit_functions": "9"},
            "unit_functions cannot be 9: a card has at most 8 functions",
        ),
        (
            {"unit": "card", "attach_type": "MDEV", "mdev_type": "a"},
            "unit cannot be 'card': it requires attach_type PCI, not MDEV",
        ),
        (
            {"unit": "card", "attach_type": "TEST_PCI", "units": "4"},
            "unit cannot be 'card': it requires attach_type PCI, not TEST_PCI",
        ),
        (
            {"unit": "card", "sysfs_class": "accel"},
            "unit cannot be 'card': a function leaves the directory of its sysfs_class when",
        ),
        (
            {"unit": "card", "stats_command": "/bin/stats {address}"},
            "unit cannot be 'card': stats_command measures one function",
        ),
        (
            {"unit": "all", "unit_functions": "8", "physical_network": "physnet1"},
            "unit cannot be 'all': Neutron attaches one function to a port; see physical_network",
        ),
        (
            {"layout": "vfs=2", "attach_type": "TEST_PCI"},
            "layout cannot be 'vfs=2': it requires attach_type PCI, not TEST_PCI",
        ),
        (
            {"layout": "vfs=2", "unit": "card"},
            "unit cannot be 'card': the virtual functions of option layout are no parts of a unit",
        ),
        (NETWORK, "physical_network cannot be 'physnet1': only a whole PCI function can be"),
        (
            {"ready_file": "/run/ready", "ready_command": "/usr/bin/true"},
            f"ready_command cannot be '/usr/bin/true': it excludes ready_file, {SAME}",
        ),
        (
            {"services": "a", "service_file": "/run/a", "service_command": "/bin/true"},
            f"service_command cannot be '/bin/true': it excludes service_file, {SAME}",
        ),
        (
            {"services": "a, b", "service_file": "/run/engine"},
            "service_file cannot be '/run/engine': it must contain {service} to distinguish the",
        ),
        (
            {"services": "a, b c", "service_file": "/run/{service}"},
            "services cannot be 'a, b c': 'b c' cannot replace {service} in service_file",
        ),
        (
            {"services": "../a", "service_command": "/bin/true {service}"},
            "services cannot be '../a': '../a' cannot replace {service} in service_command",
        ),
    ],
    ids=lambda value: value.partition(" ")[0] if isinstance(value, str) else "",
)
def test_conflicting_options_raise_config_error(
    file: Path, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(exception.ConfigError) as caught:
        backends(file, section("a", **LEAST, **options))
    assert str(caught.value).startswith(f"Option [generic_driver:a] {sentence}")


def test_a_backend_without_selector_or_class_is_refused(file: Path) -> None:
    with pytest.raises(exception.ConfigError) as caught:
        backends(file, section("a"))
    assert str(caught.value) == (
        "Option [generic_driver:a] resource_class must be set; the device catalogue has no entry "
        "named a."
    )
    with pytest.raises(exception.ConfigError) as caught:
        backends(file, section("a", resource_class="CUSTOM_A"))
    assert str(caught.value) == (
        "Section [generic_driver:a] must set pci_ids, subsystem_ids, pci_classes, addresses, "
        "sysfs_class or devices."
    )


def test_an_invalid_backend_name_raises_config_error(file: Path) -> None:
    with pytest.raises(exception.ConfigError) as caught:
        backends(file, names="a b")
    assert str(caught.value) == (
        "Option [generic_driver] backends cannot be 'a b': it is not a name of letters, digits, - "
        "and _."
    )


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        ("10de:*", "10de:20b5", True),
        ("10de:20b5", "10de:20b5", True),
        ("10de:20b5", "10de:20f1", False),
        ("10de:*", "8086:*", False),
    ],
)
def test_backends_with_a_sysfs_class_need_different_pci_ids(
    file: Path, first: str, second: str, is_refused: bool
) -> None:
    sections = [
        section(name, pci_ids=ids, resource_class="CUSTOM_A", sysfs_class="accel")
        for name, ids in (("a", first), ("b", second))
    ]
    if not is_refused:
        assert len(backends(file, *sections, names="a, b")) == 2
        return
    with pytest.raises(exception.ConfigError) as caught:
        backends(file, *sections, names="a, b")
    assert str(caught.value) == (
        "Option [generic_driver:b] sysfs_class cannot be 'accel': [generic_driver:a] has it, "
        "too, and their pci_ids are not different."
    )


def test_devices_commands_files_and_cleaning_come_from_the_host_alone() -> None:
    names = {option.dest for option in generic.backend_options()} | {"backends", "devices_dir"}
    commands = {name for name in names if name.endswith("_command")}
    assert len(commands) == 9
    files = {name for name in names if name.endswith("_file")}
    timeouts = {name for name in names if name.endswith("_timeout")}
    others = {"addresses", "devices", "devices_dir", "layout", "physical_network", "sysfs_class"}
    cleaning = {"clean", "reset", "reset_after_release"}
    assert names - GenericDriver.remote_options == (commands | files | timeouts | others | cleaning)
    assert names > GenericDriver.remote_options


def test_a_command_outside_the_configuration_files_is_refused(file: Path) -> None:
    conf = written(file, f"[generic_driver]\nbackends = a\n{section('a', **LEAST)}")
    generic_options.read(conf, FakeHost(), CATALOGUE)
    conf.set_override("health_command", "/usr/bin/health", "generic_driver:a")
    with pytest.raises(exception.ConfigError, match="only root can change"):
        generic_options.read(conf, FakeHost(), CATALOGUE)


@pytest.mark.parametrize("in_state_path", [True, False])
def test_a_command_in_a_file_that_others_can_change_is_refused(
    file: Path, in_state_path: bool
) -> None:
    text = f"state_path = {file.parent if in_state_path else '/nowhere'}\n"
    text += "[generic_driver]\nbackends = a\n"
    text += section("a", **LEAST, health_command="/usr/bin/health {address}")
    host = FakeHost()
    if not in_state_path:
        generic_options.read(written(file, text), host, CATALOGUE)
        host.foreign.add(str(file))
    with pytest.raises(exception.ConfigError) as caught:
        generic_options.read(written(file, text), host, CATALOGUE)
    place = f"{file} is below state_path" if in_state_path else f"others can change {file}"
    assert str(caught.value) == (
        "Option [generic_driver:a] health_command cannot be '/usr/bin/health {address}': a "
        f"command must be in a configuration file that only root can change; {place}."
    )
