# SPDX-License-Identifier: Apache-2.0
"""Each object in answers has one table: no code of the API repeats the names of its members.

Names of filters and of members of bodies do not count in a sequence: they have their own
declarations.
"""

import ast
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest
import wsme.types

from cyborg import api
from cyborg.api import types
from cyborg.api.answers import Answer

MODULES: Final = {
    module.name: import_module(module.name)
    for module in pkgutil.walk_packages(api.__path__, f"{api.__name__}.")
}
VALUES: Final = [value for module in MODULES.values() for value in vars(module).values()]
TABLES: Final = {
    answer.schema["title"]: frozenset(answer.schema["properties"])
    for answer in VALUES
    if isinstance(answer, Answer)
}
DECLARED: Final = {
    attribute.name
    for declared in VALUES
    if isinstance(declared, type) and issubclass(declared, types.Declared)
    for attribute in wsme.types.list_attributes(declared)
}
#: So many names of one table are a second declaration of it.
MOST: Final = 3

REPETITIONS: Final = {
    "display": "def render(row): return {'uuid': 1, 'type': 2, 'vendor': 3, 'model': 4}",
    "update": "def add(given): given |= {'backend': 1, 'address': 2, 'pools': 3, 'units': 4}",
    "call": "given = dict(total=1, used=2, free=3, out_of_service=4)",
    "assignments": "def f(d):\n d['fault'] = d['uuid'] = 1\n d['state'], d['links'] = 2, 3",
    "branches": "def f(d):\n d['pools'] = 1\n if d: d |= {'units': 2, 'numa_node': 3, 'uuid': 4}",
    "hidden": "HIDDEN = ('address', 'numa_node', 'topology', 'providers')",
    "parts": "HIDDEN = (*('address', 'numa_node'), *('topology', 'providers'))",
    "zip": "given = dict(zip(['total', 'used', 'free', 'reasons'], (1, 2, 3, 4)))",
    "class": "class Row:\n HIDDEN = {'address', 'numa_node', 'topology', 'providers'}",
}
SINGLE: Final = {
    "table": "VIEW = Answer('View', '', uuid=1, type=2, vendor=3, model=4)",
    "three": "def render(row): return {'uuid': 1, 'type': 2, 'vendor': 3}",
    "filters": "EQUAL = ('type', 'vendor', 'hostname', 'driver', 'backend', 'health')",
    "functions": "def f(d): d['uuid'] = d['type'] = 1\ndef g(d): d['vendor'] = d['model'] = 1",
    "reads": "def f(body): return body['uuid'], body['type'], body['vendor'], body['model']",
}


def blocks(tree: ast.AST) -> Iterator[list[ast.AST]]:
    """Yield the nodes of each function, and each other statement of a module or a class."""
    for statement in ast.iter_child_nodes(tree):
        if isinstance(statement, ast.ClassDef):
            yield from blocks(statement)
        else:
            yield list(ast.walk(statement))


def named(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node gives to members of an object, or lists."""
    names: list[ast.expr | None] = []
    if isinstance(node, ast.Dict):
        names = node.keys
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        names = [node.slice]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        yield from (keyword.arg for keyword in node.keywords if keyword.arg)
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        yield from (name for name in texts(node.elts) if name not in DECLARED)
    yield from texts(names)


def texts(nodes: list[ast.expr | None] | list[ast.expr]) -> Iterator[str]:
    """Yield the constant texts among some nodes."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def repetitions(source: str) -> Iterator[str]:
    """Yield the line of each block that repeats a table, and the title of the table."""
    for nodes in blocks(ast.parse(source)):
        names = {name for node in nodes for name in named(node)}
        line = getattr(nodes[0], "lineno", 0)
        for title, members in TABLES.items():
            if len(names & members) > MOST:
                yield f"line {line} repeats {title}: {', '.join(sorted(names & members))}"


@pytest.mark.parametrize("module", MODULES)
def test_members_of_an_answer_are_named_in_its_table_only(module: str) -> None:
    path = MODULES[module].__file__
    assert path
    advice = "Render the object with its cyborg.api.answers.Answer."
    assert not list(repetitions(Path(path).read_text())), advice


@pytest.mark.parametrize("source", REPETITIONS.values(), ids=REPETITIONS)
def test_each_kind_of_repetition_is_refused(source: str) -> None:
    assert list(repetitions(source))


@pytest.mark.parametrize("source", SINGLE.values(), ids=SINGLE)
def test_other_code_is_accepted(source: str) -> None:
    assert not list(repetitions(source))
