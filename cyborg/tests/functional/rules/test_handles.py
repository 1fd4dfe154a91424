# SPDX-License-Identifier: Apache-2.0
"""What moves an attach handle from which state, and which states are left alone."""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db import attach_handles
from cyborg.db.models import AttachHandle, Host
from cyborg.db.transaction import Transaction
from cyborg.model.device import HandleState
from cyborg.tests.functional.races.arena import Arena
from cyborg.tests.functional.rules.conftest import PLAIN
from cyborg.tests.functional.rules.rows import handles_of, set_handle

#: What is done to one handle.
MOVES: dict[str, Callable[[Transaction, int], Any]] = {
    "hold": lambda tx, handle: attach_handles.hold(tx, [handle]),
    "let go, clean": lambda tx, handle: attach_handles.release(tx, clean=[handle], used=[]),
    "let go, used": lambda tx, handle: attach_handles.release(tx, clean=[], used=[handle]),
    "quarantine": attach_handles.quarantine,
    "end of release": attach_handles.finish_release,
}
#: Where each of them leads; from any other state nowhere.
TARGETS = {
    ("hold", "free"): "held",
    ("let go, clean", "held"): "free",
    ("let go, used", "held"): "releasing",
    ("quarantine", "releasing"): "quarantined",
    ("end of release", "releasing"): "free",
    ("end of release", "quarantined"): "free",
}


@pytest.mark.parametrize("state", list(HandleState))
@pytest.mark.parametrize("move", MOVES)
def test_handle_moves_only_from_allowed_states(arena: Arena, move: str, state: str) -> None:
    (mine, _), (other, _) = handles_of(arena.db, PLAIN)
    set_handle(arena.db, mine, state=state)
    set_handle(arena.db, other, state=state)
    with arena.db.writer() as tx:
        MOVES[move](tx, mine)
    target = TARGETS.get((move, state), state)
    assert handles_of(arena.db, PLAIN) == [(mine, target), (other, state)]


@pytest.mark.parametrize("state", list(HandleState))
def test_only_quarantined_handle_is_quarantined(arena: Arena, state: str) -> None:
    (mine, _), _ = handles_of(arena.db, PLAIN)
    set_handle(arena.db, mine, state=state)
    with arena.db.writer() as tx:
        uuid = tx.execute(sa.select(AttachHandle.uuid).where(AttachHandle.id == mine)).scalar_one()
        host = attach_handles.quarantined_on(tx, uuid)
        own = tx.execute(sa.select(Host.id).where(Host.name == PLAIN)).scalar_one()
        said = attach_handles.quarantine(tx, mine)
    assert host == (own if state == HandleState.QUARANTINED else None)
    assert said is (state == HandleState.RELEASING)
