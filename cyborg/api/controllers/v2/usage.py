# SPDX-License-Identifier: Apache-2.0
"""Usage: counts of units by resource class, type, host and project."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import answers, microversion, types
from cyborg.api.answers import Answer, Member, Source
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.db import units
from cyborg.model.availability import UnitWord


class UsageQuery(types.Declared):
    """Filters, all of which compare for equality; and the grouping."""

    type = wsme.wsattr(types.NAME)
    host = wsme.wsattr(types.NAME)
    project_id = wsme.wsattr(types.NAME)
    resource_class = wsme.wsattr(types.NAME)
    group_by = wsme.wsattr(types.Commas(types.Word(*units.GROUPS)))


COUNTS = Answer[Mapping[str, int]](
    "Counts",
    "Counts of units; each unit is used, free, or out of service for a reason.",
    total=Member(types.INTEGER, lambda words: sum(words.values())),
    used=Member(types.INTEGER, lambda words: words.get(UnitWord.USED, 0)),
    free=Member(types.INTEGER, lambda words: words.get(UnitWord.FREE, 0)),
    out_of_service=Member(types.INTEGER, lambda words: sum(_reasons(words).values())),
    reasons=Member(types.Members(types.INTEGER), lambda words: _reasons(words)),
)


@dataclass(frozen=True)
class Group:
    """The units of a group: ``row`` is one of its rows, ``words`` counts them by ``UnitWord``."""

    row: units.ClassUnits
    words: Mapping[str, int]


CLASS_COUNTS = Answer[Group](
    "ClassCounts",
    "Counts of units of a resource class, and of the groups of the request.",
    Source(row=lambda group: group.row),
    resource_class=Member(answers.STRING),
    type=Member(answers.TEXT_OR_NULL),
    host=Member(answers.TEXT_OR_NULL),
    project_id=Member(answers.TEXT_OR_NULL),
    **COUNTS.members(lambda group: group.words),
)


class Usage(Controller):
    """``/v2/usage``."""

    collection = "usage"
    routes: ClassVar[Routes] = {"": {"GET": "index"}}

    @expose(
        "cyborg:usage:get",
        query=UsageQuery,
        since=microversion.EXTENDED,
        answer=answers.Envelope(types.Items(CLASS_COUNTS), "usage"),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> list[Group]:
        """Return all counts that the caller may see; counts of one project have no hosts."""
        groups = query.get("group_by", ())
        if not call.scope.everywhere and ("host" in query or "host" in groups):
            # Project members must not see on which hosts their accelerators are.
            raise exception.Forbidden(reason="Only operators may ask for the usage of a host.")
        with self.reader.reader() as tx:
            rows = units.by_class(tx, query, call.scope, groups)
        return _groups(rows)


def _groups(rows: Sequence[units.ClassUnits]) -> list[Group]:
    words: dict[tuple[Any, ...], dict[str, int]] = {}
    firsts: dict[tuple[Any, ...], units.ClassUnits] = {}
    for row in rows:
        key = (row.resource_class, *(getattr(row, name) for name in units.GROUPS))
        words.setdefault(key, {})[row.word] = row.amount
        firsts.setdefault(key, row)
    return [Group(firsts[key], words[key]) for key in words]


def _reasons(words: Mapping[str, int]) -> dict[str, int]:
    return {
        word: amount
        for word, amount in sorted(words.items())
        if word not in (UnitWord.USED, UnitWord.FREE)
    }
