# SPDX-License-Identifier: Apache-2.0
"""pytest -p executed: count the modules of the service that run while a function of a test runs.

CYBORG_WATCHED names these functions, "file.py:function ...". A module counts when any thread calls
a function of it meanwhile; calls of one watched function are taken together.
"""

import collections
import inspect
import os
import sys
import threading
from pathlib import Path

PACKAGE = str(Path(__file__).resolve().parent.parent / "cyborg") + os.sep
DEVELOPERS = tuple(PACKAGE + name + os.sep for name in ("testing", "tests"))
WATCHED = os.environ["CYBORG_WATCHED"].split()
_modules: dict[str, set[str]] = collections.defaultdict(set)
_running: list[str] = []


def _event(frame, event, _arg):
    """Notice the beginning and the end of a watched function, and what is called in between."""
    code = frame.f_code
    if event not in ("call", "return") or not code.co_filename.startswith(PACKAGE):
        return
    if code.co_filename.startswith(DEVELOPERS):
        name = f"{os.path.basename(code.co_filename)}:{code.co_name}"
        if name in WATCHED and event == "call":
            _running.append(name)
        elif name in WATCHED:
            _running.remove(name)
    # The body of a module or class, which is run by an import, is not optimised.
    elif event == "call" and code.co_flags & inspect.CO_OPTIMIZED:
        for name in _running:
            _modules[name].add(code.co_filename)


def pytest_terminal_summary(terminalreporter):
    """Print the numbers."""
    sys.setprofile(None)
    for name in WATCHED:
        terminalreporter.write_line(f"executed {name} {len(_modules[name]) or '?'}")


threading.setprofile(_event)
sys.setprofile(_event)
