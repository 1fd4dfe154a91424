# SPDX-License-Identifier: Apache-2.0
"""Request bodies: JSON in UTF-8, of bounded size, without text that no database can hold."""

import json
import re
from typing import Any, Final, NoReturn

import webob
import webob.exc

from cyborg import exception

#: As wsme takes them; text/javascript is what very old clients send.
_CONTENT_TYPES: Final = ("application/json", "application/javascript", "text/javascript", "")
#: Far above a bind of a thousand accelerators.
_MAX_BYTES: Final = 1 << 20
# NUL is refused by PostgreSQL, a lone surrogate by every encoding.
_UNFIT: Final = re.compile("[\x00\ud800-\udfff]")


def read(request: webob.Request) -> Any:
    """The JSON value that the request carries.

    Raises Invalid for what is no JSON, webob's 415 for another content type and 413 for a body of
    more than a megabyte.
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
    _refuse_unfit(value)
    return value


def refuse_unfit_text(text: str, field: str) -> None:
    """Raise Invalid for text that cannot be stored or compared in every database."""
    if _UNFIT.search(text):
        raise exception.Invalid(field=field, reason="it holds a NUL or a lone surrogate")


def _refuse_unfit(value: Any) -> None:
    # A stack of our own: JSON may nest deeper than Python calls do.
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            refuse_unfit_text(one, "body")
        elif isinstance(one, dict):
            waiting.extend(one)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _refuse_constant(word: str) -> NoReturn:
    # Python reads NaN and Infinity, which JSON does not have.
    raise ValueError(word)
