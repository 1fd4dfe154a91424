# SPDX-License-Identifier: Apache-2.0
"""What the JSON of several nouns has in common."""

from datetime import UTC, datetime
from typing import Any

from cyborg.api import microversion
from cyborg.model.operation import Operation

#: Where operations are; their links and the Location of long verbs lead there.
OPERATIONS = "operations"


def moment(time: datetime | None) -> str | None:
    """ISO 8601 with ``+00:00``; times are stored in UTC without a zone."""
    return None if time is None else f"{time.isoformat()}+00:00"


def instant(milliseconds: int) -> str:
    """The same form, to the millisecond, of a time by the database's clock."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def since(milliseconds: int | None) -> str | None:
    """The same of what may never have happened."""
    return None if milliseconds is None else instant(milliseconds)


def link(prefix: str, uuid: str, rel: str = "self") -> dict[str, str]:
    """A link to the thing of this uuid."""
    return {"href": prefix + uuid, "rel": rel}


def operation(one: Operation, prefix: str, minor: int) -> dict[str, Any]:
    """Return the JSON of an operation at microversion 2.``minor``; ``prefix`` starts its link."""
    rendered: dict[str, Any] = {
        "uuid": one.uuid,
        "verb": one.verb,
        "state": one.state.value,
        "steps": [{"name": step.name, "at": instant(step.at_ms)} for step in one.steps],
        "results": [
            {
                "host": result.host,
                "state": result.state.value,
                "result": result.result,
                "error": result.error,
            }
            for result in one.results
        ],
        "error": one.error,
        "project_id": one.project_id,
        "user_id": one.user_id,
        "request_id": one.request_id,
        "created_at": instant(one.created_ms),
        "finished_at": None if one.finished_ms is None else instant(one.finished_ms),
        "links": [link(prefix, one.uuid)],
    }
    if minor >= microversion.OPERATOR_VIEWS:
        rendered["subject"] = one.subject
    return rendered
