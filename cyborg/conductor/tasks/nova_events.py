# SPDX-License-Identifier: Apache-2.0
"""Telling Nova: one event per ARQ, after commit, outside any request, until it answers.

Nova waits for each ARQ's event; what it refuses because the instance has no host yet it will see
by itself when it reads the ARQs, so that is an answer too.
"""

import logging
from collections.abc import Sequence

from cyborg import exception
from cyborg.clients.nova import BindEvent, EventVerdict, Nova
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import arqs, work
from cyborg.db import events as history
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.model.arq import RESOLVED, State

LOG = logging.getLogger(__name__)

#: Nova's own ``[DEFAULT] arq_binding_timeout`` by default: nobody listens after that.
_NOVA_WAITS_MS = 300_000


class NovaEvents:
    """The handler of ``notify`` work: the rows of one instance at a time."""

    def __init__(self, *, db: Database, queue: WorkQueue, nova: Nova) -> None:
        self._db = db
        self._queue = queue
        self._nova = nova

    def notify(self, rows: Sequence[Record]) -> None:
        """Send the states that stand now; raises Unavailable to be called again later.

        ARQs that are gone need no event. A row for which Nova has stopped waiting is given up, and
        that stands in the ARQ's history; the other rows of the instance are kept.
        """
        with self._db.reader() as tx:
            states = arqs.states(tx, [row.arq_uuid for row in rows])
        events = [
            BindEvent(
                row.instance_uuid, row.arq_uuid, succeeded=states[row.arq_uuid] == State.BOUND
            )
            for row in rows
            if states.get(row.arq_uuid) in RESOLVED
        ]
        try:
            verdicts = self._nova.send_events(events) if events else []
        except exception.Unavailable as error:
            if expired := [row for row in rows if row.age_ms >= _NOVA_WAITS_MS]:
                instance = rows[0].instance_uuid
                LOG.error("Gave up telling Nova about instance %s: %s", instance, error)
                uuids = {row.arq_uuid for row in expired}
                given_up = [_given_up(one, error) for one in events if one.arq_uuid in uuids]
                self._finish(expired, given_up)
            if len(expired) < len(rows):
                raise
            return
        for event, verdict in zip(events, verdicts, strict=True):
            level = logging.WARNING if verdict is EventVerdict.REFUSED else logging.DEBUG
            LOG.log(level, "Nova on ARQ %s: %s", event.arq_uuid, verdict.value)
        self._finish(rows)

    @retried
    def _finish(self, rows: Sequence[Record], entries: Sequence[history.Entry] = ()) -> None:
        # Repeated by itself, lest a deadlock here has Nova told twice.
        with self._queue.complete(rows) as tx:
            history.record(tx, self._db.now, entries, ordered_by=work.origin(rows[0]))


def _given_up(event: BindEvent, error: Exception) -> history.Entry:
    return history.Entry(
        "arq",
        event.arq_uuid,
        "nova not told",
        instance_uuid=event.instance_uuid,
        reason=str(error),
    )
