# SPDX-License-Identifier: Apache-2.0
"""Query strings: each parameter once, in plain or in wsme's form of pairs; and the page wanted."""

from collections.abc import Mapping
from typing import Any, Final

from webob.multidict import MultiDict

from cyborg import exception
from cyborg.api import bodies
from cyborg.db.listing import Page

# The form ``filters.field=limit&filters.value=5``, pair by pair.
_FIELD: Final = "filters.field"
_VALUE: Final = "filters.value"
#: Fields of that form that never had an effect; clients may still send them.
_IDLE: Final = frozenset(
    {"parent_uuid", "root_uuid", "board", "availability", "interface_type", "instance_uuid"}
)


def read(given: MultiDict) -> dict[str, str]:
    """The parameters by name; raises Invalid for one that is given twice or cannot be stored."""
    pairs = [(name, value) for name, value in given.items() if name not in (_FIELD, _VALUE)]
    fields, values = given.getall(_FIELD), given.getall(_VALUE)
    if len(fields) != len(values):
        raise exception.Invalid(field="filters", reason="each field needs one value")
    pairs += [
        (name, value) for name, value in zip(fields, values, strict=True) if name not in _IDLE
    ]
    found: dict[str, str] = {}
    for name, value in pairs:
        bodies.refuse_unfit_text(name, "query")
        bodies.refuse_unfit_text(value, name)
        if name in found:
            raise exception.Invalid(field=name, reason="it is given more than once")
        found[name] = value
    return found


def page(asked: Mapping[str, Any]) -> Page:
    """The page that checked parameters ask for; its words are judged where the columns are."""
    return Page(
        limit=asked.get("limit"),
        marker=asked.get("marker"),
        sort_key=asked.get("sort_key"),
        sort_dir=asked.get("sort_dir"),
    )
