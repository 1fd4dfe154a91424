# SPDX-License-Identifier: Apache-2.0
"""What Placement shall show of each deployable, computed in one place from the rows.

The desired state of a host, the audit and the views of devices read it here. ``cyborg.db.units``
has the rule for each unit.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Final

import sqlalchemy as sa

from cyborg.db import units
from cyborg.db.attach_handles import MAY_BE_SET_ASIDE
from cyborg.db.models import AttachHandle, Attribute, Deployable, Device, Host
from cyborg.db.rows import column, select
from cyborg.db.transaction import Transaction
from cyborg.model.attribute import Origin
from cyborg.model.availability import UnitWord
from cyborg.model.device_profile import Group, resource_classes
from cyborg.model.explanation import Names, Stock
from cyborg.model.provider import Provider
from cyborg.model.satisfiability import Supply
from cyborg.model.satisfiability import traits as requested_traits

#: The units that are reserved in Placement, and those of ``Part``.
_NUMBERS: Final = ("reserved", "claimable", "unclaimed")
#: The position of the word in the rows of ``stocks``.
_WORD: Final = 11


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
    tx: Transaction, groups: Iterable[Group] | None = None
) -> Collection[tuple[Supply, ...]]:
    """Return what the providers of each host can give, equal hosts once; in two statements.

    ``groups`` limits it to providers of their resource classes, and to their traits. Units that
    their host does not report do not count.
    """
    hosts: dict[str, list[Supply]] = defaultdict(list)
    for stock in stocks(tx) if groups is None else stocks_for(tx, groups):
        hosts[stock.host].append(stock.supply)
    return {tuple(sorted(host)) for host in hosts.values()}


def stocks(
    tx: Transaction,
    classes: Collection[str] | None = None,
    *,
    host: str | None = None,
    traits: Collection[str] | None = None,
) -> list[Stock]:
    """Return the units that hosts report, by provider; in two statements.

    ``classes`` limits it to providers of these resource classes, ``host`` to one host, and
    ``traits`` to these traits. Units that their host does not report count as reserved only.
    """
    terms: list[sa.ColumnElement[bool]] = []
    if classes is not None:
        terms.append(Deployable.resource_class.in_(sorted(classes)))
    if host is not None:
        terms.append(sa.or_(Host.name == host, Host.service_host == host))
    size = sa.func.coalesce(Deployable.group_size, 1)
    each = (
        units.join(
            sa.select(
                Deployable.id,
                Host.name,
                Device.uuid,
                Deployable.rp_uuid,
                Deployable.resource_class,
                size.label("size"),
                Deployable.published_total,
                Deployable.published_reserved,
                Device.type,
                Device.numa_node,
                Host.service_host,
                units.WORD.label("word"),
                sa.case((units.RESERVED, 1), else_=0).label("reserved"),
            )
        )
        .where(*terms)
        .subquery()
    )
    place = [column for column in each.c if column.name != "reserved"]
    counted = tx.execute(
        sa.select(*place, sa.func.count(), sa.func.sum(each.c.reserved))
        .group_by(*place)
        .order_by(each.c.id)
    ).all()
    named = [] if traits is None else [Attribute.value.in_(sorted(traits))]
    traits_by_id = _traits_of(tx, _traits(*terms, *named)) if traits is None or traits else {}
    sorted_by_id = {id_: tuple(sorted(values)) for id_, values in traits_by_id.items()}
    result = []
    for (id_, *shown), group in groupby(counted, key=itemgetter(slice(_WORD))):
        name, uuid, rp_uuid, resource_class, group_size, published, hidden, *more = shown
        words: dict[str, int] = {}
        reserved = 0
        for row in group:
            words[row[_WORD]] = row[_WORD + 1]
            reserved += int(row[_WORD + 2])
        total = sum(words.values())
        total_reported = total - words.pop(UnitWord.LOST.value, 0)
        if words:
            free = words.get(UnitWord.FREE.value, 0)
            supply = Supply(
                resource_class, sorted_by_id.get(id_, ()), total_reported, free, group_size
            )
            last = None if published is None else (published, hidden or 0)
            result.append(Stock(name, rp_uuid, uuid, supply, words, (total, reserved), last, *more))
    return result


def stocks_for(tx: Transaction, groups: Iterable[Group], *, host: str | None = None) -> list[Stock]:
    """Return the units of the classes and traits that groups name, as ``stocks`` does."""
    requested = list(groups)
    classes = frozenset(name for group in requested for name in resource_classes(group))
    required = frozenset(name for group in requested for name in requested_traits(group))
    return stocks(tx, classes, host=host, traits=required) if classes else []


def names(
    tx: Transaction, classes: Collection[str] | None = None, traits: Collection[str] | None = None
) -> Names:
    """Return the resource classes and traits that hosts report; in two statements.

    ``classes`` and ``traits`` limit it to those that are among them.
    """
    class_query = sa.select(Deployable.resource_class).distinct()
    if classes is not None:
        class_query = class_query.where(Deployable.resource_class.in_(sorted(classes)))
    terms = [] if traits is None else [Attribute.value.in_(sorted(traits))]
    trait_query = _traits(*terms).with_only_columns(Attribute.value).distinct()
    return Names(
        frozenset(tx.execute(class_query).scalars()), frozenset(tx.execute(trait_query).scalars())
    )


def _traits(*terms: sa.ColumnElement[bool]) -> sa.Select[int, str]:
    """Return the query of the traits that hosts report, without those that operators added."""
    return (
        sa.select(Attribute.deployable_id, Attribute.value)
        .join(Deployable, Deployable.id == Attribute.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .join(Host, Host.id == Device.host_id)
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
