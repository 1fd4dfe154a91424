# SPDX-License-Identifier: Apache-2.0
"""The end of a bind that was started: Bound or BindFailed, and Nova told of it."""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from cyborg.conductor import releasing
from cyborg.db import arq_moves, attaching, events, work
from cyborg.db.bulk import Record
from cyborg.model.arq import MOVES, Event, State
from cyborg.model.work import WorkKind


def resolve(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    rows: Sequence[Record],
    event: Event,
    *,
    fault: str | None = None,
    operation: str | None = None,
    ordered_by: Mapping[str, str] | None = None,
) -> bool:
    """Let a bind FINISH or FAIL inside the caller's transaction; ``rows`` are locked ARQs.

    Those that are not being bound any more are left as they are; False when that is all of them.
    A failed one lets go of its handle, and ``fault`` says why it failed. One that an attach is
    preparing is bound by that, in its own time, and no Nova waits for it. ``ordered_by`` are the
    ids of the request that began the bind.
    """
    attached = {one.instance_uuid for one in rows if one.hidden}
    attaching.wake(tx, now, attached)
    if event is Event.FINISH:
        rows = [one for one in rows if not one.hidden]
    started = [one for one in rows if one.state == State.BIND_STARTED]
    if not started:
        return False
    arq_moves.move(tx, event, [one.id for one in started], fault=fault)
    if event is Event.FAIL:
        releasing.free_handles(tx, now, started, operation=operation)
        arq_moves.drop_handle(tx, [one.id for one in started])
    told = [
        {
            "kind": WorkKind.NOTIFY,
            "instance_uuid": one.instance_uuid,
            "arq_uuid": one.uuid,
            "operation_id": operation,
        }
        for one in started
        if one.instance_uuid is not None and not one.hidden
    ]
    work.add(tx, now, told)
    entries = [
        events.Entry(
            "arq",
            one.uuid,
            MOVES[event].target.value,
            instance_uuid=one.instance_uuid,
            hostname=one.hostname,
            reason=fault,
            device_uuid=one.device_uuid,
        )
        for one in started
    ]
    events.record(tx, now, entries, operation=operation, ordered_by=ordered_by)
    return True
