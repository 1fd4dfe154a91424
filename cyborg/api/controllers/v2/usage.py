# SPDX-License-Identifier: Apache-2.0
"""Usage: counts of units by type, host, project and resource class."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import answers, microversion, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.db import units
from cyborg.model.availability import UnitWord


class UsageQuery(types.Declared):
    """Filters, all of which compare for equality; and the grouping."""

    type = wsme.wsattr(types.NAME)
    host = wsme.wsattr(types.NAME)
    project_id = wsme.wsattr(types.NAME)
    resource_class = types.Field(types.NAME, since=microversion.OPERATOR_VIEWS)
    group_by = types.Field(
        types.Commas(types.Word(*units.GROUPS)), since=microversion.OPERATOR_VIEWS
    )


COUNTS = answers.Answer(
    "Counts",
    "Counts of units; each unit is used, free, or out of service for a reason.",
    total=answers.Shown(types.INTEGER),
    used=answers.Shown(types.INTEGER),
    free=answers.Shown(types.INTEGER),
    out_of_service=answers.Shown(types.INTEGER),
    reasons=answers.Shown(types.Members(types.INTEGER)),
)


TYPE_COUNTS = answers.Answer(
    "TypeCounts",
    "Counts of units of a type on a host for a project, below microversion 2.5.",
    type=answers.Shown(answers.STRING),
    host=answers.Shown(answers.TEXT_OR_NULL),
    project_id=answers.Shown(answers.TEXT_OR_NULL),
    offered=answers.Shown(types.INTEGER),
    bound=answers.Shown(types.INTEGER),
    reserved=answers.Shown(types.INTEGER),
    lost=answers.Shown(types.INTEGER),
)


CLASS_COUNTS = COUNTS.extended(
    "ClassCounts",
    "Counts of units of a resource class, and of the groups of the request.",
    resource_class=answers.Shown(answers.STRING),
    type=answers.Shown(answers.TEXT_OR_NULL),
    host=answers.Shown(answers.TEXT_OR_NULL),
    project_id=answers.Shown(answers.TEXT_OR_NULL),
)


_ROWS = answers.Before(
    microversion.OPERATOR_VIEWS, types.Items(TYPE_COUNTS), types.Items(CLASS_COUNTS)
)


class Usage(Controller):
    """``/v2/usage``."""

    collection = "usage"
    routes: ClassVar[Routes] = {"": {"GET": "index"}}

    @expose(
        "cyborg:usage:get",
        query=UsageQuery,
        since=microversion.OPERATORS,
        answer=answers.Envelope(_ROWS, "usage"),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return all counts that the caller may see; counts of one project have no hosts."""
        groups = query.get("group_by", ())
        if not call.scope.everywhere and ("host" in query or "host" in groups):
            # Project members must not see on which hosts their accelerators are.
            raise exception.Forbidden(reason="Only operators may ask for the usage of a host.")
        with self.reader.reader() as tx:
            if call.minor >= microversion.OPERATOR_VIEWS:
                return {self.collection: by_class(units.by_class(tx, query, call.scope, groups))}
            rows = units.count(tx, query, call.scope)
        return {self.collection: [render(row) for row in rows]}


def by_class(rows: Sequence[units.ClassUnits]) -> list[dict[str, Any]]:
    """Return the JSON of counts by resource class and the other groups."""
    names = ("resource_class", *units.GROUPS)
    words: dict[tuple[Any, ...], dict[str, int]] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in names)
        words.setdefault(key, {})[row.word] = row.amount
    return [dict(zip(names, key, strict=True)) | counts(amounts) for key, amounts in words.items()]


def counts(words: Mapping[str, int]) -> dict[str, Any]:
    """Return the JSON of unit counts: each unit is used, free, or out of service for a reason."""
    reasons = {
        word: amount
        for word, amount in sorted(words.items())
        if word not in (UnitWord.USED, UnitWord.FREE)
    }
    return {
        "total": sum(words.values()),
        "used": words.get(UnitWord.USED, 0),
        "free": words.get(UnitWord.FREE, 0),
        "out_of_service": sum(reasons.values()),
        "reasons": reasons,
    }


def render(row: units.TypeUnits) -> dict[str, Any]:
    """Return the JSON of a row of counts."""
    return {
        "type": row.type,
        "host": row.host,
        "project_id": row.project_id,
        # A database may return a sum as a decimal number.
        "offered": int(row.offered),
        "bound": int(row.bound),
        "reserved": int(row.reserved),
        "lost": int(row.lost),
    }
