# SPDX-License-Identifier: Apache-2.0
"""Loading a driver by name returns the driver or the reason why it is not loaded."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import stevedore

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
    # Otherwise each test adds a file to the home directory.
    monkeypatch.setattr(stevedore._cache._c, "_disable_caching", True)

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


def add_package(place: pathlib.Path, namespace: str, name: str, version: str, target: str) -> None:
    """Install a package of this name whose only entry point has the same name."""
    info = place / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{namespace}]\n{name} = {target}\n")


def stevedore_loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the drivers that stevedore loads from now on."""
    names: list[str] = []

    class Recorded(stevedore.DriverManager):  # type: ignore[type-arg]
        def __init__(self, namespace: str, name: str, *args: Any, **kwargs: Any) -> None:
            super().__init__(namespace, name, *args, **kwargs)
            names.append(name)

    monkeypatch.setattr(stevedore, "DriverManager", Recorded)
    return names


def test_a_package_installed_after_the_start_is_found(
    install: Install, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace, loads = install("optional = vendor:Optional"), stevedore_loads(monkeypatch)

    def loaded(name: str) -> LoadResult:
        return load_with_options(name, bare(), configured(), options={}, namespace=namespace)

    assert loaded("late").error == "no driver of this name is installed"
    assert loaded("optional").error is None
    (tmp_path / "late_vendor.py").write_text(MODULE.replace('"other"', '"late"'))
    add_package(tmp_path, namespace, "late", "2.0", "late_vendor:Other")
    result = loaded("late")
    assert (result.error, result.version) == (None, "2.0")
    assert result.driver is not None
    # stevedore keeps its list of packages; it does not know the second one.
    assert loads == ["optional"]


def test_a_package_replaced_after_the_start_is_loaded_from_its_new_place(
    install: Install, tmp_path: pathlib.Path
) -> None:
    namespace = install("other = vendor:Other")
    before, *_ = load(["other"], bare(), configured(), namespace)
    assert before.driver is not None
    (tmp_path / "moved_vendor.py").write_text(MODULE)
    (old,) = tmp_path.glob("*.dist-info/entry_points.txt")
    old.write_text(f"[{namespace}]\nother = moved_vendor:Other\n")
    after = load_with_options("other", bare(), configured(), options={}, namespace=namespace)
    assert after.endpoint == "moved_vendor:Other"
    assert type(after.driver).__module__ == "moved_vendor"


def test_the_first_of_two_packages_with_one_name_is_loaded(
    install: Install, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace, first = install("other = vendor:Other"), tmp_path / "first"
    first.mkdir()
    (first / "first_vendor.py").write_text(MODULE)
    add_package(first, namespace, "other", "3.0", "first_vendor:Other")
    monkeypatch.syspath_prepend(str(first))
    (result,) = load(["other"], bare(), configured(), namespace)
    assert (result.error, result.version) == (None, "3.0")
    assert type(result.driver).__module__ == "first_vendor"


def test_drivers_are_loaded_by_stevedore_after_one_look_at_the_packages(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = install("broken = vendor:Broken\nother = vendor:Other")
    looks, look = [], importlib.metadata.entry_points

    def counted(**wanted: str) -> Any:
        looks.append(wanted)
        return look(**wanted)

    monkeypatch.setattr(importlib.metadata, "entry_points", counted)
    loads = stevedore_loads(monkeypatch)
    results = load(["*"], bare(), configured(), namespace)
    assert [(one.name, one.version) for one in results] == [("broken", "1"), ("other", "1")]
    assert loads == ["broken", "other"]
    # stevedore makes its own list, of all groups, once for a process.
    assert looks.count({"group": namespace}) == 1
    assert looks.count({}) <= 1
    assert len(looks) <= 2


def test_drivers_are_loaded_without_a_home_directory(tmp_path: pathlib.Path) -> None:
    """stevedore keeps a file below the home directory, if there is one; nothing else is written."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.write_text("no directory")
    work.mkdir()
    environment = {"HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        env=environment,
        cwd=work,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["fake_driver", "None"]
    assert done.stderr == ""
    assert home.read_text() == "no directory"
    assert list(work.iterdir()) == []


ALONE = """
from oslo_config import cfg
from cyborg.conf import opts
from cyborg.drivers.loader import load
from cyborg.testing.servers import bare
conf = cfg.ConfigOpts()
opts.register_opts(conf)
for result in load(["fake_driver"], bare(), conf):
    print(result.name, result.error)
"""

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
