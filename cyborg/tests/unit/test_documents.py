# SPDX-License-Identifier: Apache-2.0
"""The documents name what there is: routes, parameters, options, states, tables and drivers."""

import configparser
import re
from pathlib import Path

import pytest
from keystonemiddleware import auth_token
from oslo_config import cfg
from oslo_messaging import opts as oslo_messaging
from oslo_middleware import opts as oslo_middleware
from oslo_policy import opts as oslo_policy

from cyborg import conf as configuration
from cyborg.conf import generic
from cyborg.db.models import METADATA
from cyborg.model.arq import State
from cyborg.policies import list_rules

ROOT = Path(__file__).parents[3]
API = ROOT / "api-ref" / "source"
DOC = ROOT / "doc" / "source"

#: Options that the documents name and that are other services'.
FOREIGN = {
    ("cyborg", "endpoint_override"),
    ("filter_scheduler", "enabled_filters"),
    ("pci", "device_spec"),
    ("pci", "report_in_placement"),
}


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
def test_options_named_in_documents_exist(path: Path, options: set[tuple[str, str]]):
    named = set(re.findall(r"``\[(\w+)\] (\w+)(?: = \w+)?``", plain(path)))
    assert named <= options | FOREIGN


@pytest.mark.parametrize("path", [DOC / "user/index.rst", API / "accelerator-requests.inc"])
def test_every_state_is_explained(path: Path):
    assert {state.value for state in State} <= set(re.findall(r"``(\w+)``", path.read_text()))


def test_every_table_is_in_architecture_page():
    text = (DOC / "contributor/architecture.rst").read_text()
    assert set(METADATA.tables) <= set(re.findall(r"``(\w+)``", text))


def test_every_driver_is_in_the_reference():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = setup["entry_points"]["cyborg.accelerator.driver"]
    drivers = re.findall(r"^(\w+) =", listed, re.MULTILINE)
    text = (DOC / "reference/drivers.rst").read_text()
    assert drivers
    for name in drivers:
        assert f"\n``{name}``\n===" in text


def test_rules_named_in_documents_exist():
    rules = {rule.name for rule in list_rules()}
    for path in TEXTS:
        assert set(re.findall(r"cyborg:\w+:\w+", path.read_text())) <= rules, path


def test_every_option_of_a_generic_backend_is_explained():
    named = set(re.findall(r"``(\w+)``", (DOC / "admin/generic-driver.rst").read_text()))
    assert {option.dest for option in generic.backend_options()} <= named
