# SPDX-License-Identifier: Apache-2.0
"""What Placement shall show of each deployable, computed in one place from the rows.

The desired state of a host, the audit and the views of devices read it here. ``cyborg.db.units``
has the rule for each unit.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import sqlalchemy as sa

from cyborg.db import units
from cyborg.db.attach_handles import MAY_BE_SET_ASIDE
from cyborg.db.models import AttachHandle, Attribute, Deployable, Device
from cyborg.db.rows import column, select
from cyborg.db.transaction import Transaction
from cyborg.model.attribute import Origin
from cyborg.model.availability import UnitWord
from cyborg.model.provider import Provider
from cyborg.model.satisfiability import Supply

#: The units that are reserved in Placement, and those of ``Part``.
_NUMBERS: Final = ("reserved", "claimable", "unclaimed")


class PartRow(Deployable):
    """A deployable with its host, and whether its whole device is lost."""

    __abstract__ = True

    host_id = column(Device.host_id)
    device_lost = column(Device.lost_ms.is_not(None))


class _Counted(PartRow):
    """A deployable with its units that count as ``word``; None: the deployable has no units."""

    __abstract__ = True

    word: str | None
    amount: int
    reserved: int
    claimable: int
    unclaimed: int


@dataclass(frozen=True)
class Part:
    """A deployable and its desired provider, whose uuid is empty if the deployable has none.

    ``words`` are its units by what they count as, see ``units.WORD``. ``claimable`` is how many
    units the next binds can use: offered, free or in release, without holder. ``unclaimed`` is how
    many units no ARQ has, and no quarantine keeps from binds for good.
    """

    row: PartRow
    desired: Provider
    words: Mapping[str, int]
    claimable: int
    unclaimed: int

    @property
    def supply(self) -> Supply:
        """Return what profiles can get of the provider; units that are lost do not count."""
        return Supply(
            self.row.resource_class,
            tuple(sorted(self.desired.traits)),
            self.desired.total - self.words.get(UnitWord.LOST.value, 0),
            self.words.get(UnitWord.FREE.value, 0),
            self.desired.group_size,
        )

    @property
    def published(self) -> tuple[int, int] | None:
        """Return the total and reserved units that Placement has; None: it has no provider."""
        if self.row.published_total is None:
            return None
        return self.row.published_total, self.row.published_reserved or 0


def of_hosts(tx: Transaction, ids: Collection[int]) -> dict[int, list[Part]]:
    """Return host id → deployables with their desired providers, by id; in two statements."""
    return _read(tx, "host_id", ids)


def of_devices(tx: Transaction, ids: Collection[int]) -> dict[int, list[Part]]:
    """Return device id → deployables with their desired providers, by id; in two statements."""
    return _read(tx, "device_id", ids)


def supplies(
    tx: Transaction, classes: Collection[str] | None = None
) -> Collection[tuple[Supply, ...]]:
    """Return what the providers of each host can give, equal hosts once; in two statements.

    ``classes`` limits it to providers of these resource classes. Units that their host does not
    report do not count.
    """
    terms = () if classes is None else (Deployable.resource_class.in_(sorted(classes)),)
    size = sa.func.coalesce(Deployable.group_size, 1)
    keys = (Device.host_id, Deployable.id, Deployable.resource_class, size.label("size"))
    each = units.join(sa.select(*keys, units.WORD.label("word"))).where(*terms).subquery()
    columns = (each.c.host_id, each.c.id, each.c.resource_class, each.c.size)
    counted = tx.execute(
        sa.select(
            *columns,
            sa.func.count(sa.case((each.c.word == UnitWord.FREE.value, 1))),
            sa.func.count(),
        )
        .where(each.c.word != UnitWord.LOST.value)
        .group_by(*columns)
    ).all()
    traits = _traits_of(tx, _traits(*terms))
    hosts: dict[int, list[Supply]] = defaultdict(list)
    for host, id_, name, group_size, free, total in counted:
        hosts[host].append(Supply(name, tuple(sorted(traits[id_])), total, free, group_size))
    return {tuple(sorted(host)) for host in hosts.values()}


def _traits(*terms: sa.ColumnElement[bool]) -> sa.Select[int, str]:
    """Return the query of the traits that hosts report, without those that operators added."""
    return (
        sa.select(Attribute.deployable_id, Attribute.value)
        .join(Deployable, Deployable.id == Attribute.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .where(
            Attribute.key.startswith("trait"),
            Attribute.origin == Origin.DISCOVERED.value,
            *terms,
        )
    )


def _traits_of(
    tx: Transaction, query: sa.Select[int, str], parameters: Mapping[str, Any] | None = None
) -> dict[int, set[str]]:
    """Return deployable id → its traits."""
    traits: dict[int, set[str]] = defaultdict(set)
    for id_, trait in tx.execute(query, parameters):
        traits[id_].add(trait)
    return traits


def _counted(term: sa.ColumnElement[bool]) -> sa.Select[_Counted]:
    """Return the query of the deployables; it has one row for each word of a deployable."""
    each = (
        units.join(
            sa.select(
                Deployable.id.label("part"),
                units.WORD.label("word"),
                units.RESERVED.label("reserved"),
                sa.and_(units.OFFERED, AttachHandle.arq_id.is_(None)).label("claimable"),
                MAY_BE_SET_ASIDE.label("unclaimed"),
            )
        )
        .where(term)
        .subquery()
    )
    counted = (
        sa.select(
            each.c.part,
            each.c.word,
            sa.func.count().label("amount"),
            *(sa.func.count(sa.case((each.c[name], 1))).label(name) for name in _NUMBERS),
        )
        .group_by(each.c.part, each.c.word)
        .subquery()
    )
    terms = {name: sa.func.coalesce(counted.c[name], 0) for name in ("amount", *_NUMBERS)}
    return (
        select(_Counted, word=counted.c.word, **terms)
        .join(Device, Device.id == Deployable.device_id)
        .outerjoin(counted, counted.c.part == Deployable.id)
        .where(term)
        .order_by(Deployable.id, counted.c.word)
    )


# Built once: SQLAlchemy takes longer to build them than the database to execute them.
_QUERIES: Final = {
    name: (_counted(term), _traits(term))
    for name, key in (("host_id", Device.host_id), ("device_id", Device.id))
    for term in (key.in_(sa.bindparam("ids", expanding=True)),)
}


def _read(tx: Transaction, key: str, ids: Collection[int]) -> dict[int, list[Part]]:
    counted, traits_query = _QUERIES[key]
    parts: dict[int, list[Part]] = {id_: [] for id_ in ids}
    if not ids:
        return parts
    parameters = {"ids": sorted(ids)}
    traits = _traits_of(tx, traits_query, parameters)
    for _, group in groupby(tx.all(counted, parameters), key=attrgetter("id")):
        rows = list(group)
        row = rows[0]
        words = {each.word: each.amount for each in rows if each.word is not None}
        desired = Provider(
            uuid=row.rp_uuid or "",
            name=row.name,
            deployable=row.key,
            resource_class=row.resource_class,
            # Lost units too, because allocations may refer to them.
            total=sum(words.values()),
            reserved=sum(each.reserved for each in rows),
            traits=frozenset(traits[row.id]),
            group_size=row.group_size or 1,
        )
        claimable, unclaimed = (
            sum(map(attrgetter(name), rows)) for name in ("claimable", "unclaimed")
        )
        parts[getattr(row, key)].append(Part(row, desired, words, claimable, unclaimed))
    return parts
