# SPDX-License-Identifier: Apache-2.0
"""Which functional tests, and tests of tools, the gate takes: what has changed, and a fifth.

The long job ``functional`` takes all of them.
"""

from pathlib import Path, PurePosixPath
from typing import Final

from cyborg_tools.ci import changed
from cyborg_tools.ci.history import History
from cyborg_tools.ci.late import is_strict

#: So many successive commits take all files.
SHARES: Final = 5
_FUNCTIONAL: Final = "cyborg/tests/functional"
_TOOLS: Final = "tools/tests"


def left_out(root: Path, history: History, passed: str | None) -> list[str]:
    """Return the files of such tests that the gate leaves out, sorted.

    ``passed`` is the commit at which all of them passed; without one nothing is left out. What is
    about crashes, races and time is not left out, nor is a file that changed since, that imports
    what did, or that shares a directory with helpers that did. A change of a tool concerns all
    tests of tools: they start what they test.
    """
    paths = history.changed_since(passed) if passed else None
    if paths is None:
        return []
    needed = set(changed.tests_of(root, paths))
    helped = {
        str(PurePosixPath(path).parent)
        for path in paths
        if path.startswith(f"{_FUNCTIONAL}/") and not PurePosixPath(path).match("test_*.py")
    }
    if any(path.startswith("tools/") for path in paths):
        helped.add(_TOOLS)
    files = sorted(
        file.relative_to(root).as_posix()
        for pattern in (f"{_FUNCTIONAL}/**/test_*.py", f"{_TOOLS}/test_*.py")
        for file in root.glob(pattern)
    )
    shares = enumerate(name for name in files if not is_strict(name))
    return [
        name
        for place, name in shares
        if (place + history.number()) % SHARES
        and name not in needed
        and not helped & set(map(str, PurePosixPath(name).parents))
    ]
