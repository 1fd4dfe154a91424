# SPDX-License-Identifier: Apache-2.0
"""For operators: health, bus errors, history, outbox, limits, private profiles, dirty units.

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
    "ix_events_expires_ms": ("expires_ms",),
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
            # Why conductors have refused its messages since its last heartbeat.
            sa.Column("clock_error", sa.Text),
            # Why an agent cannot publish in Placement, and since when.
            sa.Column("publish_error", sa.Text),
            sa.Column("publish_error_ms", sa.BigInteger),
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
            # What the agent has published: the total, and how many units of it are reserved.
            sa.Column("published_total", sa.Integer),
            sa.Column("published_reserved", sa.Integer),
        ),
        "hosts": (
            # Whether an audit after a restore has still to compare the host with Placement.
            sa.Column("unchecked", sa.Boolean, nullable=False, server_default=sa.false()),
            # The boot of the host for which its guests are known.
            sa.Column("boot_id", sa.String(36)),
        ),
        "attach_handles": (
            # The free units that no longer fit.
            sa.Column("blocked", sa.Boolean, nullable=False, server_default=sa.false()),
            # The units that are cleaned now, and the last cleaning of each unit.
            sa.Column("cleaning", sa.Boolean, nullable=False, server_default=sa.false()),
            sa.Column("clean_record", sa.JSON(none_as_null=True)),
            sa.Column("clean_ms", sa.BigInteger),
            # The units in quarantine that a server without an ARQ may have.
            sa.Column("suspect", sa.Boolean, nullable=False, server_default=sa.false()),
        ),
        "events": (
            # The device that an event is about, for events of every noun.
            sa.Column("device_uuid", sa.String(36)),
            # When an event is deleted before the end of the retention period.
            sa.Column("expires_ms", sa.BigInteger),
        ),
        # The objects of an operation: {"driver": ..., "device": ..., "instance": ...}.
        "operations": (sa.Column("subject", sa.JSON(none_as_null=True)),),
        # Whether only some projects may use a profile.
        "device_profiles": (
            sa.Column("private", sa.Boolean, nullable=False, server_default=sa.false()),
        ),
        # The boots of its host in which an instance was without a unit, and repaired.
        "instances": (
            sa.Column("unattached_boot", sa.String(36)),
            sa.Column("repaired_boot", sa.String(36)),
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
    if not inspector.has_table("guests"):
        # The guests that run on the hosts, and the units that processes have.
        host = sa.ForeignKey("hosts.id", name="fk_guests_host_id_hosts", ondelete="CASCADE")
        op.create_table(
            "guests",
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("host_id", sa.Integer, host, nullable=False),
            sa.Column("instance_uuid", sa.String(36)),
            sa.Column("process", sa.String(255), nullable=False),
            sa.Column("handle_id", sa.Integer),
            **MYSQL,
        )
    indexes = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("guests")}
    for guests_column in ("host_id", "instance_uuid", "handle_id"):
        if f"ix_guests_{guests_column}" not in indexes:
            op.create_index(f"ix_guests_{guests_column}", "guests", [guests_column])
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
    if not inspector.has_table("dirty_units"):
        # The units that were not cleaned since their last guest; they outlive their rows.
        op.create_table("dirty_units", *_dirty_units(), sqlite_autoincrement=True, **MYSQL)
    indexes = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("dirty_units")}
    for column_name in ("hostname", "number"):
        name = f"ix_dirty_units_{column_name}"
        if name not in indexes:
            op.create_index(name, "dirty_units", [column_name])
    # Not with the table: an upgrade that is killed between the two statements is run again.
    name = "ix_device_profile_projects_project_id"
    projects = sa.inspect(op.get_bind()).get_indexes("device_profile_projects")
    if name not in {index["name"] for index in projects}:
        op.create_index(name, "device_profile_projects", ["project_id"])


def _dirty_units() -> tuple[sa.schema.SchemaItem, ...]:
    return (
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("handle_uuid", sa.String(36), nullable=False),
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column("driver", sa.String(100), nullable=False),
        sa.Column("device_key", sa.String(255), nullable=False),
        sa.Column("handle_key", sa.String(255), nullable=False),
        sa.Column("attach_info", sa.String(255), nullable=False),
        sa.Column("vendor", sa.String(255), nullable=False),
        sa.Column("identity", sa.JSON(none_as_null=True)),
        sa.Column("number", sa.String(255)),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("arq_uuid", sa.String(36)),
        sa.Column("instance_uuid", sa.String(36)),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("fault", sa.Text),
        sa.UniqueConstraint("handle_uuid", name="uniq_dirty_units0handle_uuid"),
    )
