# SPDX-License-Identifier: Apache-2.0
"""The agent has one way to call a driver: a source rule, which refuses bad samples.

Each verb of a driver is called in a function that ``call_driver`` of the worker carries out, and
only the worker starts threads. So a driver that hangs holds up nothing but its own call.
"""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cyborg.drivers.base import Driver

PACKAGE: Final = Path(__file__).resolve().parents[3]
#: It starts threads. The thread of the other one waits for kernel events, and calls no driver.
WORKER: Final = "drivers/worker.py"
LISTENER: Final = "agent/device_events.py"
#: What a driver does, and how the agent gets the calls of its clean steps.
VERBS: Final = {
    name for name, _ in inspect.getmembers(Driver, inspect.isfunction) if not name.startswith("_")
} | {"clean_calls"}
#: The ways to have a function called in ``call_driver``; the others say more about the call.
CALLS: Final = {"call_driver", "_call_driver", "_call_in_order"}
THREADS: Final = {"Thread", "ThreadPoolExecutor", "in_thread"}

BAD: Final = {
    "devices = driver.discover(scan)": "discover",
    "self.driver.prepare(task)": "prepare",
    "run(lambda: driver.signals(scan, key))": "signals",
    "steps = clean_calls(driver, task)": "clean_calls",
    "threading.Thread(target=poll).start()": "Thread",
    "with ThreadPoolExecutor() as pool: pool.submit(poll)": "ThreadPoolExecutor",
}
GOOD: Final = """\
worker.call_driver(name, "discover", lambda: driver.discover(scan))
self._call_driver(task, "release", lambda: driver.release(task, progress=progress))
worker.call_driver(name, "clean_steps", lambda: clean_calls(driver, task))
tasks.prepare(task)
hardware = driver.hardware
"""


def misuses(node: ast.AST) -> Iterator[str]:
    """Yield what the code calls outside the worker."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) if name in CALLS:
            return
        case (
            ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id=owner)))
            | ast.Call(func=ast.Attribute(attr=name, value=ast.Attribute(attr=owner)))
        ) if name in VERBS and owner.endswith("driver"):
            yield name
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in {*THREADS, "clean_calls"}:
            yield name
    for child in ast.iter_child_nodes(node):
        yield from misuses(child)


@pytest.mark.parametrize("sample", BAD)
def test_another_way_to_call_a_driver_is_noticed(sample: str) -> None:
    assert set(misuses(ast.parse(sample))) == {BAD[sample]}


def test_calls_of_the_worker_are_accepted() -> None:
    assert list(misuses(ast.parse(GOOD))) == []


def test_the_agent_calls_drivers_in_one_way() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.glob("agent/*.py")
        for name in misuses(ast.parse(path.read_text()))
    }
    assert found == {(LISTENER, "Thread")}


def test_only_the_worker_starts_threads_of_drivers() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.glob("drivers/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
        and (node.attr if isinstance(node, ast.Attribute) else node.id) in THREADS
    }
    assert found == {WORKER}
