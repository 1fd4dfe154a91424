# SPDX-License-Identifier: Apache-2.0
"""Tests have seven environments: no other class makes conductors, agents or APIs."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import cyborg

ROOT: Final = Path(cyborg.__file__).parents[1]
#: Each environment with its modules. Any other class works with what one of them has made.
ENVIRONMENTS: Final = {
    "no process": {"cyborg/tests/fixtures/use_cases.py", "cyborg/tests/unit/agent/fake_peers.py"},
    "single step": {"cyborg/tests/fixtures/single_step.py"},
    "one process": {
        "cyborg/tests/fixtures/compute_host.py",
        "cyborg/tests/fixtures/stack.py",
    },
    "real processes": {"cyborg/tests/fixtures/processes.py"},
    "real Keystone": {"cyborg/tests/functional/keystone/cloud.py"},
    "real Nova": {"cyborg/tests/functional/nova/cloud.py"},
    "real kernel": {"cyborg/tests/kernel/deployment.py"},
}
#: What makes or starts a part of the service, or an environment.
MAKERS: Final = frozenset(
    [
        *("assemble", "make_runner", "make_parts", "app.build", "app.core"),
        *("AgentLoop", "ConductorLease", "Heartbeats", "context"),
        *("Deployment", "Environment", "Stack", "UseCases"),
        *("make_api", "make_open_api", "start_agent", "start_conductor"),
        # The roles of the single step and of real processes.
        *("environment.agent", "environment.api", "environment.conductor"),
        *("deployment.agent", "deployment.api", "deployment.conductor"),
    ]
)


def _made(node: ast.ClassDef) -> Iterator[str]:
    """Yield what a class calls or extends, by name; a method also as ``owner.method``."""
    yield from (base.id for base in node.bases if isinstance(base, ast.Name))
    for call in ast.walk(node):
        match call:
            case ast.Call(func=ast.Name(id=name)):
                yield name
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name)
            ):
                yield from (name, f"{owner.removeprefix('api_').removeprefix('_')}.{name}")
            case ast.Call(func=ast.Attribute(attr=name)):
                yield name


def test_no_other_class_makes_parts_of_the_service() -> None:
    known = set.union(*ENVIRONMENTS.values())
    sources = [path for place in ("cyborg/tests", "tools") for path in (ROOT / place).rglob("*.py")]
    others = {
        f"{path.relative_to(ROOT)}:{node.name}"
        for path in sources
        if str(path.relative_to(ROOT)) not in known
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and MAKERS.intersection(_made(node))
    }
    assert others == set()


def test_there_are_seven_environments() -> None:
    assert len(ENVIRONMENTS) == 7
    assert all((ROOT / module).exists() for modules in ENVIRONMENTS.values() for module in modules)
