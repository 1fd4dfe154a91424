# SPDX-License-Identifier: Apache-2.0
"""What the distributions promise: commands, entry points, files, dependencies; house limits."""

import ast
import configparser
import importlib
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import cyborg

ROOT = Path(cyborg.__file__).resolve().parent.parent
PACKAGE = ROOT / "cyborg"
CLIENT = ROOT / "client"
#: The setup.cfg of each distribution, and its section with the entry points.
SETUPS = {
    "openstack-cyborg": ("setup.cfg", "entry_points"),
    "openstack-cyborg-cli": ("client/setup.cfg", "options.entry_points"),
}

# What the names in setup.cfg are that other projects' files and scripts rely on.
SCRIPTS = {
    "cyborg",
    "cyborg-agent",
    "cyborg-api",
    "cyborg-audit",
    "cyborg-conductor",
    "cyborg-dbsync",
    "cyborg-privileged",
    "cyborg-signing-key",
    "cyborg-status",
}
DRIVERS = {
    *("amd_gpu_driver", "fake_driver", "generic_driver", "habana_driver", "huawei_ascend_driver"),
    *("inspur_fpga_driver", "inspur_nvme_ssd_driver", "intel_fpga_driver", "intel_gpu_driver"),
    *("intel_nic_driver", "intel_qat_driver", "mdev_driver", "mlx5_driver", "nvidia_gpu_driver"),
    *("nvme_driver", "nvmf_spdk_driver", "pci_driver", "xilinx_fpga_driver"),
}
MAX_LINES = 800
MAX_FUNCTION = 80


def setup(file: str = "setup.cfg") -> configparser.ConfigParser:
    """Return a file in the format of setup.cfg."""
    found = configparser.ConfigParser()
    found.read(ROOT / file, encoding="utf-8")
    return found


def entry_points(distribution: str) -> list[tuple[str, str, str]]:
    """Return (group, name, target) of every entry point that a distribution declares."""
    file, section = SETUPS[distribution]
    return [
        (group, *(part.strip() for part in line.split("=")))  # type: ignore[misc]
        for group, text in setup(file)[section].items()
        for line in text.split("\n")
        if line.strip()
    ]


def all_entry_points() -> list[tuple[str, str, str]]:
    """Return those of both distributions."""
    return [point for distribution in SETUPS for point in entry_points(distribution)]


def service() -> Iterator[Path]:
    """Yield the modules of the service; tests are looked at elsewhere."""
    yield from (path for path in PACKAGE.rglob("*.py") if PACKAGE / "tests" not in path.parents)


def client() -> Iterator[Path]:
    """Yield the modules of the client."""
    yield from (CLIENT / "cyborg_cli").rglob("*.py")


def sources() -> Iterator[Path]:
    """Yield the modules of both."""
    yield from service()
    yield from client()


@pytest.mark.parametrize(("group", "name", "target"), all_entry_points())
def test_entry_point_can_be_imported(group: str, name: str, target: str) -> None:
    module, _, attribute = target.partition(":")
    found = importlib.import_module(module)
    assert not attribute or callable(getattr(found, attribute)), f"{group}: {name}"


def test_names_used_by_deployers_are_entry_points() -> None:
    names: dict[str, set[str]] = {}
    for group, name, _target in all_entry_points():
        names.setdefault(group, set()).add(name)
    assert names["console_scripts"] == SCRIPTS
    assert names["cyborg.accelerator.driver"] == DRIVERS
    assert names["oslo.config.opts"] == {"cyborg"}
    assert names["oslo.policy.policies"] == {"cyborg.api"}
    assert names["cyborg.database.migration_backend"] == {"sqlalchemy"}
    assert names["pytest11"] == {"cyborg_driver"}
    # The name "accelerator" is python-cyborgclient's, and python-openstackclient's own.
    assert names["openstack.cli.extension"] == {"cyborg"}


def test_readme_names_each_driver() -> None:
    readme = (ROOT / "README.rst").read_text()
    assert {name for name in DRIVERS if f"``{name}``" not in readme} == set()


@pytest.mark.parametrize("distribution", SETUPS)
def test_installed_metadata_equals_setup_cfg(distribution: str) -> None:
    installed = importlib.metadata.distribution(distribution)
    assert {(entry.group, entry.name, entry.value) for entry in installed.entry_points} == set(
        entry_points(distribution)
    )


def test_client_has_the_version_of_the_service() -> None:
    versions = [
        subprocess.run(
            [sys.executable, file, "--version"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.split()[-1]
        for file in ("setup.py", "client/setup.py")
    ]
    assert versions[0] == versions[1]


def test_data_files_list_all_of_etc() -> None:
    text = setup()["files"]["data_files"]
    listed = [line.strip() for line in text.split("\n") if line.strip() and "=" not in line]
    # The samples that a generator makes are never there.
    generated = {"etc/cyborg/cyborg.conf.sample", "etc/cyborg/policy.yaml.sample"}
    there = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "etc").rglob("*") if path.is_file()
    }
    assert sorted(listed) == sorted(there - generated)


def test_manifest_covers_files_other_than_python() -> None:
    lines = (ROOT / "MANIFEST.in").read_text().splitlines()
    [patterns] = [
        line.split()[2:] for line in lines if line.startswith("recursive-include cyborg ")
    ]
    others = [
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        if PACKAGE / "tests" not in path.parents
    ]
    assert [name for name in others if not any(fnmatch(name, glob) for glob in patterns)] == []


