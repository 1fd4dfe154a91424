# SPDX-License-Identifier: Apache-2.0
"""Read request bodies and query strings.

A body is JSON in UTF-8 of bounded size. A query parameter is given once, in plain form or in wsme's
form of pairs. Text that no database can hold is refused.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import webob
import webob.exc
from webob.multidict import MultiDict

from cyborg import exception
from cyborg.db.listing import Page

#: The content types that wsme accepts; very old clients send text/javascript.
_CONTENT_TYPES: Final = ("application/json", "application/javascript", "text/javascript", "")
#: Far above the size of a bind of a thousand accelerators.
_MAX_BYTES: Final = 1 << 20
# NUL is refused by PostgreSQL, a lone surrogate by every encoding.
_UNFIT: Final = re.compile("[\x00\ud800-\udfff]")


def read_body(request: webob.Request) -> Any:
    """Return the JSON value of a request's body.

    Raises Invalid for a body that is not JSON, webob's 415 for another content type and 413 for a
    body of more than a megabyte.
    """
    if (request.content_length or 0) > _MAX_BYTES:
        raise webob.exc.HTTPRequestEntityTooLarge(f"A body has at most {_MAX_BYTES} bytes.")
    if request.content_type == "application/x-www-form-urlencoded":
        raise exception.Invalid(field="body", reason="it must be JSON, not a form")
    if request.content_type not in _CONTENT_TYPES:
        raise webob.exc.HTTPUnsupportedMediaType(
            f"The body must be application/json, not {request.content_type}."
        )
    raw = request.body
    if not raw.strip():
        raise exception.Invalid(field="body", reason="it is missing")
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise exception.Invalid(field="body", reason="it is not valid JSON in UTF-8") from None
    # An explicit stack: JSON may nest deeper than Python calls can.
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            refuse_unfit_text(item, "body")
        elif isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return value


def refuse_unfit_text(text: str, field: str) -> None:
    """Raise Invalid for text that cannot be stored or compared in every database."""
    if _UNFIT.search(text):
        raise exception.Invalid(field=field, reason="it holds a NUL or a lone surrogate")


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
    """Return the parameters by name; raises Invalid for a repeated or unstorable parameter."""
    pairs = [(name, value) for name, value in given.items() if name not in (_FIELD, _VALUE)]
    fields, values = given.getall(_FIELD), given.getall(_VALUE)
    if len(fields) != len(values):
        raise exception.Invalid(field="filters", reason="each field needs one value")
    pairs += [
        (name, value) for name, value in zip(fields, values, strict=True) if name not in _IGNORED
    ]
    params: dict[str, str] = {}
    for name, value in pairs:
        refuse_unfit_text(name, "query")
        refuse_unfit_text(value, name)
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
