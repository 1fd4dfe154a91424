# SPDX-License-Identifier: Apache-2.0
"""Waiting for what an agent does in the background, by the door that its conductor uses."""

from collections.abc import Iterable
from uuid import uuid4

from cyborg.agent.operations import Operations
from cyborg.model.work import HandleTask


def let_end(operations: Operations, devices: Iterable[tuple[str, str]]) -> None:
    """Return when all that was begun on these devices (driver, key) before has ended.

    What is asked for comes too late by its order, so that the hardware never hears of it; but it
    is refused only when it is its turn.
    """
    for driver, key in devices:
        late = HandleTask(str(uuid4()), driver, key, "", "", "", order=-1)
        assert operations.prepare(late).fault is not None
