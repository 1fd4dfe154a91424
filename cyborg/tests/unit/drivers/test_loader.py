# SPDX-License-Identifier: Apache-2.0
"""Loading a driver by name returns the driver or the reason why it is not loaded."""

import importlib.metadata
import pathlib
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from cyborg import exception
from cyborg.drivers.loader import LoadResult, load, load_disabled, load_with_options
from cyborg.model.report import DriverState, InstalledDriver
from cyborg.testing.servers import bare
from cyborg.tests.unit.drivers.configured import configured

MODULE = """
from cyborg.drivers.fake import FakeDriver

class Other(FakeDriver):
    name = "other"

class Broken(FakeDriver):
    name = "broken"
    def __init__(self, host, conf):
        raise RuntimeError("no firmware")

class Leaving(FakeDriver):
    name = "leaving"
    def __init__(self, host, conf):
        raise SystemExit("no licence")

class Asserting(FakeDriver):
    name = "asserting"
    def __init__(self, host, conf):
        assert False, "never"

class Optional(FakeDriver):
    name = "optional"
    remote_options = frozenset({"passthrough_whitelist", "colour"})
    def __init__(self, host, conf):
        super().__init__(host, conf)
        self.seen = conf.pci.passthrough_whitelist, conf.gpu_devices.enabled_vgpu_types

class Foreign:
    def discover(self):
        return []

class Lookalike:
    def __init__(self, host, conf):
        pass
"""

Install = Callable[[str], str]


