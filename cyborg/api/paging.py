# SPDX-License-Identifier: Apache-2.0
"""Bound the answers to lists, and link each page to the next one.

A list that is too long for one answer is cut from microversion 2.100 on, with a link to the next
page as the API guidelines of OpenStack define it. Older clients know no such link and would take
the part for the whole, so below 2.100 a list is refused instead of being cut.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from cyborg import exception
from cyborg.api import microversion
from cyborg.api.answers import NEXT_LINK
from cyborg.api.viewer import Viewer
from cyborg.conf.api import ApiOptions


@dataclass(frozen=True)
class Bound:
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

    def close(
        self, content: dict[str, Any], viewer: Viewer, url: str, sent: Mapping[str, str]
    ) -> None:
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
                f"microversion 2.{microversion.EXTENDED}, which links each page to the next",
            )
        del rows[self.size :]
        if rows:
            marker = rows[-1].get("uuid") or rows[-1]["id"]
            query = urlencode({**sent, "marker": marker})
            content[f"{name}_links"] = [NEXT_LINK.render(f"{url}?{query}", viewer)]


@dataclass(frozen=True)
class Followed:
    """The part of a list that a client follows, whose answer always has a link to continue.

    ``place`` are the parameters of that link which differ from those of the request; one that is
    None or empty is left out. ``pause``: seconds that the client should wait before its next
    request, None if the service waits instead.
    """

    rows: Sequence[Any]
    place: Mapping[str, str | int | None]
    pause: int | None = None

    def link(self, content: dict[str, Any], viewer: Viewer, url: str) -> None:
        """Add the link to the only list in ``content``; ``url`` is that of the list."""
        ((name, _),) = content.items()
        query = urlencode(
            {key: value for key, value in self.place.items() if value not in (None, "")}
        )
        content[f"{name}_links"] = [NEXT_LINK.render(f"{url}?{query}", viewer)]


def bound_of(options: ApiOptions, limit: int | None, minor: int) -> Bound:
    """Return the bound of the answer to a request with this limit at this minor version."""
    if minor >= microversion.EXTENDED:
        size = options.max_limit if limit is None else min(limit, options.max_limit)
        return Bound(limit, size, linked=True)
    whole = limit is None or limit > options.max_unpaged
    return Bound(limit, options.max_unpaged if whole else None, linked=False)
