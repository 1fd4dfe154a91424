# SPDX-License-Identifier: Apache-2.0
"""The documents name what there is: routes, parameters, options, states, tables and drivers."""

import configparser
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import wsme.types
from keystonemiddleware import auth_token
from oslo_config import cfg
from oslo_messaging import opts as oslo_messaging
from oslo_middleware import opts as oslo_middleware
from oslo_policy import opts as oslo_policy

from cyborg import conf as configuration
from cyborg.api import types
from cyborg.api.controllers.v2 import (
    arqs,
    attributes,
    backends,
    deployables,
    device_profiles,
    device_query,
    devices,
    drivers,
    hardware,
    operations,
    services,
)
from cyborg.api.microversion import LATEST
from cyborg.api.routing import Noun
from cyborg.conf import generic
from cyborg.db import arqs as db_arqs
from cyborg.db import attributes as db_attributes
from cyborg.db import deployables as db_deployables
from cyborg.db import device_profiles as db_device_profiles
from cyborg.db import devices as db_devices
from cyborg.db import inventory
from cyborg.db import operations as db_operations
from cyborg.db.listing import Sortable
from cyborg.db.models import METADATA, Service
from cyborg.model.arq import State
from cyborg.policies import list_rules

ROOT = Path(__file__).parents[3]
API = ROOT / "api-ref" / "source"
DOC = ROOT / "doc" / "source"

#: No table holds both kinds of services; the words of their order are those of the controller.
SERVICES = Sortable(
    id=Service.id,
    uuid=Service.uuid,
    columns=dict.fromkeys(services.SORT_KEYS, Service.uuid),
)
#: File of the reference → controller, its list's parameters, and how the list may be sorted.
NOUNS: dict[str, tuple[ModuleType, type[Noun], type[wsme.types.Base], Sortable]] = {
    "accelerator-requests": (arqs, arqs.Arqs, arqs.ArqQuery, db_arqs.SORTABLE),
    "attributes": (
        attributes,
        attributes.Attributes,
        attributes.AttributeQuery,
        db_attributes.SORTABLE,
    ),
    "deployables": (
        deployables,
        deployables.Deployables,
        deployables.DeployableQuery,
        db_deployables.SORTABLE,
    ),
    "device-profiles": (
        device_profiles,
        device_profiles.DeviceProfiles,
        device_profiles.ProfileQuery,
        db_device_profiles.SORTABLE,
    ),
    "devices": (devices, devices.Devices, device_query.DeviceQuery, db_devices.SORTABLE),
    "operations": (
        operations,
        operations.Operations,
        operations.OperationQuery,
        db_operations.SORTABLE,
    ),
    "backends": (
        backends,
        backends.Backends,
        backends.BackendQuery,
        inventory.BACKENDS.sortable,
    ),
    "drivers": (drivers, drivers.Drivers, drivers.DriverQuery, inventory.DRIVERS.sortable),
    "hardware": (hardware, hardware.Hardware, hardware.HardwareQuery, inventory.HARDWARE.sortable),
    "services": (services, services.Services, services.ServiceQuery, SERVICES),
}
#: Options that the documents name and that are other services'.
FOREIGN = {("pci", "device_spec"), ("pci", "report_in_placement")}


#: Everything that people read.
TEXTS = [
    ROOT / "README.rst",
    *sorted(API.glob("*.inc")),
    *sorted(DOC.glob("**/*.rst")),
    *sorted((ROOT / "releasenotes" / "notes").glob("*.yaml")),
]


def plain(path: Path) -> str:
    """The text of a file in one line, so that what is wrapped is found."""
    return " ".join(path.read_text().split())


def declared(query: type[wsme.types.Base]) -> set[str]:
    return {attribute.name for attribute in wsme.types.list_attributes(query)}


