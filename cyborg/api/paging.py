# SPDX-License-Identifier: Apache-2.0
"""Bound the answers to lists, and link each page to the next one.

A list that is too long for one answer is cut from microversion 2.5 on, with a link to the next page
as the API guidelines of OpenStack define it. Older clients know no such link and would take the
part for the whole, so below 2.5 a list is refused instead of being cut.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from cyborg import exception
from cyborg.api import microversion


@dataclass(frozen=True)
class Page:
    """The bound of one answer.

    ``size`` is the largest number of objects in it, None if the client set a limit that needs no
    bound. ``linked``: whether a longer list is cut and linked, or refused.
    """

    limit: int | None
    size: int | None
    linked: bool

    @property
    def fetched(self) -> int | None:
        """Return how many objects to read: one more than ``size`` tells that there are more."""
        return self.limit if self.size is None else self.size + 1

    def close(self, content: dict[str, Any], url: str, sent: Mapping[str, str]) -> None:
        """Cut the only list in ``content`` to the page, and add the link to the next page.

        ``url`` is that of the list, ``sent`` the parameters of the request. Raises Invalid with
        the field ``limit`` for a list that is too long.
        """
        ((name, rows),) = content.items()
        if self.size is None or len(rows) <= self.size:
            return
        if not self.linked:
            raise exception.Invalid(
                field="limit",
                reason=f"the list has more than {self.size} objects. Set limit to at most "
                f"{self.size}, and marker to the last object of the page before; or use "
                f"microversion 2.{microversion.OPERATOR_VIEWS}, which links each page to the next",
            )
        del rows[self.size :]
        if rows:
            marker = rows[-1].get("uuid") or rows[-1]["id"]
            query = urlencode({**sent, "marker": marker})
            content[f"{name}_links"] = [{"rel": "next", "href": f"{url}?{query}"}]


@dataclass(frozen=True)
class Paging:
    """The largest number of objects in an answer from microversion 2.5 on, and below it."""

    max_limit: int
    max_unpaged: int

    def page(self, limit: int | None, minor: int) -> Page:
        """Return the bound of the answer to a request with this limit at this minor version."""
        if minor >= microversion.OPERATOR_VIEWS:
            size = self.max_limit if limit is None else min(limit, self.max_limit)
            return Page(limit, size, linked=True)
        whole = limit is None or limit > self.max_unpaged
        return Page(limit, self.max_unpaged if whole else None, linked=False)
