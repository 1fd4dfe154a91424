# SPDX-License-Identifier: Apache-2.0
"""The paths of the service on which rows of units are deleted or get other keys.

A path leads from a function above ``cyborg.db`` to the function with the statement, like
``lost_devices._expire > lost_devices.remove``. ``paths_of_code`` reads them from the code,
``recorded`` from what is executed.
"""

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import sqlalchemy as sa

import cyborg

ROOT: Final = Path(cyborg.__file__).parent
#: Class → table of the rows that a unit consists of. A driver is removed after its devices.
_TABLES: Final = {
    "AttachHandle": "attach_handles",
    "Deployable": "deployables",
    "Device": "devices",
    "Host": "hosts",
}
#: The columns that say which unit a row is.
_KEYS: Final = frozenset(
    {"handle_key", "attach_info", "deployable_id", "device_id", "device_key", "hostname", "host_id"}
)
_STATEMENT: Final = re.compile(
    rf"DELETE FROM ({'|'.join(_TABLES.values())})\b|"
    rf"UPDATE (?:attach_handles|deployables|devices) SET .*?\b({'|'.join(_KEYS)})\b=.* WHERE",
    re.DOTALL,
)
#: They execute what their callers decide.
_TRANSPARENT: Final = ("db/bulk.py", "db/transaction.py", "db/engine.py")


@dataclass
class _Function:
    """A function of the code: its name, whether it has such a statement, and whom it calls."""

    name: str
    is_database: bool
    changes: bool = False
    calls: set[str] = field(default_factory=set)


def paths_of_code() -> set[str]:
    """Return the paths that the code has."""
    functions: dict[str, _Function] = {}
    for file in sorted(ROOT.rglob("*.py")):
        place = file.relative_to(ROOT)
        if place.parts[0] in ("tests", "testing") or "migrations" in place.parts:
            continue
        if str(place) in _TRANSPARENT:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                name = f"{file.stem}.{node.name}"
                function = functions.setdefault(name, _Function(name, place.parts[0] == "db"))
                function.changes |= _changes(node)
                function.calls |= _calls(node, file.stem)
    callers: dict[str, list[_Function]] = {}
    for function in functions.values():
        for callee in function.calls - {function.name}:
            callers.setdefault(callee, []).append(function)

    def upwards(function: _Function, path: tuple[str, ...]) -> Iterator[str]:
        path = (function.name, *path)
        above = callers.get(function.name, []) if function.is_database else []
        if not above:
            yield " > ".join(path)
        for caller in above:
            yield from upwards(caller, path)

    changing = [function for function in functions.values() if function.changes]
    return {path for function in changing for path in upwards(function, ())}


def _changes(node: ast.FunctionDef) -> bool:
    """Return whether a function deletes rows of units, or changes their keys."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    literals = {
        key.value
        for part in ast.walk(node)
        if isinstance(part, ast.Dict)
        for key in part.keys
        if isinstance(key, ast.Constant)
    }
    for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
        match ast.unparse(call.func), call.args:
            case "sa.delete", [ast.Name(id=model)]:
                if model in _TABLES or (model.islower() and names & _TABLES.keys()):
                    return True
            case "bulk.remove", [_, ast.Name(id=model), *_] if model in _TABLES or model.islower():
                return True
            case "bulk.change", [_, ast.Name(id=model), *_]:
                if (model in _TABLES or model.islower()) and (not literals or literals & _KEYS):
                    return True
            case function, _ if {word.arg for word in call.keywords} & _KEYS:
                if function.startswith(tuple(f"sa.update({model})" for model in _TABLES)):
                    return True
    return False


def _calls(node: ast.FunctionDef, module: str) -> set[str]:
    """Return the functions that a function calls, as module and name."""
    names = set()
    for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
        match call.func:
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
                names.add(f"{module}.{name}")
            case ast.Attribute(value=ast.Name(id=other), attr=name):
                names.add(f"{other}.{name}")
    return names


@contextmanager
def recorded() -> Iterator[set[str]]:
    """Yield the paths on which processes of this test change rows, as long as it lasts."""
    paths: set[str] = set()

    def note(
        _connection: Any, _cursor: Any, statement: str, _values: Any, _context: Any, _many: bool
    ) -> None:
        if _STATEMENT.match(statement) and (path := _path_of_stack()):
            paths.add(path)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield paths
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def _path_of_stack() -> str:
    """Return the path of the statement that is executed now; empty: a test executes it."""
    frame: FrameType | None = sys._getframe(2)
    names: list[str] = []
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        place = file.relative_to(ROOT) if file.is_relative_to(ROOT) else None
        if place is not None and str(place) not in _TRANSPARENT:
            if place.parts[0] == "tests":
                if not names:
                    return ""
            elif not frame.f_code.co_name.startswith("<"):
                names.insert(0, f"{file.stem}.{frame.f_code.co_name}")
                if place.parts[0] != "db":
                    break
        frame = frame.f_back
    return " > ".join(names)
