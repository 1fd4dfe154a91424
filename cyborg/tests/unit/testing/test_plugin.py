# SPDX-License-Identifier: Apache-2.0
"""``pytest --cyborg-driver`` in a vendor's own repository: the template, as it is copied."""

import os
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cyborg.drivers.base import Driver
from cyborg.drivers.loader import NAMESPACE
from cyborg.drivers.pci import PciDriver
from cyborg.testing import driver_suite, scenario_hosts, servers, subject
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import ran
from cyborg.tests.unit.drivers.configured import configured

ROOT = Path(__file__).parents[4]
TEMPLATE = ROOT / "tools" / "driver-template"
GUIDE = ROOT / "doc" / "source" / "contributor" / "drivers.rst"
DRIVER = "my_driver/driver.py"
_IMPORT = "from cyborg.model.cleaning import CleanLevel\nfrom cyborg.model.device"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The template, installed as pip would install it."""
    package = tmp_path / "package"
    shutil.copytree(TEMPLATE, package)
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    entries = "".join(
        f"{name} = {target}\n" for name, target in project["entry-points"][NAMESPACE].items()
    )
    place = package / f"my_driver-{project['version']}.dist-info"
    place.mkdir()
    (place / "entry_points.txt").write_text(f"[{NAMESPACE}]\n{entries}")
    (place / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    return package


def contract(package: Path, *more: str, driver: str = "my_driver") -> tuple[int, str]:
    """Exit status and output of pytest there."""
    ended = ran(
        [sys.executable, "-m", "pytest", "-q", "--cyborg-driver", driver, *more],
        cwd=package,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{package}", "PYTEST_ADDOPTS": ""},
    )
    return ended.returncode, ended.stdout + ended.stderr


def change(package: Path, old: str, new: str) -> None:
    text = (package / DRIVER).read_text()
    assert old in text
    (package / DRIVER).write_text(text.replace(old, new))


def test_driver_of_the_guide_is_short_and_passes(package: Path) -> None:
    included = f"literalinclude:: ../../../tools/driver-template/{DRIVER}\n"
    assert included in GUIDE.read_text()
    assert (package / DRIVER).read_text().count("\n") < 90
    (package / "test_own.py").write_text("def test_of_the_repository():\n    pass\n")
    status, said = contract(package)
    assert status == 0, said
    assert int(said.rpartition(" passed")[0].split()[-1]) == 40


def test_broken_driver_fails(package: Path) -> None:
    change(package, "sorted(devices, key=lambda device: device.key)", "devices[::-1]")
    status, said = contract(package, "-k", "the_same_twice or what_it_cannot")
    assert status == 1, said
    assert "contract of my_driver::TestContract::test_discovers_the_same_twice" in said
    assert "1 failed, 1 passed" in said
    assert "discover() must return the devices in the order of their keys" in said


def test_template_does_not_install_existing_service(package: Path) -> None:
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    (required,) = map(Requirement, project["dependencies"])
    assert required.name == "openstack-cyborg"
    for older in ("14.0.0", "16.0.0", "17.0.0"):
        assert older not in required.specifier
    for ours in ("18.0.0.dev119", "18.0.0"):
        assert required.specifier.contains(ours, prereleases=True)
    tools = {Requirement(line).name for line in project["optional-dependencies"]["test"]}
    assert tools == {"pytest"}


def test_unusable_arguments_are_usage_errors(package: Path) -> None:
    status, said = contract(package, driver="nobodys_driver")
    assert status == 4, said
    assert "ERROR: --cyborg-driver nobodys_driver: no driver of this name is installed" in said


@pytest.mark.parametrize(
    ("host", "config", "sentence"),
    [
        ("cyborg.testing.servers:none", None, "there is no host 'cyborg.testing.servers:none'"),
        ("nowhere", None, "there is no host 'nowhere'"),
        ("/", None, "/ is a running machine and not a recorded tree"),
        ("/", None, "python3 -m cyborg.testing.recorder DRIVER DIRECTORY"),
        (None, "/nowhere.conf", "/nowhere.conf"),
    ],
)
def test_missing_hosts_and_files_are_named(
    host: str | None, config: str | None, sentence: str
) -> None:
    with pytest.raises(ValueError) as caught:
        subject.load("fake_driver", host, config)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("contract", "sentence"),
    [
        ("cyborg.testing.servers", "there is no contract 'cyborg.testing.servers'"),
        ("nowhere:Contract", "there is no contract 'nowhere:Contract'"),
        ("cyborg.testing.servers:server", "is not a class derived from DriverContract"),
    ],
)
def test_missing_contracts_are_named(contract: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        driver_suite.load_contract(contract)
    assert sentence in str(caught.value)


def test_health_without_hooks_names_the_option(package: Path) -> None:
    project = package / "pyproject.toml"
    project.write_text(project.read_text().replace("cyborg_contract", "cyborg_config = ''\n#"))
    status, said = contract(package, "-k", "health_follows")
    assert status == 1, said
    assert "name it with --cyborg-contract=module:Class" in said


def test_clean_steps_that_nobody_judges_are_named_in_the_output(package: Path) -> None:
    steps = """\
    def clean_steps(self, task):
        return [CleanStep("secure erase", lambda progress: None, level=CleanLevel.FULL)]