def requirements(name: str) -> set[str]:
    """Return the normalised names of the distributions that a requirements file asks for."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return {normal(Requirement(line).name) for line in lines if line}


def extra(name: str) -> set[str]:
    """Return the normalised names of the distributions of one extra."""
    return {normal(Requirement(line).name) for line in setup()["extras"][name].split("\n") if line}


def normal(name: str) -> str:
    """Return the one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(path: Path) -> set[str]:
    """Return the top-level packages that a module imports."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@cache
def providers() -> Mapping[str, list[str]]:
    """Return the distributions that provide each package; looking takes a while."""
    return importlib.metadata.packages_distributions()


def unrequired(path: Path, allowed: set[str], own: str = "cyborg") -> set[str]:
    """Return what a module imports that no distribution in ``allowed`` provides.

    ``own`` is the package that the module is in.
    """
    foreign = imported(path) - set(sys.stdlib_module_names) - {"_typeshed", own}
    return {
        name
        for name in foreign
        if allowed.isdisjoint(normal(owner) for owner in providers().get(name, [name]))
    }


def test_every_import_is_a_requirement() -> None:
    allowed = requirements("requirements.txt")
    for_testing = allowed | requirements("test-requirements.txt")
    # Imported only where it is wanted.
    optional = {
        "cyborg/drivers/nvml_program.py": extra("nvidia"),
        "cyborg/tracing.py": extra("otel"),
    }
    found = {
        path.relative_to(ROOT).as_posix(): unrequired(
            path,
            (for_testing if PACKAGE / "testing" in path.parents else allowed)
            | optional.get(path.relative_to(ROOT).as_posix(), set()),
        )
        for path in service()
    }
    found |= {
        path.relative_to(ROOT).as_posix(): unrequired(
            path, requirements("client/requirements.txt"), "cyborg_cli"
        )
        for path in client()
    }
    assert {path: missing for path, missing in found.items() if missing} == {}


def test_every_requirement_is_imported() -> None:
    modules = {
        "requirements.txt": (path for path in service() if PACKAGE / "testing" not in path.parents),
        "client/requirements.txt": client(),
    }
    for file, paths in modules.items():
        used = {name for path in paths for name in imported(path)}
        owners = {normal(owner) for name in used for owner in providers().get(name, [])}
        assert requirements(file) <= owners


def test_service_and_client_have_the_same_bounds() -> None:
    lines = [
        set((ROOT / file).read_text().splitlines())
        for file in ("requirements.txt", "client/requirements.txt")
    ]
    names = [
        {normal(Requirement(line.partition("#")[0]).name) for line in part if line[0] != "#"}
        for part in lines
    ]
    both = names[0] & names[1]
    assert len(both) > 2
    assert len(both) == len([line for line in lines[0] & lines[1] if line[0] != "#"])


def test_every_requirement_has_a_bound() -> None:
    unbound = []
    for name in ("requirements.txt", "client/requirements.txt", "test-requirements.txt"):
        for line in (ROOT / name).read_text().splitlines():
            asked = line.partition("#")[0].strip()
            if not asked:
                continue
            wanted = Requirement(asked)
            present = importlib.metadata.version(wanted.name)
            if not wanted.specifier or not wanted.specifier.contains(present, prereleases=True):
                unbound.append(f"{asked} (installed: {present})")
    assert unbound == []


def test_lowest_environment_has_exactly_the_lower_bounds(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/command\n')
    python.chmod(0o755)
    # The module is untyped: an old Python must be able to read it.
    ensure = "environment.ensure(sys.argv[1], ['test-requirements.txt'], lowest=True)"
    code = f"import sys; sys.path.insert(0, 'tools'); import environment; {ensure}"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
    words = (tmp_path / "command").read_text().split()
    constraints = Path(words[words.index("-c") + 1]).read_text().splitlines()
    bounds = [
        Requirement(line.partition("#")[0])
        for name in ("requirements.txt", "client/requirements.txt", "test-requirements.txt")
        for line in (ROOT / name).read_text().splitlines()
        # The client is in this tree, and has no lower release.
        if line and not line.startswith(("#", "openstack-cyborg-cli"))
    ]
    assert constraints == [
        f"{bound.name}{str(bound.specifier).replace('>', '=')}" for bound in bounds
    ]


def test_modules_stay_small() -> None:
    # Alembic revisions are history: they grow with the schema that they make, and stay.
    long = {
        path.relative_to(ROOT).as_posix(): path.read_text().count("\n")
        for path in sources()
        if "versions" not in path.parts
    }
    assert {name: lines for name, lines in long.items() if lines > MAX_LINES} == {}


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {node.name} has {lines} lines"
        for path in sources()
        if "versions" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION
    ]
    assert long == []


def test_drivers_tell_signals_and_no_conditions() -> None:
    """What a signal means is an entry of ``health.d``; only the policy itself has conditions."""
    wrong = [
        str(path.relative_to(ROOT))
        for path in sorted((PACKAGE / "drivers").rglob("*.py"))
        if path.name != "health_policy.py" and re.search(r"\bCondition\b", path.read_text())
    ]
    assert wrong == []
