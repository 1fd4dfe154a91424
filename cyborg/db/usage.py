# SPDX-License-Identifier: Apache-2.0
"""How many units there are of what, where, and whose: counted from handles, devices and ARQs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg.db import units
from cyborg.db.models import Arq, Deployable, Device, Host

Row = sa.Row[*tuple[Any, ...]]

#: What microversion 2.4 calls the words of ``units``.
_OLDER: Final = {units.FREE: "offered", units.USED: "bound", units.LOST: "lost"}
_STATE = sa.case(_OLDER, value=units.WORD, else_="reserved")
STATES: Final = ("offered", "bound", "reserved", "lost")
_SUMS = [sa.func.sum(sa.case({one: 1}, value=_STATE, else_=0)).label(one) for one in STATES]
#: What rows can be counted by besides their resource class.
GROUPS: Final[Mapping[str, sa.SQLColumnExpression[Any]]] = {
    "type": Device.type,
    "host": Device.hostname,
    "project_id": Arq.project_id,
}


def by_class(
    tx: sa.Connection, asked: Mapping[str, Any], project_id: str | None, groups: Collection[str]
) -> Sequence[Row]:
    """(resource_class, type, host, project_id, word, amount), in the order of the first four.

    ``word`` is that of ``units.WORD``. Columns that are not in ``groups`` are None. With
    ``project_id`` only the units of this project.
    """
    columns: list[sa.Label[Any]] = [GROUPS[name].label(name) for name in GROUPS if name in groups]
    each = (
        units.select(Deployable.resource_class, *columns, units.WORD.label("word"))
        .where(*_terms(asked, project_id))
        .subquery()
    )
    keys = [each.c.resource_class, *(each.c[column.name] for column in columns)]
    empty = [sa.null().label(name) for name in GROUPS if name not in groups]
    # Databases do not agree on where nothing comes.
    order = [sa.func.coalesce(key, "") for key in keys]
    return tx.execute(
        sa.select(*keys, *empty, each.c.word, sa.func.count().label("amount"))
        .group_by(*keys, each.c.word)
        .order_by(*order, each.c.word)
    ).all()


def count(tx: sa.Connection, asked: Mapping[str, Any], project_id: str | None) -> Sequence[Row]:
    """(type, host, project_id, offered, bound, reserved, lost), in the order of the first three.

    One row for all units of a type on a host that nobody has, and one for each project that has
    some. With ``project_id`` those of this project alone, all hosts in one row, whose host is None.
    """
    host: sa.SQLColumnExpression[Any] = Device.hostname
    if project_id is not None:
        host = sa.null()
    groups: list[sa.SQLColumnExpression[Any]] = [Device.type, Arq.project_id]
    query = units.select(Device.type, host.label("host"), Arq.project_id, *_SUMS)
    query = query.where(*_terms(asked, project_id))
    if project_id is None:
        groups.insert(1, Device.hostname)
    # Databases do not agree on where nothing comes.
    whose = sa.func.coalesce(Arq.project_id, "")
    order = [whose if one is groups[-1] else one for one in groups]
    return tx.execute(query.group_by(*groups).order_by(*order)).all()


def _terms(asked: Mapping[str, Any], project_id: str | None) -> list[sa.ColumnElement[bool]]:
    """The filters of a request, and the project that it is limited to."""
    terms: list[sa.ColumnElement[bool]] = []
    if project_id is not None:
        terms.append(Arq.project_id == project_id)
    if "resource_class" in asked:
        terms.append(Deployable.resource_class == asked["resource_class"])
    if "type" in asked:
        terms.append(Device.type == asked["type"])
    if "host" in asked:
        terms.append(sa.or_(Host.name == asked["host"], Host.service_host == asked["host"]))
    if "project_id" in asked:
        terms.append(Arq.project_id == asked["project_id"])
    return terms