"""
    change(package, "    def prepared(", f"{steps}    def prepared(")
    change(package, "import Driver, no_progress\n", "import CleanStep, Driver, no_progress\n")
    change(package, "from cyborg.model.device", _IMPORT)
    status, said = contract(package, "-k", "full_cleaning")
    assert status == 0, said
    assert (
        "NotJudgedWarning: my_driver: clean_steps(0000:c1:00.0): secure erase: whether data is "
        "erased is not judged; derive a class from DriverContract that defines dirty_unit("
    ) in said


def test_contract_runs_on_several_scenario_hosts(package: Path, tmp_path: Path) -> None:
    """Each with the options that it has for the driver; a file may describe a host, too."""
    own = tmp_path / "own-host.yaml"
    own.write_text((scenario_hosts.SHIPPED / "n6001.yaml").read_text())
    project = package / "pyproject.toml"
    project.write_text(project.read_text().replace("cyborg_contract", "cyborg_ignored"))
    hosts = [part for name in ("mi300x", str(own)) for part in ("--cyborg-host", name)]
    status, said = contract(package, "-vv", "-k", "same_twice", *hosts, driver="pci_driver")
    assert status == 0, said
    assert "TestPciDriverOnMi300x::test_discovers_the_same_twice PASSED" in said
    assert "TestPciDriverOnOwnHost::test_discovers_the_same_twice PASSED" in said


def test_all_scenario_hosts_of_a_driver_have_one_name() -> None:
    subjects = subject.load_all("pci_driver", ["scenarios", "mixed"], None)
    assert [one.host for one in subjects] == scenario_hosts.names()
    with pytest.raises(ValueError, match="no scenario host names fake_driver"):
        subject.load_all("fake_driver", ["scenarios"], None)
    with pytest.raises(ValueError, match="the scenario hosts are a100-mig, alveo-u250"):
        subject.load_all("fake_driver", ["dgx"], None)


def test_contract_knows_that_options_name_addresses() -> None:
    subjects = [subject.load("pci_driver", host, None) for host in ("l40s-vgpu", "mi300x")]
    first, second = driver_suite.contracts(subjects).values()
    assert (first.selects_by_address, second.selects_by_address) == (True, False)


def test_configuration_file_wins_over_the_options_of_a_scenario(tmp_path: Path) -> None:
    config = tmp_path / "driver.conf"
    config.write_text('[pci]\npassthrough_whitelist = {"product_id": "ffff"}\n')
    one = subject.load("pci_driver", "mi300x", str(config))
    assert look(one.make_driver(one.make_host())).discover() == []


def test_refused_driver_options_are_named(tmp_path: Path) -> None:
    config = tmp_path / "driver.conf"
    config.write_text("[generic_driver]\nbackends = a\n")
    with pytest.raises(ValueError, match="resource_class must be set"):
        subject.load("generic_driver", None, str(config))


def test_recorded_tree_is_used_with_a_configuration_file(package: Path, tmp_path: Path) -> None:
    """The directory stands for the host, for a driver whose options come from a file."""
    tree, config = tmp_path / "tree", tmp_path / "driver.conf"
    servers.server().materialise(tree)
    config.write_text('[pci]\npassthrough_whitelist = {"vendor_id": "10de"}\n')
    given = (f"--cyborg-host={tree}", f"--cyborg-config={config}")
    status, said = contract(package, *given, "-k", "not corrupted", driver="pci_driver")
    assert status == 0, said


def test_contract_reports_missing_devices() -> None:
    class Empty(DriverContract):
        def make_host(self) -> FakeHost:
            return servers.bare()

        def make_driver(self, host: FakeHost) -> Driver:
            return PciDriver(host, configured())

    with pytest.raises(
        AssertionError, match=r"discover\(\) finds no device on the host of the test"
    ):
        Empty().test_discovers_the_same_twice()
