# SPDX-License-Identifier: Apache-2.0
"""Events: the changes of devices, hosts, instances and accelerator requests, with their callers.

The rows are append-only. They are deleted after ``[conductor] history_retention``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import wsme

from cyborg import context
from cyborg.api import answers, microversion, parsing, types
from cyborg.api.answers import Answer, Member, Source
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.db import events
from cyborg.model.notification import state_after


class EventQuery(types.Listing):
    """Filters of the list, all of which must match; markers are numbers."""

    device = wsme.wsattr(types.UUID_TYPE)
    host = wsme.wsattr(types.Text(255, minimum=1))
    instance = wsme.wsattr(types.UUID_TYPE)
    arq = wsme.wsattr(types.UUID_TYPE)
    request_id = wsme.wsattr(types.Text(64, minimum=1))
    since = wsme.wsattr(types.Moment())
    marker = wsme.wsattr(types.Integer(types.MAX_BIG_INT))


EVENT_VIEW = Answer[events.VisibleEvent](
    "EventView",
    "A change of a device, host, instance or accelerator request.",
    Source(hosts=lambda row: [row.hostname]),
    id=Member(types.Integer(types.MAX_BIG_INT)),
    at=Member(answers.TIME, lambda row: row.at_ms),
    noun=Member(answers.STRING),
    subject_uuid=Member(answers.TEXT_OR_NULL),
    action=Member(answers.STRING),
    state=Member(
        answers.TEXT_OR_NULL,
        lambda row: state_after(row.noun, row.action, (row.detail or {}).get("state")),
    ),
    reason=Member(answers.SAID_OR_NULL),
    device_uuid=Member(answers.UUID_OR_NULL),
    host=Member(answers.HOST_OR_NULL, lambda row: row.hostname),
    instance_uuid=Member(answers.UUID_OR_NULL),
    request_id=Member(answers.TEXT_OR_NULL),
    global_request_id=Member(answers.TEXT_OR_NULL, lambda row: _global_id(row)),
    operation_uuid=Member(answers.UUID_OR_NULL, lambda row: row.operation_id),
    project_id=Member(answers.TEXT_OR_NULL),
    user_id=Member(answers.TEXT_OR_NULL),
)


class Events(Controller):
    """``/v2/events``."""

    collection = "events"
    routes: ClassVar[Routes] = {"": {"GET": "index"}}

    @expose(
        "cyborg:event:get_all",
        query=EventQuery,
        since=microversion.EXTENDED,
        answer=answers.listing("events", EVENT_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> Sequence[events.VisibleEvent]:
        """Return a page of events, the newest first unless ``sort_dir`` is ``asc``."""
        call.check_places(query, "host")
        page = parsing.page({"sort_dir": "desc", **query})
        with self.reader.reader() as tx:
            return events.page(tx, page, call.scope, query)


def _global_id(row: events.VisibleEvent) -> str | None:
    origin = events.origin(row.request_id, row.detail or {}) if row.request_id else {}
    return origin.get(context.GLOBAL_ID)
