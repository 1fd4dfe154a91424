# SPDX-License-Identifier: Apache-2.0
"""Use cases are functions of a context: few classes of the conductor take collaborators."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import cyborg.conductor
from cyborg.conductor.app import WORK
from cyborg.conductor.context import UseCase
from cyborg.conductor.endpoint import MODULES
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg.rpc.command import commands
from cyborg.rpc.verbs import ToConductor
from cyborg.tests.fixtures.contexts import settings

#: What talks to a database, another service, the bus or a library, or holds what does.
COLLABORATORS: Final = frozenset(
    [
        "AgentClient",
        "Allocations",
        "Auditor",
        "Bus",
        "CollectorRegistry",
        "Conductor",
        "ConductorLease",
        "Database",
        "Nova",
        "Notifier",
        "Placement",
        "Precedence",
        "ProjectLimits",
        "Publisher",
        "Reader",
        "Servers",
        "WorkRunner",
    ]
)


def _names(annotation: ast.expr) -> Iterator[str]:
    """Yield the types in an annotation, without those that a function gets."""
    match annotation:
        case ast.Name(id=name):
            yield name
        case ast.Subscript(value=ast.Name(id="Callable"), slice=ast.Tuple(elts=[_, answer])):
            yield from _names(answer)
        case _:
            for child in ast.iter_child_nodes(annotation):
                if isinstance(child, ast.expr):
                    yield from _names(child)


def _takes(node: ast.ClassDef) -> set[str]:
    """Return the collaborators among the fields of a class and the arguments of its constructor."""
    annotations = []
    for part in node.body:
        if isinstance(part, ast.AnnAssign):
            annotations.append(part.annotation)
        elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
            given = [*part.args.args, *part.args.kwonlyargs]
            annotations += [each.annotation for each in given if each.annotation is not None]
    return {name for each in annotations for name in _names(each)} & COLLABORATORS


def test_at_most_eight_classes_of_the_conductor_take_collaborators() -> None:
    sources = Path(cyborg.conductor.__file__).parent.rglob("*.py")
    classes = {
        node.name
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and _takes(node)
    }
    assert "Conductor" in classes
    assert len(classes) <= 8, sorted(classes)


def test_each_command_has_one_use_case_and_each_kind_of_work_a_handler() -> None:
    cases = [case for module in MODULES for case in vars(module).values()]
    handled = sorted(case.command.verb for case in cases if isinstance(case, UseCase))
    assert handled == sorted(commands(ToConductor))
    assert WORK.keys() == set(WorkKind)


def test_api_is_down_after_its_own_heartbeats_whatever_the_interval_of_agents() -> None:
    down_after = settings(heartbeat_interval=1.0, lease=3.0).down_after
    assert down_after == {AGENT: 3000, API: 30_000, CONDUCTOR: 3000}
