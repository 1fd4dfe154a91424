# SPDX-License-Identifier: Apache-2.0
"""The page of the statements of a bind shows what the use cases send to the database."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.sql import visitors

import cyborg
from cyborg.db.engine import Database
from cyborg.model.work import WorkKind
from cyborg.tests import committed
from cyborg.tests.fixtures.host_reports import provider_of, report_of
from cyborg.tests.fixtures.use_cases import UseCases

HOST: Final = "compute"
ROOT: Final = Path(cyborg.__file__).parents[1]
PAGE: Final = ROOT / "doc/source/contributor/statements.rst"
HOW: Final = committed.advice("The page lacks statements.", "unit/conductor/test_statements.py")
#: Modules between a use case and the connection: they send what others have built.
_PASS_ON: Final = {"cyborg/db/transaction.py", "cyborg/db/engine.py", "cyborg/db/rows.py"}
_ROW: Final = "   * - {}\n     - {}\n     - {}\n     - {}"


def _place() -> str:
    """The function of the service that sends the statement."""
    frame = sys._getframe()
    while frame := frame.f_back or frame:
        file = frame.f_code.co_filename
        name = file.removeprefix(f"{ROOT}/")
        own = name.startswith("cyborg/") and not name.startswith("cyborg/tests/")
        if own and name not in _PASS_ON:
            return f"``{name.removeprefix('cyborg/')}``, ``{frame.f_code.co_name}``"
    raise AssertionError("nobody sent it")


def _tables(statement: Any) -> list[str]:
    return sorted({one.name for one in visitors.iterate(statement) if isinstance(one, sa.Table)})


def _described(statement: Any) -> tuple[str, str]:
    """What a statement does, and on which tables."""
    written = getattr(statement, "table", None)
    if written is not None:
        others = [name for name in _tables(statement) if name != written.name]
        reads = f", reads {', '.join(others)}" if others else ""
        return type(statement).__name__.upper(), f"{written.name}{reads}"
    lock = getattr(statement, "_for_update_arg", None)
    if lock is None:
        return "SELECT", ", ".join(_tables(statement)) or "(the clock)"
    skip = " SKIP LOCKED" if lock.skip_locked else ""
    locked = [name for one in lock.of or statement.get_final_froms() for name in _tables(one)]
    others = [name for name in _tables(statement) if name not in locked]
    reads = f", reads {', '.join(others)}" if others else ""
    return f"SELECT … FOR UPDATE{skip}", f"{', '.join(locked)}{reads}"


@contextmanager
def _recorded(db: Database) -> Iterator[list[tuple[str, str, str]]]:
    """Note each statement: what it does, its tables, and which function sends it."""
    noted: list[tuple[str, str, str]] = []

    def note(_connection: Any, statement: Any, *_more: Any) -> None:
        if not isinstance(statement, sa.TextClause):
            noted.append((*_described(statement), _place()))

    sa.event.listen(db.engine, "before_execute", note)
    try:
        yield noted
    finally:
        sa.event.remove(db.engine, "before_execute", note)


def test_page_shows_the_statements_of_a_bind(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # The checks of the environment send statements of their own.
    monkeypatch.setattr(UseCases, "_published", nullcontext)
    site = UseCases(db)
    site.lease.renew()
    site.report(HOST, report_of(HOST, 1, handles=2, prepare=True))
    profile, instance = site.profile_of(1), str(uuid4())
    made: list[str] = []
    steps: dict[str, Callable[[], object]] = {
        "create": lambda: made.extend(site.create(profile)),
        "bind": lambda: site.bind(made, provider_of(HOST, 0), instance),
        "prepare": lambda: site.do(rows=claimed),
        "delete": lambda: site.delete_of(instance),
        "release": lambda: site.do(rows=claimed),
    }
    for name, step in steps.items():
        claimed = site.claim(WorkKind(name)) if name in set(WorkKind) else []
        with _recorded(db) as noted:
            step()
        rows = [_ROW.format(number, *one) for number, one in enumerate(noted, 1)]
        begin = rf"\.\. recorded: {name}\n\n\.\. list-table::\n.*?\n\n"
        shown = committed.Part(PAGE, begin, r"(?:\n\n\S|\n\Z)").is_shown("\n".join(rows))
        assert shown, f"{name}: {HOW}"
