# SPDX-License-Identifier: Apache-2.0
"""An open transaction, with the clock of its database, and the request that it carries out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa

from cyborg import exception
from cyborg.db.clock import boot_seconds
from cyborg.db.rows import A
from cyborg.model.caller import Caller

#: Seconds after a check of the expiry during which COMMIT needs no further check.
_COMMIT_WITHIN = 0.5


class Transaction:
    """A transaction of one connection.

    ``now`` is the database's clock as an SQL expression, in milliseconds: each statement reads it
    again. ``seconds`` is a clock of this host that continues while the host is suspended. With
    ``outbox`` the events of this transaction are sent as notifications after the commit.
    ``caller`` and ``request_key`` are those of the request that it carries out; None when the
    service acts by itself, or does work that a request has ordered.
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

    def check_expiry(self) -> None:
        """Raise Unavailable if the request has expired since ``set_expiry``.

        A process that is suspended after that must not commit when it resumes.
        """
        if self._expiry is None:
            return
        (expires_ms, checked), began = self._expiry, self.seconds()
        if began - checked > _COMMIT_WITHIN:
            now_ms = int(self.execute(sa.select(self.now)).scalar_one())
            self.set_expiry(expires_ms, now_ms, began)
