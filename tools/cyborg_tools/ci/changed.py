# SPDX-License-Identifier: Apache-2.0
"""The test files of what has changed: changed tests, and tests that import what has changed."""

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

#: Where tests are.
_TESTS: Final = ("cyborg/tests", "tools/tests")
#: pytest leaves these out.
_GUESTS: Final = "cyborg/tests/kernel"
_IMPORT: Final = re.compile(
    r"^\s*(?:from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]*)|import\s+([\w.]+))", re.MULTILINE
)


def tests_of(root: Path, paths: Iterable[str]) -> list[str]:
    """Return the test files that changed, or import a changed module themselves, sorted."""
    changed = {path for path in paths if path.endswith(".py")}
    modules = {_module(path) for path in changed}
    found = []
    for place in _TESTS:
        for file in sorted((root / place).rglob("test_*.py")):
            name = file.relative_to(root).as_posix()
            if not name.startswith(_GUESTS) and (
                name in changed or modules & imported(file.read_text())
            ):
                found.append(name)
    return found


def imported(text: str) -> set[str]:
    """Return the modules that a text of Python imports, and the names that could be modules."""
    found = set()
    for module, names, plain in _IMPORT.findall(text):
        found.add(plain or module)
        found |= {f"{module}.{name}" for name in re.findall(r"\w+", names)} if module else set()
    return found


def _module(path: str) -> str:
    parts = PurePosixPath(path.removeprefix("tools/").removeprefix("client/")).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
