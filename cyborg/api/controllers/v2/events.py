# SPDX-License-Identifier: Apache-2.0
"""Events: the changes of devices, hosts, instances and accelerator requests, with their callers.

The rows are append-only. They are deleted after ``[conductor] history_retention``.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import wsme

from cyborg import context
from cyborg.api import answers, microversion, parsing, references, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.rendering import instant
from cyborg.db import events
from cyborg.model.notification import state_after
from cyborg.model.scope import Scope


class EventQuery(types.Listing):
    """Filters of the list, all of which must match; markers are numbers."""

    device = wsme.wsattr(references.DEVICE)
    host = wsme.wsattr(types.Text(255, minimum=1))
    instance = wsme.wsattr(references.INSTANCE)
    arq = wsme.wsattr(references.ARQ)
    request_id = wsme.wsattr(types.Text(64, minimum=1))
    since = wsme.wsattr(types.Moment())
    marker = wsme.wsattr(types.Integer(types.MAX_BIG_INT))


EVENT_VIEW = answers.Answer(
    "EventView",
    "A change of a device, host, instance or accelerator request.",
    id=answers.Shown(types.Integer(types.MAX_BIG_INT)),
    at=answers.Shown(answers.TIME),
    noun=answers.Shown(answers.STRING),
    subject_uuid=answers.Shown(answers.TEXT_OR_NULL),
    action=answers.Shown(answers.STRING),
    state=answers.Shown(answers.TEXT_OR_NULL),
    reason=answers.Shown(answers.TEXT_OR_NULL),
    device_uuid=answers.Shown(answers.UUID_OR_NULL),
    host=answers.Shown(answers.TEXT_OR_NULL),
    instance_uuid=answers.Shown(answers.UUID_OR_NULL),
    request_id=answers.Shown(answers.TEXT_OR_NULL),
    global_request_id=answers.Shown(answers.TEXT_OR_NULL),
    operation_uuid=answers.Shown(answers.UUID_OR_NULL),
    project_id=answers.Shown(answers.TEXT_OR_NULL),
    user_id=answers.Shown(answers.TEXT_OR_NULL),
)


class Events(Controller):
    """``/v2/events``."""

    collection = "events"
    routes: ClassVar[Routes] = {"": {"GET": "index"}}

    @expose(
        "cyborg:event:get_all",
        query=EventQuery,
        since=microversion.OPERATOR_VIEWS,
        answer=answers.listing("events", EVENT_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of events, the newest first unless ``sort_dir`` is ``asc``."""
        call.check_places(query, "host")
        page = parsing.page({"sort_dir": "desc", **query})
        with self.reader.reader() as tx:
            rows = events.page(tx, page, call.scope, query)
        return {self.collection: [render(row, call.scope) for row in rows]}


def render(row: events.VisibleEvent, scope: Scope) -> dict[str, Any]:
    """Return the JSON of an event as a caller with this scope may see it."""
    detail = row.detail or {}
    origin = events.origin(row.request_id, detail) if row.request_id else {}
    return {
        "id": row.id,
        "at": instant(row.at_ms),
        "noun": row.noun,
        "subject_uuid": row.subject_uuid,
        "action": row.action,
        "state": state_after(row.noun, row.action, detail.get("state")),
        "reason": scope.said(row.reason, [row.hostname]),
        "device_uuid": row.device_uuid,
        "host": scope.host(row.hostname),
        "instance_uuid": row.instance_uuid,
        "request_id": row.request_id,
        "global_request_id": origin.get(context.GLOBAL_ID),
        "operation_uuid": row.operation_id,
        "project_id": row.project_id,
        "user_id": row.user_id,
    }
