# SPDX-License-Identifier: Apache-2.0
"""The mutants of tools/mutants, and its lists; whether tests notice mutants, the command tells."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cyborg_tools.mutants.mutations import Mutant, mutants
from cyborg_tools.mutants.session import change_functions, functions_of
from cyborg_tools.mutants.subjects import EQUIVALENT, SUBJECTS, SURVIVORS, stale

ROOT = Path(__file__).parents[2]
SOURCE = '''
import logging

LOG = logging.getLogger(__name__)


class Cards:
    def __init__(self, limit: int = 2) -> None:
        """Take at most so many."""
        self.taken = 0
        self.limit = limit

    def take(self, amount: int, *, force: bool = False) -> bool:
        if not force and self.taken + amount > self.limit:
            LOG.info("%d is too many", amount + 1)
            return False
        self.taken += amount
        return True
'''


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "cards.py"
    path.write_text(SOURCE)
    made = ModuleType("cards")
    made.__file__ = str(path)
    exec(compile(SOURCE, str(path), "exec"), made.__dict__)
    return made


def made(module: ModuleType) -> dict[str, Mutant]:
    path = Path(str(module.__file__))
    return {mutant.name.partition("::")[2]: mutant for mutant in mutants(path, path.parent)}


def test_each_expression_and_statement_gives_a_mutant(module: ModuleType) -> None:
    take = {
        name.removeprefix("Cards.take::"): mutant.text.partition("  →  ")[2]
        for name, mutant in made(module).items()
        if name.startswith("Cards.take")
    }
    assert take == {
        "and-or::not force and self.taken + amount > self.limit": "not force or self.taken + amount"
        " > self.limit",
        "not::not force": "force",
        "comparison::self.taken + amount > self.limit": "self.taken + amount >= self.limit",
        "operator::self.taken + amount": "self.taken - amount",
        "boolean::False": "True",
        "statement::self.taken += amount": "pass",
        "return::return True": "return None",
        "boolean::True": "False",
    }


@pytest.mark.parametrize(
    ("name", "taken", "answers"),
    [
        (None, 2, [True, True, False]),
        ("comparison::self.taken + amount > self.limit", 1, [True, False, False]),
        ("statement::self.taken += amount", 0, [True, True, True]),
        ("boolean::True", 2, [False, False, False]),
    ],
)
def test_mutant_changes_the_functions_that_exist(
    module: ModuleType, name: str | None, taken: int, answers: list[bool]
) -> None:
    cards: Any = module.__dict__["Cards"](2)
    if name is not None:
        functions = functions_of([str(module.__file__)])
        change_functions(functions, made(module)[f"Cards.take::{name}"].code())
    assert [cards.take(1) for _ in range(3)] == answers
    assert cards.taken == taken


def test_subjects_name_files_and_tests_that_exist() -> None:
    for subject in SUBJECTS.values():
        assert all((ROOT / name).is_file() for name in subject.files)
        assert all((ROOT / name).exists() for name in subject.tests)


def test_explained_mutants_exist_and_are_explained_once() -> None:
    assert not EQUIVALENT.keys() & SURVIVORS.keys()
    for subject in SUBJECTS.values():
        found = [mutant for file in subject.files for mutant in mutants(ROOT / file, ROOT)]
        assert stale(subject, found) == []
