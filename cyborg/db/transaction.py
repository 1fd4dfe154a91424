# SPDX-License-Identifier: Apache-2.0
"""An open transaction: the clock of its database, its request, and what follows its commit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import sqlalchemy as sa

from cyborg import exception
from cyborg.db.clock import boot_seconds
from cyborg.db.models import Host
from cyborg.db.rows import A
from cyborg.model.caller import Caller

#: Seconds after a check of the expiry during which COMMIT needs no further check.
_COMMIT_WITHIN = 0.5
#: Seconds after its first event within which a transaction is committed, or not at all. Those who
#: follow the history rely on it (``events.follow``). Transactions take milliseconds.
EVENTS_WITHIN: Final = 30.0


@dataclass(frozen=True)
class AfterCommit:
    """What a process does after a commit; neither function waits, and neither raises.

    ``notify_agent`` has an agent (``[DEFAULT] host``) send a heartbeat at once, whose reply tells
    the generation of its desired state. ``wake_runner`` has the work runner look for due work. Both
    only save time: the next heartbeat of the agent, and the next pass of the runner, do the same.
    """

    notify_agent: Callable[[str], None]
    wake_runner: Callable[[], None]


class Transaction:
    """A transaction of one connection.

    ``now`` is the database's clock as an SQL expression, in milliseconds: each statement reads it
    again. ``seconds`` is a clock of this host that continues while the host is suspended. With
    ``outbox`` the events of this transaction are sent as notifications after the commit.
    ``caller`` and ``request_key`` are those of the request that it carries out; None when the
    service acts by itself, or does work that a request has ordered. ``after_commit`` is None in a
    process that has neither a runner nor a connection to agents.
    """

    def __init__(
        self,
        connection: sa.Connection,
        now: sa.ColumnElement[int],
        *,
        outbox: bool = False,
        seconds: Callable[[], float] = boot_seconds,
        caller: Caller | None = None,
        request_key: str | None = None,
        after_commit: AfterCommit | None = None,
    ) -> None:
        self.connection = connection
        self.dialect = connection.dialect
        self.execute = connection.execute
        self.exec_driver_sql = connection.exec_driver_sql
        self.scalar = connection.scalar
        self.scalars = connection.scalars
        self.now = now
        self.outbox = outbox
        self.seconds = seconds
        self.caller = caller
        self.request_key = request_key
        #: When the request expires, in ms of ``now``, and when that was checked, in seconds.
        self._expiry: tuple[int, float] | None = None
        #: What ``read_clock`` returns.
        self._clock: tuple[int, float] | None = None
        #: When the first event was written, in seconds.
        self._events_began: float | None = None
        self._after_commit = after_commit
        #: The hosts whose desired generation this transaction has raised, by id.
        self._raised: set[int] = set()
        self._agents: set[str] = set()
        self._has_work = False
        self._following: list[Callable[[], object]] = []

    @property
    def now_ms(self) -> int:
        """Return the database's clock in milliseconds, which this transaction reads once."""
        return self.read_clock()[0]

    def read_clock(self) -> tuple[int, float]:
        """Return ``now_ms``, and ``seconds`` just before it was read."""
        if self._clock is None:
            began = self.seconds()
            self._clock = int(self.execute(sa.select(self.now)).scalar_one()), began
        return self._clock

    def publish(self, host_id: int, agent: str | None = None) -> None:
        """Raise the desired generation of a host, because its desired state changes.

        This locks the row of the host until the commit, so call it where the lock belongs in the
        order of locks. The agent is notified after the commit. ``agent`` is its name if the caller
        has read it; otherwise one statement reads it. A second call for a host does nothing.
        """
        values = self.raise_generation(host_id)
        if not values:
            return
        host = Host.id == host_id
        self.execute(sa.update(Host).where(host).values(**values, updated_ms=self.now))
        if agent is None and self._after_commit is not None:
            agent = self.scalar(sa.select(Host.service_host).where(host))
        if agent is not None:
            self.notify_agent(agent)

    def raise_generation(self, host_id: int) -> dict[str, sa.ColumnElement[int]]:
        """Return the values with which an UPDATE of a host raises its desired generation.

        They are empty if this transaction has raised it. For changes whose generation the answer to
        the agent's own request tells; all others call ``publish``.
        """
        if host_id in self._raised:
            return {}
        self._raised.add(host_id)
        return {"desired_generation": Host.desired_generation + 1}

    def notify_agent(self, agent: str) -> None:
        """Have an agent send a heartbeat, and try again what it could not do, after the commit."""
        self._agents.add(agent)

    def wake_runner(self) -> None:
        """Have the runner look for work after the commit, because this transaction has some due."""
        self._has_work = True

    def then(self, function: Callable[..., object], *args: object) -> None:
        """Call a function after the commit, such as one that logs or counts what has changed."""
        self._following.append(partial(function, *args))

    def follow_up(self) -> None:
        """Do what follows the commit; ``Database.writer`` calls it when the connection is free."""
        for function in self._following:
            function()
        if self._after_commit is None:
            return
        if self._has_work:
            self._after_commit.wake_runner()
        for agent in sorted(self._agents):
            self._after_commit.notify_agent(agent)

    def all(self, query: sa.Select[A], parameters: Mapping[str, Any] | None = None) -> Sequence[A]:
        """Return all rows of a query of ``rows``."""
        return cast("Sequence[A]", self.execute(query, parameters).all())

    def first(self, query: sa.Select[A], parameters: Mapping[str, Any] | None = None) -> A | None:
        """Return the first row of a query of ``rows``; None when there is none."""
        return cast("A | None", self.execute(query, parameters).first())

    def one(self, query: sa.Select[A], parameters: Mapping[str, Any] | None = None) -> A:
        """Return the row of a query of ``rows`` that finds exactly one."""
        return cast("A", self.execute(query, parameters).one())

    def set_expiry(self, expires_ms: int, now_ms: int, checked: float) -> None:
        """Set the time from which on this transaction must not be committed.

        ``now_ms`` is the database's clock, which was read later than at ``checked`` by ``seconds``.
        Raises Unavailable if the time has come.
        """
        if now_ms >= expires_ms:
            raise exception.Unavailable(
                peer="The conductor",
                reason="the request expired before it was processed; nothing was changed",
            )
        self._expiry = expires_ms, checked

    def begin_events(self) -> None:
        """Note the time of the first event, just before it is written."""
        if self._events_began is None:
            self._events_began = self.seconds()

    def check_expiry(self) -> None:
        """Raise Unavailable if it is too late to commit, and the caller has to begin again.

        That is the case if the request has expired since ``set_expiry``, or if the first event was
        written too long ago. A process that is suspended after that must not commit when it
        resumes.
        """
        began = self.seconds()
        if self._events_began is not None and began - self._events_began > EVENTS_WITHIN:
            raise exception.Unavailable(
                peer="The conductor",
                reason=f"the transaction took longer than {EVENTS_WITHIN:g} seconds; nothing was "
                "changed",
            )
        if self._expiry is None:
            return
        expires_ms, checked = self._expiry
        if began - checked > _COMMIT_WITHIN:
            now_ms = int(self.execute(sa.select(self.now)).scalar_one())
            self.set_expiry(expires_ms, now_ms, began)