@pytest.fixture
def install(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a package with entry points and returns their namespace."""

    def installed(entries: str) -> str:
        tag = uuid.uuid4().hex
        namespace = f"cyborg.test.{tag}"
        (tmp_path / f"vendor_{tag}.py").write_text(MODULE)
        info = tmp_path / f"vendor_{tag}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vendor-{tag}\nVersion: 1\n")
        lines = entries.replace("vendor:", f"vendor_{tag}:")
        (info / "entry_points.txt").write_text(f"[{namespace}]\n{lines}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        return namespace

    return installed


@pytest.mark.parametrize(
    ("name", "target", "error"),
    [
        ("gone", "no_such_vendor_module:Driver", "ModuleNotFoundError: No module named"),
        ("gone", "vendor:Nothing", "AttributeError: "),
        ("broken", "vendor:Broken", "RuntimeError: no firmware"),
        ("leaving", "vendor:Leaving", "SystemExit: no licence"),
        ("asserting", "vendor:Asserting", "AssertionError: never"),
        ("foreign", "vendor:Foreign", "TypeError: "),
        ("lookalike", "vendor:Lookalike", "Lookalike is not a driver of this service"),
        ("alias", "vendor:Other", "the installed driver calls itself 'other'"),
    ],
)
def test_the_result_of_a_driver_that_cannot_be_loaded_has_a_reason(
    install: Install, name: str, target: str, error: str
) -> None:
    (result,) = load([name], bare(), configured(), install(f"{name} = {target}"))
    assert (result.name, result.driver) == (name, None)
    assert str(result.error).startswith(error)


def test_an_operators_options_override_the_configuration(install: Install) -> None:
    namespace = install("optional = vendor:Optional")

    def loaded(**options: str) -> LoadResult:
        return load_with_options(
            "optional", bare(), configured(), options=options, namespace=namespace
        )

    driver = loaded(passthrough_whitelist="one").driver
    assert driver is not None
    assert driver.seen == (["one"], [])  # type: ignore[attr-defined]
    assert loaded(colour="red").error == "it has no option colour"
    result = loaded(enabled_vgpu_types="a", passthrough_whitelist="one")
    assert (result.error, result.ignored) == (None, ("enabled_vgpu_types",))
    assert result.driver is not None
    assert result.driver.seen == (["one"], [])  # type: ignore[attr-defined]
    assert [(option.group, option.name) for option in result.accepts or ()] == [
        ("pci", "passthrough_whitelist"),
        # The driver has not read it.
        ("", "colour"),
    ]
    missing = load_with_options("other", bare(), configured(), options={}, namespace=namespace)
    assert missing == LoadResult("other", error="no driver of this name is installed")
    ignored = load_with_options(
        "pci_driver", bare(), configured(), options={"pci.passthrough_whitelist": "no JSON"}
    )
    assert ignored.driver is not None
    assert ignored.ignored == ("pci.passthrough_whitelist",)
    assert ignored.accepts == ()


def test_a_package_installed_after_the_start_is_found(
    install: Install, tmp_path: pathlib.Path
) -> None:
    namespace = install("optional = vendor:Optional")

    def loaded() -> LoadResult:
        return load_with_options("late", bare(), configured(), options={}, namespace=namespace)

    assert loaded().error == "no driver of this name is installed"
    (tmp_path / "late_vendor.py").write_text(MODULE.replace('"other"', '"late"'))
    info = tmp_path / "late-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(f"[{namespace}]\nlate = late_vendor:Other\n")
    result = loaded()
    assert (result.error, result.version) == (None, "2.0")
    assert result.driver is not None


def test_all_drivers_are_loaded_after_one_look_at_the_packages(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = install("broken = vendor:Broken\nother = vendor:Other")
    looks, look = [], importlib.metadata.entry_points

    def counted(**wanted: str) -> Any:
        looks.append(wanted)
        return look(**wanted)

    monkeypatch.setattr(importlib.metadata, "entry_points", counted)
    results = load(["*"], bare(), configured(), namespace)
    assert [(one.name, one.version) for one in results] == [("broken", "1"), ("other", "1")]
    assert looks == [{"group": namespace}]


TWO = "fake_driver = cyborg.drivers.fake:FakeDriver\npci_driver = cyborg.drivers.pci:PciDriver"


@pytest.mark.parametrize(
    ("names", "order"),
    [
        ([], []),
        (["pci_driver", "fake_driver", "pci_driver"], ["pci_driver", "fake_driver"]),
        (["*"], ["fake_driver", "pci_driver"]),
        (["pci_driver", "*"], ["pci_driver", "fake_driver"]),
        (["*", "missing"], ["missing", "fake_driver", "pci_driver"]),
    ],
)
def test_a_star_loads_all_installed_drivers(
    install: Install, names: list[str], order: list[str]
) -> None:
    assert [result.name for result in load(names, bare(), configured(), install(TWO))] == order


def test_an_invalid_option_does_not_raise_when_the_driver_is_loaded_by_star(
    install: Install,
) -> None:
    namespace = install(TWO)
    fine, bad = load(["*"], bare(), configured("nonsense"), namespace)
    assert (fine.name, fine.error) == ("fake_driver", None)
    assert (bad.driver, bad.enabled, bad.installed.status) == (None, True, DriverState.FAILED)
    assert "passthrough_whitelist" in str(bad.error)
    for names in (["pci_driver"], ["*", "pci_driver"]):
        with pytest.raises(exception.ConfigError, match="passthrough_whitelist"):
            load(names, bare(), configured("nonsense"), namespace)


def test_other_drivers_are_not_enabled_and_have_their_option_errors(
    install: Install,
) -> None:
    namespace = install(TWO)
    (other,) = load_disabled(["fake_driver"], bare(), configured(), namespace)
    assert (other.name, other.enabled) == ("pci_driver", False)
    assert other.installed.status is DriverState.STOPPED
    (bad,) = load_disabled(["fake_driver"], bare(), configured("nonsense"), namespace)
    assert (bad.driver, bad.enabled) == (None, False)
    assert "passthrough_whitelist" in str(bad.error)


def test_loaded_driver_has_type_entry_point_and_version(install: Install) -> None:
    """One that is missing does not prevent others."""
    missing, other = load(
        ["missing", "other"], bare(), configured(), install("other = vendor:Other")
    )
    assert other.driver is not None
    assert (other.driver.name, other.error) == ("other", None)
    assert other.installed.status is DriverState.READY
    assert (other.installed.type, other.installed.version) == ("FPGA", "1")
    assert str(other.installed.endpoint).endswith(":Other")
    assert missing == LoadResult("missing", error="no driver of this name is installed")
    assert missing.installed == InstalledDriver("missing", DriverState.FAILED)
