# SPDX-License-Identifier: Apache-2.0
"""Usage: units by resource class, type, host and project, now and over a range of time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import wsme

from cyborg import exception
from cyborg.api import answers, microversion, types
from cyborg.api.answers import Answer, Member, Source
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.db import units
from cyborg.db import usage as usage_db
from cyborg.db.transaction import Transaction
from cyborg.model.availability import UnitWord

#: The groups and filters that only the usage over a range of time has.
_OF_RANGES: Final = tuple(name for name in usage_db.GROUPS if name not in units.GROUPS)
#: The longest range, which bounds what a request reads; ranges that follow each other add up.
_MAX_DAYS: Final = 366
_MAX_RANGE_MS: Final = _MAX_DAYS * 24 * 3600 * 1000
#: The most rows of the usage over a range.
_MAX_ROWS: Final = 10_000
#: Another word for a group.
_PROJECT: Final = "project"


class UsageQuery(types.Declared):
    """Filters, all of which compare for equality; the grouping; and the range of time."""

    type = wsme.wsattr(types.NAME)
    host = wsme.wsattr(types.NAME)
    project_id = wsme.wsattr(types.NAME)
    resource_class = wsme.wsattr(types.NAME)
    profile = wsme.wsattr(types.NAME)
    instance = wsme.wsattr(types.UUID_TYPE)
    group_by = wsme.wsattr(types.Commas(types.Word(*usage_db.GROUPS, _PROJECT)))
    start = wsme.wsattr(types.Moment())
    end = wsme.wsattr(types.Moment())


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


@dataclass(frozen=True)
class UsageNow:
    """The answer to a request without a range of time."""

    usage: Sequence[Group]


@dataclass(frozen=True)
class UsageOfRange:
    """The answer to a request with a range of time, see ``cyborg.db.usage``."""

    usage: Sequence[usage_db.UsedUnits]
    span: usage_db.Span
    complete_from_ms: int | None


CLASS_SECONDS = Answer[usage_db.UsedUnits](
    "ClassSeconds",
    "How long units of a resource class, and of the groups of the request, were in use.",
    resource_class=Member(answers.STRING),
    type=Member(answers.TEXT_OR_NULL),
    host=Member(answers.TEXT_OR_NULL),
    project_id=Member(answers.TEXT_OR_NULL),
    profile=Member(answers.TEXT_OR_NULL),
    instance=Member(answers.UUID_OR_NULL),
    unit_seconds=Member(
        types.Anything({"type": "number", "minimum": 0}), lambda row: row.unit_ms / 1000
    ),
)
USAGE = answers.Either(
    {
        UsageNow: Answer[UsageNow](
            "UsageNow", "The units now.", usage=Member(types.Items(CLASS_COUNTS))
        ),
        UsageOfRange: Answer[UsageOfRange](
            "UsageOfRange",
            "The use of units from ``start`` until just before ``end``.",
            usage=Member(types.Items(CLASS_SECONDS)),
            start=Member(answers.TIME, lambda answer: answer.span.start_ms),
            end=Member(answers.TIME, lambda answer: answer.span.end_ms),
            complete_from=Member(answers.TIME_OR_NULL, lambda answer: answer.complete_from_ms),
        ),
    }
)


class Usage(Controller):
    """``/v2/usage``."""

    collection = "usage"
    routes: ClassVar[Routes] = {"": {"GET": "index"}}

    @expose(
        "cyborg:usage:get",
        query=UsageQuery,
        since=microversion.EXTENDED,
        answer=USAGE,
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> UsageNow | UsageOfRange:
        """Return what the caller may see; the usage of one project has no hosts.

        Without a range of time these are the units now.
        """
        groups = {"project_id" if name == _PROJECT else name for name in query.get("group_by", ())}
        if not call.scope.everywhere and ("host" in query or "host" in groups):
            # Project members must not see on which hosts their accelerators are.
            raise exception.Forbidden(reason="Only operators may ask for the usage of a host.")
        ranged = "start" in query or "end" in query
        for name in () if ranged else _OF_RANGES:
            if name in query or name in groups:
                raise exception.Invalid(
                    field=name if name in query else "group_by",
                    reason=f"{name} needs a range of time; add start",
                )
        with self.reader.reader() as tx:
            if not ranged:
                return UsageNow(_groups(units.by_class(tx, query, call.scope, groups)))
            span = _span(tx, query)
            rows = usage_db.total(
                tx, span, call.scope, filters=query, groups=groups, limit=_MAX_ROWS + 1
            )
            complete_from_ms = usage_db.complete_from(tx)
        if len(rows) > _MAX_ROWS:
            raise exception.Invalid(
                field="group_by",
                reason=f"the answer would have more than {_MAX_ROWS} rows; name fewer groups, or "
                "add a filter, such as project_id",
            )
        return UsageOfRange(rows, span, complete_from_ms)


def _span(tx: Transaction, query: Mapping[str, Any]) -> usage_db.Span:
    """Return the range of a request, which ends now at the latest; raises Invalid."""
    now_ms = tx.now_ms
    start_ms, end_ms = query.get("start"), query.get("end", now_ms)
    if start_ms is None:
        raise exception.Invalid(field="start", reason="it is needed with end")
    if start_ms >= now_ms:
        raise exception.Invalid(
            field="start", reason=f"it must be in the past; it is {answers.instant(now_ms)} now"
        )
    if end_ms <= start_ms:
        raise exception.Invalid(field="end", reason="it must be later than start")
    span = usage_db.Span(start_ms, min(end_ms, now_ms))
    if span.end_ms - span.start_ms > _MAX_RANGE_MS:
        raise exception.Invalid(
            field="start",
            reason=f"the range is longer than {_MAX_DAYS} days; ask for several ranges, which add "
            "up",
        )
    return span


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
