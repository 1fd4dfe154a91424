# SPDX-License-Identifier: Apache-2.0
"""Devices in SQL: how they are found and read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from cyborg.db import listing, models
from cyborg.model.device import DeviceStatus
from cyborg.model.device_life import LOST

_D = models.Device.__table__.c
_U = models.Deployable.__table__.c
_R = models.Arq.__table__.c
_I = models.Instance.__table__.c
#: A request that is on its way in or out shows no instance.
_SHOWN: sa.Label[Any] = sa.case((~_R.hidden, _R.instance_uuid)).label("shown")
#: In service: enabled by the operator, and there.
_IN_SERVICE = sa.and_(_D.status == DeviceStatus.ENABLED.value, _D.lost_ms.is_(None))
_VISIBLE: sa.Select[*tuple[Any, ...]] = sa.select(
    _D.id,
    _D.uuid,
    _D.type,
    _D.vendor,
    _D.model,
    _D.std_board_info,
    _D.vendor_board_info,
    _D.hostname,
    _D.driver,
    _D.backend,
    _D.labels,
    _D.status,
    _D.status_reason,
    _D.lost_ms,
    _D.created_at,
    _D.updated_at,
)
# Built once: SQLAlchemy takes longer to build it than the database to execute it.
_SHOW = _VISIBLE.where(_D.uuid == sa.bindparam("uuid"))
SORTABLE = listing.Sortable(
    id=_D.id,
    uuid=_D.uuid,
    columns={
        name: _D[name]
        for name in (
            "id",
            "uuid",
            "type",
            "vendor",
            "model",
            "hostname",
            "status",
            "created_at",
            "updated_at",
        )
    },
)


@dataclass(frozen=True)
class Wanted:
    """Which devices are listed; what is None decides nothing.

    ``equal`` are values of columns. ``in_service`` True keeps those that are enabled and not lost,
    False the others; ``status`` is one word of the life, a lost device being that alone.
    ``in_use`` tells whether a request holds units of it, ``instance`` is one's that does;
    ``project_id`` is that of a request that does.
    """

    equal: Mapping[str, str] = field(default_factory=dict)
    in_service: bool | None = None
    status: str | None = None
    in_use: bool | None = None
    instance: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    project_id: str | None = None


def show(
    tx: sa.Connection, uuid: str, project_id: str | None = None
) -> sa.Row[*tuple[Any, ...]] | None:
    """The device with this uuid, if a request of this project (None: of any, or none) holds it."""
    query = _SHOW if project_id is None else _SHOW.where(_held(_R.project_id == project_id))
    return tx.execute(query, {"uuid": uuid}).first()


def page(
    tx: sa.Connection, wanted: listing.Page, which: Wanted
) -> Sequence[sa.Row[*tuple[Any, ...]]]:
    """A page of the devices that are wanted."""
    query = listing.paged(tx, _VISIBLE, SORTABLE, wanted)
    return tx.execute(query.where(*_terms(which))).all()


@dataclass(frozen=True)
class User:
    """An instance that holds units, and what Nova said of it at ``seen_ms`` (None: nothing yet)."""

    uuid: str
    name: str | None
    status: str | None
    seen_ms: int | None


def instances(
    tx: sa.Connection, ids: Sequence[int], project_id: str | None
) -> dict[int, list[User | None]]:
    """Whose requests hold units of these devices: device id → instances, by uuid.

    None stands for requests that show no instance: unbound ones and hidden ones. ``project_id``
    keeps those of one project.
    """
    query = (
        sa.select(_U.device_id, _SHOWN, _I.name, _I.status, _I.seen_ms)
        .select_from(models.Arq)
        .join(models.Deployable, _U.id == _R.deployable_id)
        .outerjoin(models.Instance, _I.uuid == _SHOWN)
        .where(_U.device_id.in_(ids))
        .distinct()
        .order_by(_SHOWN)
    )
    if project_id is not None:
        query = query.where(_R.project_id == project_id)
    found: dict[int, list[User | None]] = {}
    for row in tx.execute(query) if ids else ():
        user = None if row.shown is None else User(row.shown, row.name, row.status, row.seen_ms)
        found.setdefault(row.device_id, []).append(user)
    return found


def _terms(which: Wanted) -> Iterator[sa.ColumnElement[bool]]:
    yield from (_D[name] == value for name, value in which.equal.items())
    if which.in_service is not None:
        yield _IN_SERVICE if which.in_service else sa.not_(_IN_SERVICE)
    if which.status == LOST:
        yield _D.lost_ms.is_not(None)
    elif which.status is not None:
        yield sa.and_(_D.status == which.status, _D.lost_ms.is_(None))
    if which.in_use is not None:
        yield _held() if which.in_use else sa.not_(_held())
    if which.instance is not None or which.project_id is not None:
        # By the same request: who else shares a device is not for its users to find out.
        yield _held(*_of(which))
    for key, value in which.labels.items():
        yield _D.labels[key].as_string() == value


def _of(which: Wanted) -> Iterator[sa.ColumnElement[bool]]:
    if which.instance is not None:
        yield _R.instance_uuid == which.instance
        yield ~_R.hidden
    if which.project_id is not None:
        yield _R.project_id == which.project_id


def _held(*terms: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Whether a request of this kind holds a unit of a device."""
    return sa.exists().where(_U.device_id == _D.id, _R.deployable_id == _U.id, *terms)
