# SPDX-License-Identifier: Apache-2.0
"""How a long verb begins: checked, stored and handed to workers in one transaction, and once.

What a verb does on each of its hosts, or to an instance, is a work row, so that whatever conductor
lives carries it on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from cyborg import exception
from cyborg.db import events, hosts, operations, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.model.caller import Caller
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.work import WorkKind

#: How long a host may take for its part before that counts as failed. What was asked to wait for
#: agents that are down has no end.
_WITHIN_MS = 60 * 60 * 1000


@dataclass(frozen=True)
class Order:
    """A long verb as it was asked for; ``wait``: hosts whose agent is down may come later."""

    caller: Caller
    operation: str
    verb: str
    wait: bool = False


@dataclass(frozen=True)
class Place:
    """A host by the name that results carry; ``id`` is None where no compute is meant."""

    name: str
    id: int | None = None


@dataclass(frozen=True)
class Task:
    """What a verb does on one host: the kind of work, and what its handler needs to know."""

    host: Record | Place
    kind: WorkKind
    spec: Mapping[str, Any] = field(default_factory=dict)
    #: It may take as long as it takes.
    patient: bool = False
    #: The instance to which the work is done, rather than to the host.
    instance: str | None = None
    #: What the operation is about besides the host: driver, device and so on.
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """A part of a verb for which nothing is left to do, and its result."""

    host: Place
    result: Mapping[str, Any]
    about: Mapping[str, str] = field(default_factory=dict)


#: Checks what was asked for and changes what begins with it; answers what is left to do.
Plan = Callable[[sa.Connection], Sequence[Task | Done]]


class Operations:
    """Begins operations.

    ``wake`` is called when work waits after a commit; ``down_after`` is how long an agent may be
    silent, in milliseconds, before it is down.
    """

    def __init__(self, *, db: Database, wake: Callable[[], None], down_after: int) -> None:
        self._db = db
        self._wake = wake
        self._down_after = down_after

    def begin(self, order: Order, plan: Plan) -> Operation:
        """Begin an operation, unless its id has begun one already: answers that as it is now.

        Raises Conflict when the id is another verb's or another project's, and whatever ``plan``
        raises; then nothing has changed.
        """
        try:
            begun = self._begin(order, plan)
        except exception.Conflict:
            # The same request may have come in twice at the same moment.
            with self._db.reader() as tx:
                done = known(tx, order.caller, order.operation, order.verb)
            if done is None:
                raise
            return done
        self._wake()
        return begun

    @retried
    def _begin(self, order: Order, plan: Plan) -> Operation:
        with self._db.writer() as tx:
            done = known(tx, order.caller, order.operation, order.verb)
            if done is not None:
                return done
            parts = plan(tx)
            operations.begin(
                tx,
                self._db.now,
                order.caller,
                uuid=order.operation,
                verb=order.verb,
                hosts=[one.host.name for one in parts],
                subject=_subject(parts),
            )
            work.add(tx, self._db.now, [_row(order, one) for one in parts if isinstance(one, Task)])
            for one in parts:
                if isinstance(one, Done):
                    told = HostResult(one.host.name, ResultState.SUCCEEDED, dict(one.result))
                    operations.end(tx, self._db.now, order.operation, told)
            entry = events.Entry("operation", order.operation, order.verb)
            events.record(tx, self._db.now, [entry], caller=order.caller, operation=order.operation)
            begun = operations.show(tx, order.operation)
        assert begun is not None
        return begun

    def hosts(self, tx: sa.Connection, names: Sequence[str] | None, *, wait: bool) -> list[Record]:
        """The hosts that are meant by these names; None means all whose agent is up.

        Raises NotFound for a name that no agent ever had, Unavailable naming those whose agent is
        down (unless they may come later), and Conflict when there is none at all.
        """
        found = list(hosts.with_agents(tx, self._db.now, self._down_after, names))
        if names is None:
            chosen = [one for one in found if one.up or wait]
            if not chosen:
                raise exception.Conflict(reason="There is no host whose agent is up.")
            return chosen
        called = {one.name for one in found} | {one.service_host for one in found}
        for name in names:
            if name not in called:
                raise exception.NotFound(noun="Host", key=name)
        self.insist(found, wait=wait)
        return found

    def known(self, tx: sa.Connection) -> list[Record]:
        """All hosts that ever had an agent."""
        return list(hosts.with_agents(tx, self._db.now, self._down_after))

    def insist(self, found: Sequence[Record], *, wait: bool) -> None:
        """Raise Unavailable naming the hosts whose agent is down, unless they may come later."""
        down = [one.name for one in found if not one.up]
        if down and not wait:
            raise exception.Unavailable(
                peer=f"The agent of {', '.join(down)}",
                reason="it is down; nothing was changed. Repeat it when the agent is back, or ask "
                "with wait=true (--no-wait on the command line) to have it done then.",
            )


def _subject(parts: Sequence[Task | Done]) -> dict[str, Any]:
    """What an operation is about: driver, device and so on, and its hosts."""
    about = {key: value for part in parts for key, value in part.about.items()}
    names = sorted({part.host.name for part in parts} - {""})
    return {**about, "hosts": names} if names else about


def _row(order: Order, task: Task) -> dict[str, Any]:
    return {
        "kind": task.kind,
        "host_id": task.host.id,
        "instance_uuid": task.instance,
        "spec": {**task.spec, "host": task.host.name},
        "operation_id": order.operation,
        "deadline_in": None if order.wait or task.patient else _WITHIN_MS,
    }


def known(tx: sa.Connection, caller: Caller, operation: str, verb: str) -> Operation | None:
    """The operation that this id has begun before; raises OperationTaken when it is another."""
    begun = operations.show(tx, operation)
    if begun is None:
        return None
    foreign = not caller.everywhere and begun.project_id != caller.project_id
    if foreign or begun.verb != verb:
        raise exception.OperationTaken(uuid=operation)
    return begun
