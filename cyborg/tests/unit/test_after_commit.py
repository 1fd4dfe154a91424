# SPDX-License-Identifier: Apache-2.0
"""What follows a commit is told to the transaction: source rules, which refuse bad samples.

Only ``db/transaction.py`` raises the desired generation of a host, notifies an agent of it, and
wakes the runner. The composition root of the conductor says how a process does the last two.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).resolve().parents[2]
TRANSACTION: Final = "db/transaction.py"
ROOT: Final = "conductor/app.py"
#: The modules that wake the runner, beside those two: they store work that is due, or run it.
WAKING: Final = ("db/attachments.py", "db/work.py", "conductor/tasks/queue.py")
GENERATION: Final = "desired_generation"

BAD: Final = {
    "tx.execute(update(Host).values(desired_generation=Host.desired_generation + 1))": GENERATION,
    "tx.execute(update(Host).values({'desired_generation': 2}))": GENERATION,
    "values['desired_generation'] = Host.desired_generation + 1": GENERATION,
    "values |= {Host.desired_generation: Host.desired_generation + 1}": GENERATION,
    "agents.cast(host, DesiredChanged())": "DesiredChanged",
    "agents.cast(host, verbs.DesiredChanged())": "DesiredChanged",
    "self.wake()": "wake",
    "Repairs(db=db, wake=runner.wake)": "wake",
    "tx.wake_runner()": "wake_runner",
}
GOOD: Final = """\
tx.publish(row.host_id, row.service_host)
tx.execute(sa.update(Host).values(**tx.raise_generation(host_id)))
tx.execute(sa.insert(Host).values(desired_generation=1))
generation = host.desired_generation + changed
work.add(tx, rows)
reply = HeartbeatReply(desired_generation=host.desired_generation)
"""


def uses(tree: ast.AST) -> Iterator[str]:
    """Yield what the code of a module does that belongs to a transaction."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="values"), keywords=keywords):
                for keyword in keywords:
                    if keyword.arg == GENERATION and not isinstance(keyword.value, ast.Constant):
                        yield GENERATION
            case ast.Dict(keys=keys):
                for key in keys:
                    if _is_generation(key):
                        yield GENERATION
            case ast.Subscript(slice=key, ctx=ast.Store()) if _is_generation(key):
                yield GENERATION
            case ast.Name(id="DesiredChanged") | ast.Attribute(attr="DesiredChanged"):
                yield "DesiredChanged"
            case ast.Attribute(attr="wake" | "wake_runner" as name):
                yield name


def _is_generation(key: ast.expr | None) -> bool:
    return (isinstance(key, ast.Constant) and key.value == GENERATION) or (
        isinstance(key, ast.Attribute) and key.attr == GENERATION
    )


@pytest.mark.parametrize("sample", BAD)
def test_code_that_does_what_belongs_to_the_transaction_is_noticed(sample: str) -> None:
    assert set(uses(ast.parse(sample))) == {BAD[sample]}


def test_code_that_tells_the_transaction_is_accepted() -> None:
    assert list(uses(ast.parse(GOOD))) == []


def test_only_the_transaction_publishes_hosts_and_wakes_the_worker() -> None:
    places = {
        (str(path.relative_to(PACKAGE)), use)
        for package in ("cmd", "conductor", "db")
        for path in (PACKAGE / package).rglob("*.py")
        if "migrations" not in path.parts
        for use in uses(ast.parse(path.read_text()))
    }
    waking = {(path, use) for path, use in places if use.startswith("wake")}
    assert {path for path, _ in waking} == {TRANSACTION, ROOT, *WAKING}
    assert places - waking == {(TRANSACTION, GENERATION), (ROOT, "DesiredChanged")}
