# SPDX-License-Identifier: Apache-2.0
"""Pages of lists that no single table holds, with the words and rules of those that one does."""

from collections.abc import Collection, Sequence
from typing import Any

from cyborg import exception
from cyborg.db.listing import Page


def cut(
    rows: Sequence[dict[str, Any]], page: Page, sort_keys: Collection[str]
) -> list[dict[str, Any]]:
    """The page of these rows, each with a ``uuid``; without a sort key they stay in their order.

    Rows without a value come last when ascending and first when descending. Raises Invalid naming
    ``sort_key``, ``sort_dir`` or ``marker``.
    """
    if page.sort_key is not None and page.sort_key not in sort_keys:
        known = ", ".join(sorted(sort_keys))
        raise exception.Invalid(field="sort_key", reason=f"{page.sort_key!r} is none of {known}")
    if page.sort_dir not in (None, "asc", "desc"):
        raise exception.Invalid(field="sort_dir", reason="it is asc or desc")
    ordered = list(rows)
    if page.sort_key is not None:
        key = page.sort_key
        ordered.sort(key=lambda one: (one.get(key) is None, str(one.get(key))))
    if page.sort_dir == "desc":
        ordered.reverse()
    begin = 0
    if page.marker is not None:
        places = [index for index, one in enumerate(ordered) if one["uuid"] == page.marker]
        if not places:
            raise exception.Invalid(field="marker", reason=f"there is no {page.marker}")
        begin = places[0] + 1
    return ordered[begin:] if page.limit is None else ordered[begin : begin + page.limit]
