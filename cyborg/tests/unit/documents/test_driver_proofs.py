# SPDX-License-Identifier: Apache-2.0
"""``driver-proofs.csv`` has what the marks of tests claim to show about drivers.

``@pytest.mark.proves(driver, *features, by=kind)`` at a test, at a class of tests, or as the
``pytestmark`` of a module says which features of a driver it shows, and on what. Marks are read
from the source, because the tests of ``cyborg/tests/kernel`` can only be collected in a guest.
"""

import ast
import configparser
import csv
import importlib
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import cyborg
from cyborg.drivers.archive import ArchivedHost
from cyborg.drivers.base import Driver
from cyborg.tests.committed import advice, lines_of

ROOT: Final = Path(cyborg.__file__).parents[1]
TESTS: Final = ROOT / "cyborg" / "tests"
TABLE: Final = ROOT / "doc" / "source" / "reference" / "driver-proofs.csv"
#: What was used on the devices themselves, and the records of ``tools/metal`` that show it.
METAL: Final = TABLE.with_name("driver-metal.csv")
RECORDS: Final = TESTS / "fixtures" / "hosts"
#: The features that the table has, and the methods of which a driver needs one for each.
FEATURES: Final = {
    "discover": ("discover",),
    "partition": ("partition",),
    # A function that needs no preparation is bound by what ``discover`` says.
    "bind": ("prepare", "discover"),
    "health": ("signals",),
    "cleaning": ("clean_steps", "release"),
    "programming": ("program",),
    "stats": ("stats",),
}
KINDS: Final = ("kernel", "recorded", "library", "simulated")
#: Marks with which a test does not run, or may fail.
NOT_RUN: Final = ("skip", "skipif", "xfail")


class FalseMarkError(Exception):
    """A mark that is not valid, or is at something that is no test."""


@dataclass(frozen=True, order=True)
class Proof:
    """What a mark says; ``file`` is the path of its module below ``cyborg/tests``."""

    driver: str
    feature: str
    kind: str
    file: str


def proofs(tree: ast.Module, file: str) -> Iterator[Proof]:
    """Yield what the marks of a module claim; raises FalseMarkError.

    A test that is skipped, or may fail, claims nothing.
    """
    counted: set[int] = set()
    for marks in _marks_of_tests(tree):
        counted |= {id(node) for mark in marks for node in ast.walk(mark)}
        if not any(_name(mark) in NOT_RUN for mark in marks):
            for mark in marks:
                if _name(mark) == "proves":
                    yield from _read(mark, file)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "proves" and id(node) not in counted:
            raise FalseMarkError(f"{file}:{node.lineno}: this mark is at no test")


