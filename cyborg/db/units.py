# SPDX-License-Identifier: Apache-2.0
"""Read units (attach handles) in SQL, and give them to ARQs: what each counts as, and counts.

``REASON`` is the one rule for whether the units of a deployable may be given out, and why not:
binds, attaches, counts, the audit and ``cyborg.db.providers`` use it. Of a deployable whose units
may be given out, ``attach_handles.claim`` chooses the unit. If none is ready, it takes one that is
being released, and the ARQ waits for it; Placement does not offer such a unit while it is cleaned.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeVarTuple

import sqlalchemy as sa

from cyborg.db.attach_handles import WITHHELD
from cyborg.db.hosts import CANNOT_PUBLISH, OUT_OF_SERVICE
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, Driver, Host
from cyborg.db.rows import Shown, shown
from cyborg.db.transaction import Transaction
from cyborg.model import health
from cyborg.model.availability import UnitWord
from cyborg.model.device import DeviceStatus, HandleState
from cyborg.model.report import DriverState
from cyborg.model.scope import Scope

Ts = TypeVarTuple("Ts")

_REFUSED: Final = UnitWord.PROVIDER_REFUSED.value
_PART_LOST = sa.or_(Deployable.lost_ms.is_not(None), Device.lost_ms.is_not(None))
_QUARANTINED = AttachHandle.state == HandleState.QUARANTINED.value
_UNIT_RESERVED = sa.or_(
    *WITHHELD,
    _QUARANTINED,
    AttachHandle.cleaning,
)
_HEALTHY = sa.or_(Device.health.is_(None), Device.health.in_(sorted(health.OFFERED)))
#: The outer join of the driver, which the expressions need.
OF_DEVICE = sa.and_(Driver.host_id == Device.host_id, Driver.name == Device.driver)
#: The first reason why no unit of a deployable may be given out; NULL: there is none.
REASON: sa.SQLColumnExpression[str | None] = sa.case(
    (_PART_LOST, UnitWord.LOST.value),
    (OUT_OF_SERVICE.is_not(None), OUT_OF_SERVICE),
    (Device.status != DeviceStatus.ENABLED.value, Device.status),
    (sa.not_(_HEALTHY), UnitWord.UNHEALTHY.value),
    # NULL, a state that was never reported, does not differ.
    (Driver.state != DriverState.READY.value, UnitWord.DRIVER_NOT_READY.value),
    (Host.unchecked, UnitWord.UNCHECKED.value),
    (Deployable.publish_error.is_not(None), _REFUSED),
)
#: The unit is reserved in Placement.
RESERVED = sa.or_(_UNIT_RESERVED, sa.func.coalesce(REASON, _REFUSED) != _REFUSED)
#: Placement can allocate the unit, or has allocated it.
OFFERED = sa.and_(REASON.is_(None), sa.not_(_UNIT_RESERVED))
#: Placement does not offer the provider, and its agent cannot change that now. A bind does not ask
#: for this: Placement allocated the unit before.
_UNPUBLISHED = sa.and_(
    CANNOT_PUBLISH,
    sa.func.coalesce(Deployable.published_total <= Deployable.published_reserved, sa.true()),
)
#: What a unit counts as, see ``UnitWord``.
WORD: sa.SQLColumnExpression[str] = sa.func.coalesce(
    sa.case(
        (AttachHandle.arq_id.is_not(None), UnitWord.USED.value),
        (sa.or_(AttachHandle.lost_ms.is_not(None), _PART_LOST), UnitWord.LOST.value),
        (_QUARANTINED, UnitWord.QUARANTINED.value),
        (AttachHandle.cleaning, UnitWord.CLEANING.value),
        (AttachHandle.state == HandleState.RELEASING.value, UnitWord.RELEASING.value),
    ),
    REASON,
    sa.case(
        (AttachHandle.blocked, UnitWord.NO_ROOM.value),
        (_UNPUBLISHED, UnitWord.UNPUBLISHED.value),
        else_=UnitWord.FREE.value,
    ),
)


#: Term of a statement on handles: units of the deployable may be given out.
_MAY_BE_GIVEN_OUT = (
    sa.select(Deployable.id)
    .join(Device, Device.id == Deployable.device_id)
    .join(Host, Host.id == Device.host_id)
    .outerjoin(Driver, OF_DEVICE)
    .where(Deployable.id == AttachHandle.deployable_id, REASON.is_(None))
    .correlate(AttachHandle)
    .exists()
)


def hold(tx: Transaction, arqs: Mapping[int, str]) -> bool:
    """Give handles, which the caller has locked, to ARQs: handle id → ARQ uuid.

    Returns False, and the caller must roll back, when a unit may not be given out any more: its
    deployable was read before the lock, and an operator may have taken it out of service since.
    The operator's request locks the handles as well, so this statement sees what it has committed.
    """
    values: dict[str, Any] = {"ids": sorted(arqs)}
    for index, (id_, uuid) in enumerate(sorted(arqs.items())):
        values |= {f"id_{index}": id_, f"uuid_{index}": uuid}
    return int(tx.execute(_hold(len(arqs)), values).rowcount) == len(arqs)


@cache
def _hold(count: int) -> sa.Update:
    """Return the UPDATE that gives ``count`` handles, ``id_<i>``, to the ARQs ``uuid_<i>``."""
    uuid = sa.case(
        *(
            (
                AttachHandle.id == sa.bindparam(f"id_{index}", type_=sa.Integer),
                sa.bindparam(f"uuid_{index}", type_=sa.String),
            )
            for index in range(count)
        )
    )
    arq_id = sa.select(Arq.id).where(Arq.uuid == uuid).correlate(AttachHandle).scalar_subquery()
    mine = AttachHandle.id.in_(sa.bindparam("ids", expanding=True))
    return sa.update(AttachHandle).where(mine, _MAY_BE_GIVEN_OUT).values(arq_id=arq_id)


def join(query: sa.Select[*Ts]) -> sa.Select[*Ts]:
    """Join units with their deployable, device, host, driver and ARQ."""
    return (
        query.select_from(AttachHandle)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .join(Host, Host.id == Device.host_id)
        .outerjoin(Driver, OF_DEVICE)
        .outerjoin(Arq, Arq.id == AttachHandle.arq_id)
    )


#: The columns by which units can be counted, besides their resource class.
GROUPS: Final[Mapping[str, sa.SQLColumnExpression[Any]]] = {
    "type": Device.type,
    "host": Device.hostname,
    "project_id": Arq.project_id,
}


class ClassUnits(Shown):
    """The number of units of a group that count as ``word``, a value of ``WORD``."""

    resource_class: str
    type: str | None
    host: str | None
    project_id: str | None
    word: str
    amount: int


def by_class(
    tx: Transaction, filters: Mapping[str, Any], scope: Scope, groups: Collection[str]
) -> Sequence[ClassUnits]:
    """Count the units in the scope by resource class, ``groups`` and word, in this order.

    Columns that are not in ``groups`` are None.
    """
    chosen: dict[str, sa.SQLColumnExpression[Any]] = {"resource_class": Deployable.resource_class}
    chosen |= {name: GROUPS[name] for name in GROUPS if name in groups}
    each = (
        join(sa.select(*(chosen[name].label(name) for name in chosen), WORD.label("word")))
        .where(*_terms(filters, scope))
        .subquery()
    )
    terms = {name: each.c.get(name, sa.null()) for name in ("resource_class", *GROUPS, "word")}
    # The place of NULL in an order differs between databases.
    order = [sa.func.coalesce(each.c[name], "") for name in chosen]
    return tx.all(
        # The subquery has the term of the scope.
        shown(ClassUnits, None, **terms, amount=sa.func.count())
        .within(scope)
        .group_by(*each.c)
        .order_by(*order, each.c.word)
    )


class WideTree(NamedTuple):
    """The devices of a host with free units of one class; ``provider`` is one of theirs."""

    hostname: str
    resource_class: str
    provider: str
    providers: int


def widest_tree(tx: Transaction) -> WideTree | None:
    """Return the host and class with the most providers of which Placement can give a unit."""
    each = (
        join(sa.select(Device.hostname, Deployable.resource_class, Deployable.rp_uuid))
        .where(WORD.in_([UnitWord.FREE.value]), Deployable.rp_uuid.is_not(None))
        .distinct()
        .subquery()
    )
    providers = sa.func.count()
    row = tx.execute(
        sa.select(each.c.hostname, each.c.resource_class, sa.func.min(each.c.rp_uuid), providers)
        .group_by(each.c.hostname, each.c.resource_class)
        .order_by(providers.desc(), each.c.hostname, each.c.resource_class)
        .limit(1)
    ).first()
    return None if row is None else WideTree(*row)


def _terms(filters: Mapping[str, Any], scope: Scope) -> list[sa.ColumnElement[bool]]:
    """Return the terms of the filters of a request, and of the scope that limits it."""
    terms: list[sa.ColumnElement[bool]] = []
    if scope.project_id is not None:
        terms.append(Arq.project_id == scope.project_id)
    if "resource_class" in filters:
        terms.append(Deployable.resource_class == filters["resource_class"])
    if "type" in filters:
        terms.append(Device.type == filters["type"])
    if "host" in filters:
        terms.append(sa.or_(Host.name == filters["host"], Host.service_host == filters["host"]))
    if "project_id" in filters:
        terms.append(Arq.project_id == filters["project_id"])
    return terms
