# SPDX-License-Identifier: Apache-2.0
"""Read request bodies and query strings.

A body is JSON in UTF-8 of bounded size. A query parameter is given once, in plain form or in wsme's
form of pairs. Text that no database can hold, or that a terminal would obey, is refused.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

import webob
import webob.exc
from webob.multidict import MultiDict

from cyborg import exception
from cyborg.db.listing import Page
from cyborg.model.text import refuse_control_characters

#: The content types that wsme accepts; very old clients send text/javascript.
_CONTENT_TYPES: Final = ("application/json", "application/javascript", "text/javascript", "")
#: The limit of a body's size: far above the size of a bind of a thousand accelerators.
MAX_BYTES: Final = 1 << 20
#: The number of characters of a place in an error message.
_MAX_PLACE: Final = 200


def read_body(request: webob.Request) -> Any:
    """Return the JSON value of a request's body.

    Raises Invalid for a body that is incomplete or not JSON, webob's 415 for another content type
    and 413 for a body of more than a megabyte.
    """
    if (request.content_length or 0) > MAX_BYTES:
        raise webob.exc.HTTPRequestEntityTooLarge(f"A body has at most {MAX_BYTES} bytes.")
    if request.content_type == "application/x-www-form-urlencoded":
        raise exception.Invalid(field="body", reason="it must be JSON, not a form")
    if request.content_type not in _CONTENT_TYPES:
        raise webob.exc.HTTPUnsupportedMediaType(
            f"The body must be application/json, not {request.content_type}."
        )
    try:
        raw = request.body
    except OSError:
        raise exception.Invalid(field="body", reason="it ended before its length") from None
    if not raw.strip():
        raise exception.Invalid(field="body", reason="it is missing")
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise exception.Invalid(field="body", reason="it is not valid JSON in UTF-8") from None
    # An explicit stack: JSON may nest deeper than Python calls can. It has one iterator for each
    # level, and ``steps`` says where each of them is; the first level is the body itself.
    steps: list[str | int] = [0]
    levels: list[Iterator[tuple[str | int, Any]]] = [enumerate([value])]
    while levels:
        for steps[-1], item in levels[-1]:
            if isinstance(steps[-1], str):
                _refuse_control_characters(steps[-1], steps, is_name=True)
            if isinstance(item, str):
                _refuse_control_characters(item, steps)
            elif isinstance(item, dict | list):
                levels.append(iter(item.items() if isinstance(item, dict) else enumerate(item)))
                steps.append(0)
                break
        else:
            levels.pop()
            steps.pop()
    return value


def _refuse_control_characters(text: str, steps: list[str | int], *, is_name: bool = False) -> None:
    """Raise Invalid, which names the place to which the steps lead; a name is not shown itself."""
    try:
        refuse_control_characters(text, "body", line=is_name)
    except exception.Invalid as error:
        shown = steps[1:-1] if is_name else steps[1:]
        parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in shown)
        place = "".join(parts).removeprefix(".")[:_MAX_PLACE]
        raise exception.Invalid(field=place or "body", reason=error.fields["reason"]) from None


def _refuse_constant(word: str) -> NoReturn:
    # Python accepts NaN and Infinity, which are not JSON.
    raise ValueError(word)


# The form ``filters.field=limit&filters.value=5``, pair by pair.
_FIELD: Final = "filters.field"
_VALUE: Final = "filters.value"
#: Fields of that form that have no effect; clients may still send them.
_IGNORED: Final = frozenset(
    {"parent_uuid", "root_uuid", "board", "availability", "interface_type", "instance_uuid"}
)


def read_query(given: MultiDict) -> dict[str, str]:
    """Return the parameters by name; raises Invalid for a repeated or unfit parameter."""
    pairs = [(name, value) for name, value in given.items() if name not in (_FIELD, _VALUE)]
    fields, values = given.getall(_FIELD), given.getall(_VALUE)
    if len(fields) != len(values):
        raise exception.Invalid(field="filters", reason="each field needs one value")
    pairs += [
        (name, value) for name, value in zip(fields, values, strict=True) if name not in _IGNORED
    ]
    params: dict[str, str] = {}
    for name, value in pairs:
        refuse_control_characters(name, "query", line=True)
        refuse_control_characters(value, name, line=True)
        if name in params:
            raise exception.Invalid(field=name, reason="it is given more than once")
        params[name] = value
    return params


def page(query: Mapping[str, Any]) -> Page:
    """Return the page that a checked query selects; ``cyborg.db`` checks key and direction."""
    return Page(
        limit=query.get("limit"),
        marker=query.get("marker"),
        sort_key=query.get("sort_key"),
        sort_dir=query.get("sort_dir"),
    )
