# SPDX-License-Identifier: Apache-2.0
"""Render the common parts of answers: links, pages, times and operations."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import webob

from cyborg import exception
from cyborg.api import answers, microversion, types
from cyborg.db.listing import Page
from cyborg.model.operation import Operation, OperationState, ResultState
from cyborg.model.scope import Scope

VERSION_SEGMENT = "v2"


STEP_VIEW = answers.Answer(
    "StepView",
    "A step that an operation has reached.",
    name=answers.Shown(answers.STRING),
    at=answers.Shown(answers.TIME),
)


RESULT_VIEW = answers.Answer(
    "ResultView",
    "The result of an operation on one host.",
    host=answers.Shown(answers.STRING),
    state=answers.Shown(types.Word(*ResultState)),
    result=answers.Shown(answers.Nullable(answers.OBJECT)),
    error=answers.Shown(answers.TEXT_OR_NULL),
)


OPERATION_VIEW = answers.Answer(
    "OperationView",
    "An operation: the progress and the results of a long verb.",
    uuid=answers.Shown(types.UUID_TYPE),
    verb=answers.Shown(answers.STRING),
    state=answers.Shown(types.Word(*OperationState)),
    steps=answers.Shown(types.Items(STEP_VIEW)),
    results=answers.Shown(types.Items(RESULT_VIEW)),
    error=answers.Shown(answers.TEXT_OR_NULL),
    project_id=answers.Shown(answers.TEXT_OR_NULL),
    user_id=answers.Shown(answers.TEXT_OR_NULL),
    request_id=answers.Shown(answers.TEXT_OR_NULL),
    created_at=answers.Shown(answers.TIME),
    finished_at=answers.Shown(answers.TIME_OR_NULL),
    links=answers.Shown(answers.LINKS),
    subject=answers.Shown(answers.Nullable(answers.OBJECT), since=microversion.OPERATOR_VIEWS),
)


@dataclass(frozen=True)
class Links:
    """The links of one answer; ``base`` is the URL of the service's root, without a last slash."""

    base: str

    @classmethod
    def of(cls, request: webob.Request, public_endpoint: str | None) -> "Links":
        """Return the links for a request.

        Without a ``public_endpoint`` they follow the URL of the request, to which the headers of
        proxies are already applied. A ``public_endpoint`` without a path names the server; the
        mount point of the request (``/accelerator``) is appended. A ``public_endpoint`` with a path
        is used as it is, without a version at its end.
        """
        if not public_endpoint:
            return cls(request.application_url.rstrip("/"))
        base = _base(public_endpoint)
        if path_of(public_endpoint):
            return cls(base)
        return cls(base + request.script_name.rstrip("/"))

    @property
    def v2(self) -> str:
        """Return the URL of the v2 API."""
        return f"{self.base}/{VERSION_SEGMENT}"

    def self_of(self, collection: str) -> str:
        """Return the part of a self link before the uuid."""
        return f"{self.v2}/{collection}/"


def path_of(public_endpoint: str | None) -> str:
    """Return the path of a public endpoint, for example ``/accelerator``, or an empty string."""
    return urlsplit(_base(public_endpoint or "")).path


def _base(public_endpoint: str) -> str:
    return public_endpoint.rstrip("/").removesuffix(f"/{VERSION_SEGMENT}")


def cut(
    rows: Sequence[dict[str, Any]], page: Page, sort_keys: Collection[str]
) -> list[dict[str, Any]]:
    """Return one page of rows, each of which has a ``uuid``.

    Without a sort key the rows keep their order. Rows without a value come last in ascending order
    and first in descending order. Raises Invalid for ``sort_key``, ``sort_dir`` or ``marker``.
    """
    if page.sort_key is not None and page.sort_key not in sort_keys:
        names = ", ".join(sorted(sort_keys))
        raise exception.Invalid(field="sort_key", reason=f"{page.sort_key!r} is none of {names}")
    if page.sort_dir not in (None, "asc", "desc"):
        raise exception.Invalid(field="sort_dir", reason="it is asc or desc")
    ordered = list(rows)
    if page.sort_key is not None:
        key = page.sort_key
        ordered.sort(key=lambda row: (row.get(key) is None, str(row.get(key))))
    if page.sort_dir == "desc":
        ordered.reverse()
    begin = 0
    if page.marker is not None:
        places = [index for index, row in enumerate(ordered) if row["uuid"] == page.marker]
        if not places:
            raise exception.Invalid(field="marker", reason=f"there is no {page.marker}")
        begin = places[0] + 1
    return ordered[begin:] if page.limit is None else ordered[begin : begin + page.limit]


#: The collection of operations, for their links and for the Location of long verbs.
OPERATIONS = "operations"


def moment(time: datetime | None) -> str | None:
    """Return a stored time, which is UTC without a zone, in ISO 8601 with ``+00:00``."""
    return None if time is None else f"{time.isoformat()}+00:00"


def instant(milliseconds: int) -> str:
    """Return milliseconds since 1970 by the database's clock in ISO 8601 with ``+00:00``."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def since(milliseconds: int | None) -> str | None:
    """Return milliseconds since 1970 as ``instant`` does, and None for None."""
    return None if milliseconds is None else instant(milliseconds)


def link(prefix: str, uuid: str, rel: str = "self") -> dict[str, str]:
    """Return a link to the object with this uuid."""
    return {"href": prefix + uuid, "rel": rel}


def operation(operation: Operation, prefix: str, minor: int, scope: Scope) -> dict[str, Any]:
    """Return the JSON of an operation at microversion 2.``minor``; ``prefix`` starts its link."""
    hosts = [result.host for result in operation.results]
    rendered: dict[str, Any] = {
        "uuid": operation.uuid,
        "verb": operation.verb,
        "state": operation.state.value,
        "steps": [{"name": step.name, "at": instant(step.at_ms)} for step in operation.steps],
        "results": [
            {
                "host": scope.host(result.host),
                "state": result.state.value,
                "result": scope.said(result.result, hosts),
                "error": scope.said(result.error, hosts),
            }
            for result in operation.results
        ],
        "error": scope.said(operation.error, hosts),
        "project_id": operation.project_id,
        "user_id": operation.user_id,
        "request_id": operation.request_id,
        "created_at": instant(operation.created_ms),
        "finished_at": None if operation.finished_ms is None else instant(operation.finished_ms),
        "links": [link(prefix, operation.uuid)],
    }
    if minor >= microversion.OPERATOR_VIEWS:
        rendered["subject"] = scope.said(operation.subject, hosts)
    return rendered
