# SPDX-License-Identifier: Apache-2.0
"""``tools/lint`` refuses bad samples: names, words, insides, imports and circles."""

import os
import re
import sys
from pathlib import Path
from typing import Final

import pytest

from cyborg.tests.fixtures.waiting import ran

ROOT: Final = Path(__file__).resolve().parents[3]

BAD_NAMES: Final = {
    "found = 1": "found",
    "for one in (): pass": "one",
    "def check(asked): pass": "asked",
    "check = lambda *, known: known": "known",
    "class Row:\n    wanted: bool": "wanted",
    "class Row:\n    def __init__(self):\n        self.told = 1": "told",
    "class Row:\n    def __init__(self):\n        self._told = 1": "_told",
    "if (found := 1): pass": "found",
    "with open('') as found: pass": "found",
    "try: pass\nexcept OSError as known: pass": "known",
    "names = [str(one) for one in ()]": "one",
    "first, *told = ()": "told",
    "match 1:\n    case [one, *_]: pass": "one",
    "import os as wanted": "wanted",
}
GOOD_NAMES: Final = """\
import os as system

existing = {"found": 1, "one": system.name}
unknown = check(known=1)
device.one()
def found(row, requested): return [existing for existing in row.wanted]
"""
BAD_WORDS: Final = {
    "module.py": {
        '"""Begin anew."""': "anew: write again",
        "x = 1  # Locked, lest it changes.": "lest: write so that … not",
        "# Everything but\n# for this.": "but for: write except, or without",
        'text = ("no host but " "for this")': "but for: write except, or without",
        'help = f"{x} has a wish"': "wish: a picture; write request, requirement, or desired state",
    },
    "page.rst": {
        "Whoever asks.": "Whoever: name who it is",
        "It runs no more.": "no more: write no longer",
        "The heart of\nthe agent": "heart: a picture; write agent loop, or heartbeat",
        "One lane for each device": "lane: a picture",
        "It gives no sign\nof life": "sign of life: a picture; write heartbeat",
    },
    "part.inc": {"Mend the database": "Mend: a picture; write repair, or correct"},
    "note.yaml": {"fixes: A fault is said once.": "is said once: name who logs or reports it"},
}
GOOD_WORDS: Final = {
    "module.py": 'wish = names["wish"]  # The agent sends a heartbeat: ``Heart``\nheart(lane)\n',
    "page.rst": (
        "The device has 16 PCIe lanes, no more than that.\n\n.. _whoever:\n\n"
        "See ``wish``, :ref:`anew` and :ref:`the agent <heart>`.\n"
    ),
    "note.yaml": "fixes: The agent sends its heartbeat again.\n",
    "sample.json": '{"text": "whoever"}\n',
}
BAD_INSIDES: Final = {
    "import pecan": "pecan",
    "from pecan.core import ExplicitPecan": "pecan.core",
    "from wsme import _hidden": "_hidden",
    "handler._pecan = {}": "_pecan",
    "class Text(Type):\n    def __init_subclass__(cls):\n        cls._order = []": "_order",
    "class Page(Health):\n    def _make(self):\n        return super()._make()": "_make",
    "class Page(Health):\n    def show(self):\n        return self._details": "_details",
    "setattr(handler, '_pecan', {})": "_pecan",
}
GOOD_INSIDES: Final = """\
import wsme

class Text(wsme.types.UserType):
    _minor = 1

    def __init__(self):
        self._maximum = 5

    def at(self, changed):
        changed._minor = self._maximum
        return changed.__class__, getattr(changed, "name")
"""


BAD_IMPORTS: Final = {
    "def read():\n    from cyborg.drivers import host": "cyborg.drivers",
    "class Reader:\n    import cyborg.exception": "cyborg.exception",
    "if TYPE_CHECKING:\n    from cyborg.db.engine import Reader": "cyborg.db.engine",
}
GOOD_IMPORTS: Final = """\
import cyborg.exception
from cyborg.drivers import host

def start():
    import json
    from cyborg.drivers.privileged.server import Server
"""
#: Settings of import-linter for a package ``sample``.
CONTRACT: Final = """\
[tool.importlinter]
root_package = "sample"
contract_types = ["acyclic_modules: contracts.AcyclicModules"]
[[tool.importlinter.contracts]]
name = "No circle"
type = "acyclic_modules"
"""
#: What a module of a package has → the lines of its circle that lint-imports prints.
CIRCLES: Final = {
    "from sample import first": ["sample.first imports sample.second"],
    "def late():\n    from sample import first": ["sample.first imports sample.second"],
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sample import first": [
        "sample.second imports sample.first"
    ],
    "": [],
}


