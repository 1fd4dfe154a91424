# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests in SQL: how they are found and read, in one join."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db import listing, models
from cyborg.model.arq import RESOLVED, State

_R = models.Arq.__table__.c
_P = models.DeviceProfile.__table__.c
_H = models.AttachHandle.__table__.c
_RESOLVED = sorted(state.value for state in RESOLVED)
# A handle is held before its device is prepared; only a bound ARQ shows it.
_BOUND = _R.state == State.BOUND.value
_VISIBLE: sa.Select[*tuple[Any, ...]] = (
    sa.select(
        _R.uuid,
        _R.state,
        _P.name,
        _R.device_profile_group_id,
        _R.project_id,
        _R.created_at,
        _R.updated_at,
        _R.hostname,
        _R.device_rp_uuid,
        sa.case((~_R.hidden, _R.instance_uuid)),
        sa.case((_BOUND, _H.attach_type), else_=""),
        sa.case((_BOUND, _H.uuid)),
        sa.case((_BOUND, _H.attach_info)),
    )
    .join(models.DeviceProfile, _P.id == _R.device_profile_id)
    .outerjoin(models.AttachHandle, _H.id == _R.attach_handle_id)
)
# Built once: SQLAlchemy takes longer to build them than the database to execute them.
_SHOW = _VISIBLE.where(_R.uuid == sa.bindparam("uuid"))
_SHOW_OF_PROJECT = _SHOW.where(_R.project_id == sa.bindparam("project_id"))
_EXPLAINED = _SHOW.add_columns(_R.fault)
_EXPLAINED_OF_PROJECT = _SHOW_OF_PROJECT.add_columns(_R.fault)
#: Filters of the API by name; all compare for equality.
FILTERS: Mapping[str, sa.ColumnElement[Any]] = {
    "instance": _R.instance_uuid,
    "state": _R.state,
    "hostname": _R.hostname,
    "device_rp_uuid": _R.device_rp_uuid,
    "device_profile_name": _P.name,
    "project_id": _R.project_id,
}
SORTABLE = listing.Sortable(
    id=_R.id,
    uuid=_R.uuid,
    columns={
        "id": _R.id,
        "device_profile_name": _P.name,
        **{
            name: _R[name]
            for name in (
                "uuid",
                "state",
                "device_profile_group_id",
                "hostname",
                "device_rp_uuid",
                "instance_uuid",
                "project_id",
                "created_at",
                "updated_at",
            )
        },
    },
)


#: The values of ``cyborg.model.arq.Arq`` in its order, but for the last: the handle's JSON, if any.
Row = sa.Row[*tuple[Any, ...]]


def show(tx: sa.Connection, uuid: str, project_id: str | None) -> Row | None:
    """The ARQ with this uuid, if it is of this project (None: of any)."""
    return _one(tx, (_SHOW, _SHOW_OF_PROJECT), uuid, project_id)


def explained(tx: sa.Connection, uuid: str, project_id: str | None) -> Row | None:
    """The same with one value more: why its bind failed, or None."""
    return _one(tx, (_EXPLAINED, _EXPLAINED_OF_PROJECT), uuid, project_id)


def _one(
    tx: sa.Connection,
    queries: tuple[sa.Select[*tuple[Any, ...]], sa.Select[*tuple[Any, ...]]],
    uuid: str,
    project_id: str | None,
) -> Row | None:
    of_all, of_project = queries
    if project_id is None:
        return tx.execute(of_all, {"uuid": uuid}).first()
    return tx.execute(of_project, {"uuid": uuid, "project_id": project_id}).first()


def page(
    tx: sa.Connection,
    wanted: listing.Page,
    project_id: str | None,
    equal: Mapping[str, str],
    *,
    resolved: bool = False,
) -> Sequence[Row]:
    """A page of the ARQs of a project (None: of all) to which the ``FILTERS`` apply.

    ``resolved`` keeps those whose state is final.
    """
    query = listing.paged(tx, _visible(project_id), SORTABLE, wanted)
    query = query.where(*(FILTERS[name] == value for name, value in equal.items()))
    if "instance" in equal:
        # Nova hands a guest whatever is listed; what is not ready yet, or on its way out, is not.
        query = query.where(~_R.hidden)
    if resolved:
        query = query.where(_R.state.in_(_RESOLVED))
    return tx.execute(query).all()


def all_resolved(tx: sa.Connection, instance_uuid: str, project_id: str | None) -> bool:
    """Whether no ARQ of the instance is on its way to a final state."""
    query = sa.select(sa.literal(1)).where(
        _R.instance_uuid == instance_uuid,
        ~_R.hidden,
        _R.state.not_in(_RESOLVED),
        *_of(project_id),
    )
    return tx.execute(query.limit(1)).first() is None


def _visible(project_id: str | None) -> sa.Select[*tuple[Any, ...]]:
    return _VISIBLE.where(*_of(project_id))


def _of(project_id: str | None) -> list[sa.ColumnElement[bool]]:
    return [] if project_id is None else [_R.project_id == project_id]