@pytest.fixture(scope="module")
def options() -> set[tuple[str, str]]:
    """Every option by group, those of the libraries included."""
    conf = cfg.ConfigOpts()
    configuration.prepare([], prog="documents", default_config_files=[], conf=conf)
    libraries = (auth_token, oslo_messaging, oslo_middleware, oslo_policy)
    for library in libraries:
        for group, found in library.list_opts():
            conf.register_opts(found, group=group)
    known = {("DEFAULT", name) for name in conf}
    for name in conf:
        if isinstance(conf[name], cfg.ConfigOpts.GroupAttr):
            known |= {(name, option) for option in conf[name]}
    return known


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_that_are_named_exist(path: Path, options: set[tuple[str, str]]):
    named = set(re.findall(r"``\[(\w+)\] (\w+)(?: = \w+)?``", plain(path)))
    assert named <= options | FOREIGN


@pytest.mark.parametrize("name", NOUNS)
def test_every_route_is_in_the_reference(name: str):
    text = plain(API / f"{name}.inc")
    module, noun, _, _ = NOUNS[name]
    for pattern, methods in noun.routes.items():
        # A path that ends in the collection, or goes on with whatever the reference calls "*".
        path = re.escape(f"/v2/{module.COLLECTION}")
        path += "".join(
            "/" + (r"\{[^}]+\}" if part == "*" else part) for part in pattern.split("/") if part
        )
        for method, handler in methods.items():
            if handler != "delete_none":
                assert re.search(rf"{method} {path}(?![/\w])", text), f"{method} {path}"


@pytest.mark.parametrize("name", NOUNS)
def test_parameters_and_sort_keys_of_lists_are_those_of_the_code(name: str):
    _, _, query, sortable = NOUNS[name]
    text = plain(API / f"{name}.inc")
    keys = re.search(r"Sort keys: ([^.]+)\.", text)
    assert keys is not None
    assert set(re.findall(r"``(\w+)``", keys[1])) == set(sortable.columns)
    filters = declared(query) - declared(types.Listing)
    assert filters <= set(re.findall(r"``(\w+)(?:=\w+)?``", text))


def test_microversions_are_all_in_the_reference():
    found = re.findall(r"^2\.(\d+) ", (API / "general.inc").read_text(), re.MULTILINE)
    assert [int(minor) for minor in found] == list(range(LATEST + 1))


def test_the_tests_that_are_known_to_fail_are_in_the_plugin():
    spec = importlib.util.find_spec("cyborg_tempest_plugin")
    assert spec is not None
    assert spec.origin is not None
    suite = Path(spec.origin).parent / "tests" / "api" / "test_device_profile_negative.py"
    text = (API / "deviations.inc").read_text()
    named = re.findall(r"``((?:test_|DeviceProfile)\w+)``", text)
    assert len(named) == 4
    assert all(f"{name}(" in suite.read_text() for name in named)


@pytest.mark.parametrize("path", [DOC / "user/index.rst", API / "accelerator-requests.inc"])
def test_every_state_is_explained(path: Path):
    assert {state.value for state in State} <= set(re.findall(r"``(\w+)``", path.read_text()))


def test_every_table_is_in_the_architecture():
    text = (DOC / "contributor/architecture.rst").read_text()
    assert set(METADATA.tables) <= set(re.findall(r"``(\w+)``", text))


def test_every_driver_of_the_field_is_in_the_reference():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = setup["entry_points"]["cyborg.accelerator.driver"]
    drivers = re.findall(r"^(\w+) =", listed, re.MULTILINE)
    text = (DOC / "reference/drivers.rst").read_text()
    assert drivers
    for name in drivers:
        assert f"\n``{name}``\n===" in text


def test_rules_that_are_named_exist():
    rules = {rule.name for rule in list_rules()}
    for path in TEXTS:
        assert set(re.findall(r"cyborg:\w+:\w+", path.read_text())) <= rules, path


def test_every_option_of_a_generic_backend_is_explained():
    named = set(re.findall(r"``(\w+)``", (DOC / "admin/generic-driver.rst").read_text()))
    assert {option.dest for option in generic.backend_options()} <= named