def run(*command: str) -> tuple[int, str]:
    """Run a command of Python in the repository; return its status and what it prints."""
    done = ran([sys.executable, *command], cwd=ROOT, check=False)
    return done.returncode, done.stdout + done.stderr


def test_names_refuses_each_kind_of_binding(tmp_path: Path) -> None:
    samples = {tmp_path / f"{number}.py": text for number, text in enumerate(BAD_NAMES)}
    for path, text in samples.items():
        path.write_text(text)
    status, out = run("tools/rules", "names", *map(str, samples))
    assert status == 1
    assert re.findall(r"^\S+:\d+ (\w+): name the thing with a noun", out, re.MULTILINE) == [
        *BAD_NAMES.values()
    ]


def test_insides_refuses_each_way_into_a_library(tmp_path: Path) -> None:
    samples = {tmp_path / f"{number}.py": text for number, text in enumerate(BAD_INSIDES)}
    for path, text in samples.items():
        path.write_text(text)
    status, out = run("tools/rules", "insides", *map(str, samples))
    assert status == 1
    assert re.findall(r"^\S+:\d+ (\S+): use cyborg/api/framework.py", out, re.MULTILINE) == [
        *BAD_INSIDES.values()
    ]


def test_insides_allows_own_private_names(tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text(GOOD_INSIDES)
    assert run("tools/rules", "insides", str(sample)) == (0, "")


def test_names_allows_other_names_and_mere_uses(tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text(GOOD_NAMES)
    assert run("tools/rules", "names", str(sample)) == (0, "")


@pytest.mark.parametrize("name", BAD_WORDS)
def test_words_tells_what_to_write_instead(name: str, tmp_path: Path) -> None:
    for number, (text, message) in enumerate(BAD_WORDS[name].items()):
        sample = tmp_path / f"{number}-{name}"
        sample.write_text(f"{text}\n")
        status, out = run("tools/rules", "words", str(sample))
        assert status == 1, text
        assert out.startswith(f"{sample}:1 {message}"), text
        assert out.count("\n") == 1


def test_words_allows_identifiers_and_terms_of_the_field(tmp_path: Path) -> None:
    for name, text in GOOD_WORDS.items():
        (tmp_path / name).write_text(text)
    samples = [str(tmp_path / name) for name in GOOD_WORDS]
    assert run("tools/rules", "words", *samples) == (0, "")


def test_imports_refuses_late_imports_of_the_service(tmp_path: Path) -> None:
    samples = {tmp_path / f"{number}.py": text for number, text in enumerate(BAD_IMPORTS)}
    for path, text in samples.items():
        path.write_text(text)
    status, out = run("tools/rules", "imports", *map(str, samples))
    assert status == 1
    assert re.findall(r"^\S+:\d+ (\S+): import it where the module begins", out, re.MULTILINE) == [
        *BAD_IMPORTS.values()
    ]


def test_imports_allows_what_takes_long(tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text(GOOD_IMPORTS)
    assert run("tools/rules", "imports", str(sample)) == (0, "")


@pytest.mark.parametrize("second", CIRCLES)
def test_layers_refuses_a_circle_of_modules(second: str, tmp_path: Path) -> None:
    package = tmp_path / "sample"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text("from sample import second\n")
    (package / "second.py").write_text(f"{second}\n")
    (tmp_path / "pyproject.toml").write_text(CONTRACT)
    done = ran(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools")},
        check=False,
    )
    assert done.returncode == bool(CIRCLES[second]), done.stdout
    for line in CIRCLES[second]:
        assert line in done.stdout