def _marks_of_tests(tree: ast.Module) -> Iterator[list[ast.expr]]:
    """Yield the marks of each test or class of tests, with those of what it is in."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    of_module = list(_pytestmark(tree.body))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield [*of_module, *node.decorator_list]
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            if not _has_tests(node, classes):
                continue
            of_class = [*of_module, *node.decorator_list, *_pytestmark(node.body)]
            yield of_class
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name.startswith("test"):
                    yield [*of_class, *inner.decorator_list]


def _has_tests(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """Return whether a class has a test, of its own or of the contract of drivers."""
    if any(isinstance(one, ast.FunctionDef) and one.name.startswith("test") for one in node.body):
        return True
    bases = [ast.unparse(base) for base in node.bases]
    return any(
        # A contract of another module, such as DriverContract, has tests.
        _has_tests(classes[base], classes) if base in classes else base.endswith("Contract")
        for base in bases
    )


def _pytestmark(body: Sequence[ast.stmt]) -> Iterator[ast.expr]:
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            listed = isinstance(node.value, (ast.List, ast.Tuple))
            yield from node.value.elts if listed else [node.value]  # type: ignore[attr-defined]


def _name(mark: ast.expr) -> str | None:
    """Return the name of a mark of pytest, with or without arguments; None of a decorator."""
    text = ast.unparse(mark.func if isinstance(mark, ast.Call) else mark)
    return text.removeprefix("pytest.mark.") if text.startswith("pytest.mark.") else None


def _read(mark: ast.expr, file: str) -> Iterator[Proof]:
    """Yield the proofs of one mark, whose arguments are literal texts."""
    place = f"{file}:{mark.lineno}"
    call = ast.unparse(mark)
    if not isinstance(mark, ast.Call):
        raise FalseMarkError(f"{place}: {call} has no arguments")
    texts = [getattr(argument, "value", None) for argument in mark.args]
    by = {keyword.arg: getattr(keyword.value, "value", None) for keyword in mark.keywords}
    kind = by.pop("by", None)
    if len(texts) < 2 or by or not all(isinstance(text, str) for text in (*texts, kind)):
        raise FalseMarkError(f"{place}: {call} is not proves(driver, feature, ..., by=kind)")
    if (file.startswith("kernel/")) is not (kind == "kernel") or kind not in KINDS:
        raise FalseMarkError(f"{place}: a test of this directory proves nothing by {kind!r}")
    driver, *features = map(str, texts)
    for feature in features:
        if feature not in FEATURES:
            raise FalseMarkError(f"{place}: {feature!r} is none of {', '.join(FEATURES)}")
        yield Proof(driver, feature, str(kind), file)


def all_proofs() -> set[Proof]:
    """Return what the marks of all tests claim."""
    return {
        proof
        for path in sorted(TESTS.rglob("test_*.py"))
        if "mark.proves" in (text := path.read_text())
        for proof in proofs(ast.parse(text), path.relative_to(TESTS).as_posix())
    }


def drivers() -> dict[str, type[Driver]]:
    """Return the drivers of this package, as setup.cfg names them."""
    conf = configparser.ConfigParser()
    conf.read(ROOT / "setup.cfg")
    classes = {}
    for line in conf["entry_points"]["cyborg.accelerator.driver"].split("\n"):
        name, _, place = (part.strip() for part in line.partition("="))
        if name:
            module, _, attribute = place.partition(":")
            classes[name] = getattr(importlib.import_module(module), attribute)
    return classes


def rendered(claims: Iterable[Proof]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "driver,feature,proof,tests"
    for claim in sorted(claims):
        yield f"{claim.driver},{claim.feature},{claim.kind},{claim.file}"


def test_table_has_what_the_marks_of_tests_say() -> None:
    lines = list(rendered(all_proofs()))
    flaw = advice(
        f"{TABLE.name} differs from the marks of tests.", "unit/documents/test_driver_proofs.py"
    )
    assert lines_of(TABLE, lines) == lines, flaw


def test_marks_name_drivers_that_have_the_feature() -> None:
    existing = drivers()
    for proof in all_proofs():
        assert proof.driver in existing, f"{proof.file}: there is no driver {proof.driver}"
        kind = existing[proof.driver]
        methods = FEATURES[proof.feature]
        assert any(getattr(kind, name) is not getattr(Driver, name) for name in methods), proof


def test_page_has_all_features_and_kinds() -> None:
    tree = ast.parse((ROOT / "doc" / "source" / "_ext" / "tables.py").read_text())
    values = {
        ast.unparse(node.targets[0]): node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
    }
    assert ast.literal_eval(values["FEATURES"]) == tuple(FEATURES)
    assert tuple(ast.literal_eval(values["KINDS"])) == KINDS
    assert METAL.name in ast.unparse(values["METAL"])


def test_what_was_seen_on_metal_has_a_record_in_which_all_checks_hold() -> None:
    existing = drivers()
    with METAL.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        assert row["driver"] in existing
        assert set(row["features"].split(", ")) <= FEATURES.keys()
        report = json.loads((RECORDS / f"{row['record']}.json").read_text())
        assert report["holds"] is True
        archive = ArchivedHost.recorded(RECORDS / f"{row['record']}.tar.gz")
        for address in report["gpus"]:
            information = f"/proc/driver/nvidia/gpus/{address}/information"
            assert row["device"] in archive.read_text(information)


MARK = 'pytest.mark.proves("fake_driver", "health", by="simulated")'


@pytest.mark.parametrize(
    ("source", "count"),
    [
        (f"@{MARK}\ndef test_it(): ...", 1),
        (f"@{MARK}\n@pytest.mark.skip\ndef test_it(): ...", 0),
        (f"@{MARK}\n@pytest.mark.skipif(True, reason='')\ndef test_it(): ...", 0),
        (f"@{MARK}\n@pytest.mark.xfail\ndef test_it(): ...", 0),
        (f"pytestmark = pytest.mark.skip\n@{MARK}\ndef test_it(): ...", 0),
        (f"pytestmark = [{MARK}]\ndef test_it(): ...", 1),
        (f"@{MARK}\nclass TestIt(DriverContract): ...", 1),
        (f"class Base(DriverContract): ...\n@{MARK}\nclass TestIt(Base): ...", 1),
        (f"@{MARK}\nclass TestIt(GpuContract): ...", 1),
        (f"class TestIt:\n    @{MARK}\n    def test_it(self): ...", 1),
        (f"@pytest.mark.skip\nclass TestIt:\n    @{MARK}\n    def test_it(self): ...", 0),
        ("def test_it(): ...", 0),
    ],
)
def test_marks_of_tests_that_run_count(source: str, count: int) -> None:
    assert len(set(proofs(ast.parse(source), "unit/test_it.py"))) == count


@pytest.mark.parametrize(
    ("source", "flaw"),
    [
        (f"@{MARK}\ndef helper(): ...", "is at no test"),
        (f"pytestmark = {MARK}\n", "is at no test"),
        (f"@{MARK}\nclass TestIt: ...", "is at no test"),
        (f"@{MARK}\nclass Contract(DriverContract): ...", "is at no test"),
        (f"def test_it():\n    {MARK}", "is at no test"),
        (f"@{MARK.replace('health', 'speed')}\ndef test_it(): ...", "'speed' is none of discover"),
        (f"@{MARK.replace('simulated', 'kernel')}\ndef test_it(): ...", "nothing by 'kernel'"),
        (f"@{MARK.replace('simulated', 'metal')}\ndef test_it(): ...", "nothing by 'metal'"),
        ("@pytest.mark.proves\ndef test_it(): ...", "has no arguments"),
        ('@pytest.mark.proves("fake_driver")\ndef test_it(): ...', "is not proves"),
        ("@pytest.mark.proves(NAME, 'health', by='library')\ndef test_it(): ...", "is not proves"),
    ],
)
def test_mark_that_proves_nothing_is_refused(source: str, flaw: str) -> None:
    with pytest.raises(FalseMarkError, match=flaw):
        list(proofs(ast.parse(textwrap.dedent(source)), "unit/test_it.py"))


def test_test_of_a_guest_proves_by_the_kernel_only() -> None:
    source = ast.parse(f"@{MARK}\ndef test_it(): ...")
    with pytest.raises(FalseMarkError, match="nothing by 'simulated'"):
        list(proofs(source, "kernel/test_it.py"))
