# SPDX-License-Identifier: Apache-2.0
"""Notify Nova of the ends of binds: one event per ARQ, after the commit, until Nova answers.

Nova waits for the event of each ARQ. When Nova refuses an event because the instance has no host
yet, the event needs no repetition: Nova reads the state when it reads the ARQs.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from cyborg import exception
from cyborg.clients.nova import BindEvent, EventVerdict
from cyborg.conductor.context import Conductor
from cyborg.conductor.tasks import queue
from cyborg.conductor.tasks.queue import Handler
from cyborg.db import arqs, work
from cyborg.db import events as history
from cyborg.db.engine import retried
from cyborg.db.work import ClaimedWork
from cyborg.model.arq import RESOLVED, State
from cyborg.model.work import WorkKind

LOG = logging.getLogger(__name__)

#: Default of Nova's ``[DEFAULT] arq_binding_timeout``: Nova ignores events that come later.
_NOVA_WAITS_MS = 300_000


def notify(ctx: Conductor, rows: Sequence[ClaimedWork]) -> None:
    """Send the current states of the ARQs; raises Unavailable to be called again later.

    Deleted ARQs need no event. A row for which Nova has stopped waiting is given up, and the
    history of the ARQ says so; the other rows of the instance are kept.
    """
    with ctx.db.reader() as tx:
        states = arqs.states(tx, [row.arq_uuid for row in rows if row.arq_uuid])
    events = [
        BindEvent(row.instance_uuid, row.arq_uuid, succeeded=states[row.arq_uuid] == State.BOUND)
        for row in rows
        if row.arq_uuid and row.instance_uuid and states.get(row.arq_uuid) in RESOLVED
    ]
    try:
        verdicts = ctx.nova.send_events(events) if events else []
    except exception.Unavailable as error:
        if expired := [row for row in rows if row.age_ms >= _NOVA_WAITS_MS]:
            uuids = {row.arq_uuid for row in expired}
            LOG.error(
                "Nova was not notified of ARQ(s) %s of instance %s, and no longer waits: %s",
                *(", ".join(sorted(map(str, uuids))), rows[0].instance_uuid, error),
            )
            entries = [
                history.Entry(
                    "arq",
                    event.arq_uuid,
                    "nova not told",
                    instance_uuid=event.instance_uuid,
                    reason=str(error),
                )
                for event in events
                if event.arq_uuid in uuids
            ]
            _finish(ctx, expired, entries)
        if len(expired) < len(rows):
            raise
        return
    for event, verdict in zip(events, verdicts, strict=True):
        LOG.log(
            logging.WARNING if verdict is EventVerdict.REFUSED else logging.DEBUG,
            "Event of ARQ %s for instance %s sent to Nova: %s",
            *(event.arq_uuid, event.instance_uuid, verdict.value),
        )
    _finish(ctx, rows)


@retried
def _finish(
    ctx: Conductor, rows: Sequence[ClaimedWork], entries: Sequence[history.Entry] = ()
) -> None:
    # This has its own retry: after a deadlock here, Nova does not get the events again.
    with queue.complete(ctx, rows) as tx:
        history.record_for(tx, entries, ordered_by=work.origin(rows[0]))


#: The handler of ``notify`` work; each call gets the rows of one instance.
WORK: Final[Mapping[WorkKind, Handler]] = {WorkKind.NOTIFY: notify}
