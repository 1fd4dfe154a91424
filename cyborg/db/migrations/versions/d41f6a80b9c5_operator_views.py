# SPDX-License-Identifier: Apache-2.0
"""For operators: health, message bus errors, history by device and host, and the outbox.

Every new column of an older table may be NULL, so services of the previous release work on this
schema. The revision can
be run again after it was interrupted at any point.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from cyborg.db.base import MYSQL

revision = "d41f6a80b9c5"
down_revision = "c3e1d9f0a7b2"


_INDEXES = {
    "ix_events_device_uuid_id": ("device_uuid", "id"),
    "ix_events_hostname_id": ("hostname", "id"),
    "ix_events_request_id": ("request_id",),
}


def upgrade() -> None:
    """Add the columns, indexes and the table that are missing."""
    # Made here: a column can be added to one table object only.
    added: dict[str, tuple[sa.Column[Any], ...]] = {
        "services": (
            # Why the status is FAILED.
            sa.Column("status_reason", sa.Text),
            # Why a process cannot receive requests over the message bus, and since when.
            sa.Column("bus_error", sa.Text),
            sa.Column("bus_error_ms", sa.BigInteger),
            # When a notification said that the service is down.
            sa.Column("reported_down_ms", sa.BigInteger),
        ),
        "devices": (
            sa.Column("health", sa.String(16)),
            sa.Column("health_reason", sa.Text),
            sa.Column("health_ms", sa.BigInteger),
            # What identifies the device, and where it is in the PCI hierarchy of its host.
            sa.Column("identity", sa.JSON(none_as_null=True)),
            sa.Column("topology", sa.JSON(none_as_null=True)),
        ),
        # The device that an event is about, for events of every noun.
        "events": (sa.Column("device_uuid", sa.String(36)),),
        # The objects of an operation: {"driver": ..., "device": ..., "instance": ...}.
        "operations": (sa.Column("subject", sa.JSON(none_as_null=True)),),
        # The options of a driver that operators may set.
        "drivers": (sa.Column("accepts", sa.JSON(none_as_null=True)),),
    }
    inspector = sa.inspect(op.get_bind())
    for table, columns in added.items():
        present = {column["name"] for column in inspector.get_columns(table)}
        for column in columns:
            if column.name not in present:
                op.add_column(table, column)
    indexes = {index["name"] for index in inspector.get_indexes("events")}
    for name, indexed in _INDEXES.items():
        if name not in indexes:
            op.create_index(name, "events", list(indexed))
    if not inspector.has_table("outbox"):
        # The events that are not sent as notifications yet.
        event = sa.ForeignKey("events.id", name="fk_outbox_event_id_events", ondelete="CASCADE")
        op.create_table(
            "outbox",
            sa.Column("event_id", sa.Integer, event, primary_key=True, autoincrement=False),
            **MYSQL,
        )
