# SPDX-License-Identifier: Apache-2.0
"""For operators: health, message bus errors, history, outbox, limits and private profiles.

Every new column of an older table may be NULL or has a default, so services of the previous
release work on this schema. The revision can be run again after it was interrupted at any point.
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
    """Add the columns, indexes and tables that are missing."""
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
            # What the agent reported, the end of a probation, and the times of faults.
            sa.Column("reported_health", sa.String(16)),
            sa.Column("reported_health_reason", sa.Text),
            sa.Column("health_until_ms", sa.BigInteger),
            sa.Column("health_faults", sa.JSON(none_as_null=True)),
            # What identifies the device, and where it is in the PCI hierarchy of its host.
            sa.Column("identity", sa.JSON(none_as_null=True)),
            sa.Column("topology", sa.JSON(none_as_null=True)),
            # The capacity that the units of the device share.
            sa.Column("pools", sa.JSON(none_as_null=True)),
        ),
        "deployables": (
            # The name that the driver uses after the device has moved.
            sa.Column("key", sa.String(255)),
            # What each unit takes of the capacity that the units of the device share.
            sa.Column("cost", sa.JSON(none_as_null=True)),
            # How many units a guest takes at a time; NULL: one.
            sa.Column("group_size", sa.Integer),
            # How the host cleans a unit after its guest; NULL: it cannot.
            sa.Column("clean", sa.String(16)),
        ),
        "attach_handles": (
            # The free units that no longer fit.
            sa.Column("blocked", sa.Boolean, nullable=False, server_default=sa.false()),
            # The units that are cleaned now, and the last cleaning of each unit.
            sa.Column("cleaning", sa.Boolean, nullable=False, server_default=sa.false()),
            sa.Column("clean_record", sa.JSON(none_as_null=True)),
            sa.Column("clean_ms", sa.BigInteger),
        ),
        # The device that an event is about, for events of every noun.
        "events": (sa.Column("device_uuid", sa.String(36)),),
        # The objects of an operation: {"driver": ..., "device": ..., "instance": ...}.
        "operations": (sa.Column("subject", sa.JSON(none_as_null=True)),),
        # Whether only some projects may use a profile.
        "device_profiles": (
            sa.Column("private", sa.Boolean, nullable=False, server_default=sa.false()),
        ),
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
    name = "ix_devices_health_until_ms"
    if name not in {index["name"] for index in inspector.get_indexes("devices")}:
        op.create_index(name, "devices", ["health_until_ms"])
    arqs = "extended_accelerator_requests"
    name = f"ix_{arqs}_project_id_instance_uuid"
    if name not in {index["name"] for index in inspector.get_indexes(arqs)}:
        # For the limit of unbound requests.
        op.create_index(name, arqs, ["project_id", "instance_uuid"])
    if not inspector.has_table("projects"):
        # The rows whose locks serialise the limits of projects.
        op.create_table("projects", sa.Column("id", sa.String(255), primary_key=True), **MYSQL)
    if not inspector.has_table("outbox"):
        # The events that are not sent as notifications yet.
        event = sa.ForeignKey("events.id", name="fk_outbox_event_id_events", ondelete="CASCADE")
        op.create_table(
            "outbox",
            sa.Column("event_id", sa.Integer, event, primary_key=True, autoincrement=False),
            **MYSQL,
        )
    if not inspector.has_table("device_profile_projects"):
        # The projects that may use a private profile.
        name = "fk_device_profile_projects_device_profile_id_device_profiles"
        profile = sa.ForeignKey("device_profiles.id", name=name, ondelete="CASCADE")
        op.create_table(
            "device_profile_projects",
            sa.Column("device_profile_id", sa.Integer, profile, primary_key=True),
            sa.Column("project_id", sa.String(64), primary_key=True),
            **MYSQL,
        )
    # Not with the table: an upgrade that is killed between the two statements is run again.
    name = "ix_device_profile_projects_project_id"
    projects = sa.inspect(op.get_bind()).get_indexes("device_profile_projects")
    if name not in {index["name"] for index in projects}:
        op.create_index(name, "device_profile_projects", ["project_id"])
