# SPDX-License-Identifier: Apache-2.0
"""Every driver option in an example of the documents is one that the driver takes."""

import re
from pathlib import Path

import pytest
from oslo_config import cfg

import cyborg
from cyborg import conf as configuration
from cyborg.drivers import loader
from cyborg.testing.fake_host import FakeHost

DOCUMENTS = Path(cyborg.__file__).resolve().parent.parent / "doc/source"
_COMMAND = re.compile(r"(?:install-driver|update-driver|driver install|driver update)\s+(\w+)(.*)")
_OPTION = re.compile(r"--(?:unset-)?option\s+([\w.:-]+)")
EXAMPLES = [
    (str(path.relative_to(DOCUMENTS)), driver, option)
    for path in sorted(DOCUMENTS.rglob("*.rst"))
    for driver, rest in _COMMAND.findall(path.read_text().replace("\\\n", " "))
    for option in _OPTION.findall(rest)
]


def test_documents_have_driver_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize(("document", "driver", "option"), EXAMPLES)
def test_options_in_examples_exist(document: str, driver: str, option: str) -> None:
    conf = cfg.ConfigOpts()
    configuration.prepare([], prog="cyborg-agent", default_config_files=[], conf=conf)
    (loaded,) = loader.load([driver], FakeHost(), conf)
    assert loaded.error is None
    assert option in {
        key for one in loaded.accepts for key in (one.name, f"{one.group}.{one.name}")
    }, f"{document}: {driver} has no option {option}"
