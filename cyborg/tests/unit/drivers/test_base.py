# SPDX-License-Identifier: Apache-2.0
"""The interface of drivers has nothing that the agent and its commands do not use."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from cyborg.drivers import base

_PACKAGE = Path(base.__file__).parents[1]
#: The method that puts clean steps in order calls drivers for the agent.
_FILES = [
    *sorted((_PACKAGE / "agent").glob("*.py")),
    _PACKAGE / "drivers" / "base.py",
    _PACKAGE / "cmd" / "functions.py",
]
_METHODS = [
    name
    for name, member in vars(base.Driver).items()
    if callable(member) and not name.startswith("_")
]


def _used() -> Iterator[str]:
    """Yield the names of the attributes of drivers that these files use."""
    for file in _FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("driver"):
                yield node.attr


def test_the_interface_has_methods() -> None:
    assert {"discover", "prepare", "release", "clean_steps", "reset"} <= set(_METHODS)


@pytest.mark.parametrize("method", _METHODS)
def test_the_agent_calls_each_method_of_drivers(method: str) -> None:
    assert method in set(_used()), f"nothing in the agent calls {method}() of a driver"
