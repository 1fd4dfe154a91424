# SPDX-License-Identifier: Apache-2.0
"""Tables of the existing service that nothing here reads or writes; they are kept as they came."""

import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from cyborg.db.base import Base, Dated, Id, String255, Uuid


class QuotaUsage(Dated, Base):
    """How much of a quota was used."""

    __tablename__ = "quota_usages"
    id: Mapped[Id]
    project_id: Mapped[str | None] = mapped_column(sa.String(255), index=True)
    user_id: Mapped[str | None] = mapped_column(sa.String(255), index=True)
    resource: Mapped[String255]
    in_use: Mapped[int]
    reserved: Mapped[int]
    until_refresh: Mapped[int | None]


class Reservation(Dated, Base):
    """What of a quota was spoken for."""

    __tablename__ = "reservations"
    id: Mapped[Id]
    uuid: Mapped[Uuid]
    usage_id: Mapped[int] = mapped_column(sa.ForeignKey("quota_usages.id"))
    project_id: Mapped[str | None] = mapped_column(sa.String(255), index=True)
    user_id: Mapped[str | None] = mapped_column(sa.String(255), index=True)
    resource: Mapped[String255 | None]
    delta: Mapped[int]
    expire: Mapped[datetime.datetime | None] = mapped_column(sa.DateTime)


sa.Index("reservations_uuid_idx", Reservation.uuid)
sa.Index("usage_id", Reservation.usage_id)

#: All tables that are known so far.
METADATA = Base.metadata
