# SPDX-License-Identifier: Apache-2.0
"""Events: the changes of devices, hosts, instances and accelerator requests, with their callers.

The rows are append-only. They are deleted after ``[conductor] history_retention``.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import wsme

from cyborg import context
from cyborg.api import microversion, parsing, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.rendering import instant
from cyborg.db import events
from cyborg.model.notification import state_after

#: The size of a page, by default and at most: the history of a large cloud has millions of rows.
DEFAULT_LIMIT = 100
MAXIMUM_LIMIT = 1000


class EventQuery(types.Declared):
    """Filters of the list, all of which must match, and the page."""

    device = wsme.wsattr(types.UUID_TYPE)
    host = wsme.wsattr(types.Text(255, minimum=1))
    instance = wsme.wsattr(types.UUID_TYPE)
    arq = wsme.wsattr(types.UUID_TYPE)
    request_id = wsme.wsattr(types.Text(64, minimum=1))
    since = wsme.wsattr(types.Moment())
    limit = wsme.wsattr(types.Integer(MAXIMUM_LIMIT))
    marker = wsme.wsattr(types.Integer(types.MAX_BIG_INT))
    sort_key = wsme.wsattr(types.NAME)
    sort_dir = wsme.wsattr(types.NAME)


class Events(Controller):
    """``/v2/events``."""

    collection = "events"
    routes: ClassVar[Routes] = {"": {"GET": "index"}}

    @expose("cyborg:event:get_all", query=EventQuery, since=microversion.OPERATOR_VIEWS)
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of events, the newest first unless ``sort_dir`` is ``asc``."""
        page = parsing.page({"limit": DEFAULT_LIMIT, "sort_dir": "desc", **query})
        with self.reader.reader() as tx:
            rows = events.page(tx, page, query)
        return {self.collection: [render(row) for row in rows]}


def render(row: events.VisibleEvent) -> dict[str, Any]:
    """Return the JSON of an event."""
    detail = row.detail or {}
    origin = events.origin(row.request_id, detail) if row.request_id else {}
    return {
        "id": row.id,
        "at": instant(row.at_ms),
        "noun": row.noun,
        "subject_uuid": row.subject_uuid,
        "action": row.action,
        "state": state_after(row.noun, row.action, detail.get("state")),
        "reason": row.reason,
        "device_uuid": row.device_uuid,
        "host": row.hostname,
        "instance_uuid": row.instance_uuid,
        "request_id": row.request_id,
        "global_request_id": origin.get(context.GLOBAL_ID),
        "operation_uuid": row.operation_id,
        "project_id": row.project_id,
        "user_id": row.user_id,
    }
