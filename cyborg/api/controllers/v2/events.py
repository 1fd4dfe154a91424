# SPDX-License-Identifier: Apache-2.0
"""Events: the changes of devices, hosts, instances and accelerator requests, with their callers.

The rows are append-only. They are deleted after ``[conductor] history_retention``.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import wsme

from cyborg import context, exception
from cyborg.api import answers, microversion, parsing, types
from cyborg.api.answers import Answer, Member, Source
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.paging import Followed
from cyborg.api.watching import Wait
from cyborg.db import events
from cyborg.model.notification import state_after
from cyborg.model.position import LONGEST_TEXT, Position

#: The longest time that a request waits for events, in seconds: shorter than the limits of proxies.
LONGEST_WAIT: Final = 60
#: Seconds after which a client asks again when its request could not wait.
_PAUSE: Final = 5


class EventQuery(types.Listing):
    """Filters of the list, all of which must match; markers are numbers."""

    device = wsme.wsattr(types.UUID_TYPE)
    host = wsme.wsattr(types.Text(255, minimum=1))
    instance = wsme.wsattr(types.UUID_TYPE)
    arq = wsme.wsattr(types.UUID_TYPE)
    request_id = wsme.wsattr(types.Text(64, minimum=1))
    since = wsme.wsattr(types.Moment())
    marker = wsme.wsattr(types.Integer(types.MAX_BIG_INT))
    wait = wsme.wsattr(types.Integer(LONGEST_WAIT))
    seen = wsme.wsattr(types.Text(LONGEST_TEXT))


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
    def index(
        self, call: Call, query: Mapping[str, Any]
    ) -> Sequence[events.VisibleEvent] | Followed:
        """Return a page of events, the newest first unless ``sort_dir`` is ``asc``.

        With ``wait``, return the events after a position, and wait for them if there are none.
        """
        call.check_places(query, "host")
        if "wait" in query:
            return self._follow(call, query)
        if "seen" in query:
            raise exception.Invalid(field="seen", reason="it goes with wait and marker only")
        page = parsing.page({"sort_dir": "desc", **query})
        with self.reader.reader() as tx:
            return events.page(tx, page, call.scope, query)

    def _follow(self, call: Call, query: Mapping[str, Any]) -> Followed:
        given = _position(query)
        # One more was asked for, to know whether there is a next page.
        limit = query["limit"] - 1
        if limit < 1:
            raise exception.Invalid(field="limit", reason="with wait it must be at least 1")
        rows: Sequence[events.VisibleEvent] = ()
        mark = self.settings.watch.mark()
        with self.reader.reader() as tx:
            if given is None and "since" not in query:
                # At once: without a position, a client that loses the answer would miss events.
                position = events.newest(tx, call.scope, query)
            else:
                given = given or events.oldest(tx, query["since"])
                rows, position = events.follow(tx, given, call.scope, query, limit=limit)
        pause = None
        if given is not None and not rows:
            pause = self._wait(call, query, mark)
        place: Mapping[str, str | int | None] = {"marker": position.after, "seen": position.text}
        return Followed(rows, place, pause)

    def _wait(self, call: Call, query: Mapping[str, Any], mark: int) -> int | None:
        """Let the request wait; return the seconds until its client asks again if it cannot."""
        watch = self.settings.watch
        if not query["wait"]:
            return None
        if call.hold is None or watch.is_full:
            return _PAUSE
        call.hold(Wait(query["wait"], partial(watch.begin, mark, query)))
        return None


def _position(query: Mapping[str, Any]) -> Position | None:
    """Return the position of a client that follows; None if it has none. Raises Invalid."""
    for name, value in (("sort_key", "id"), ("sort_dir", "asc")):
        if query.get(name, value) != value:
            raise exception.Invalid(field=name, reason=f"with wait it can only be {value}")
    if "marker" not in query:
        if "seen" in query:
            raise exception.Invalid(field="seen", reason="it goes with wait and marker only")
        return None
    try:
        return Position.parse(query["marker"], query.get("seen", ""))
    except ValueError as error:
        raise exception.Invalid(field="seen", reason=str(error)) from None


def _global_id(row: events.VisibleEvent) -> str | None:
    origin = events.origin(row.request_id, row.detail or {}) if row.request_id else {}
    return origin.get(context.GLOBAL_ID)
