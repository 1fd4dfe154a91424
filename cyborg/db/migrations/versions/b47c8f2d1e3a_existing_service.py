# SPDX-License-Identifier: Apache-2.0
"""The schema of the existing service, release 17.0.0, as its own revisions create it.

A database of that service is already at this revision. On MySQL and MariaDB a new database gets the
same columns, keys and character set. PostgreSQL and SQLite never had this schema, because the
existing service cannot create it there, so enumerations are strings on them from the start.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "b47c8f2d1e3a"
down_revision = None


_METADATA = sa.MetaData()


def upgrade() -> None:
    """Create the missing tables; an interrupted run can be repeated."""
    _METADATA.create_all(op.get_bind())


def _words(length: int, *words: str) -> sa.types.TypeEngine[str]:
    enum = mysql.ENUM(*words)
    return sa.String(length).with_variant(enum, "mysql", "mariadb")


def _column(
    name: str, type_: type[sa.Integer | sa.Text] | sa.types.TypeEngine[Any], *rest: sa.ForeignKey
) -> sa.Column[Any]:
    return sa.Column(name, type_, *rest, nullable=False)


def _table(name: str, *items: sa.schema.SchemaItem) -> None:
    sa.Table(
        name,
        _METADATA,
        sa.Column("created_at", sa.DateTime),
        sa.Column("updated_at", sa.DateTime),
        sa.Column("id", sa.Integer, primary_key=True),
        *items,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb3",
    )


_TYPES = _words(16, "GPU", "FPGA", "AICHIP", "QAT", "NIC", "SSD", "MDEV", "PCI", "NVME")
_DEVICE_STATES = _words(32, "available", "allocated", "pending_cleaning", "cleaning", "error")
_table(
    "devices",
    _column("uuid", sa.String(36)),
    _column("type", _TYPES),
    _column("vendor", sa.String(255)),
    _column("model", sa.String(255)),
    sa.Column("std_board_info", sa.Text),
    sa.Column("vendor_board_info", sa.Text),
    _column("hostname", sa.String(255)),
    _column("status", _words(16, "enabled", "maintaining")),
    sa.Column("device_state", _DEVICE_STATES),
    sa.UniqueConstraint("uuid"),
)
_table(
    "deployables",
    _column("uuid", sa.String(36)),
    sa.Column("parent_id", sa.Integer, sa.ForeignKey("deployables.id", ondelete="CASCADE")),
    sa.Column("root_id", sa.Integer, sa.ForeignKey("deployables.id", ondelete="CASCADE")),
    _column("name", sa.String(255)),
    _column("num_accelerators", sa.Integer),
    _column("device_id", sa.Integer, sa.ForeignKey("devices.id")),
    sa.Column("rp_uuid", sa.String(36)),
    sa.Column("driver_name", sa.String(100)),
    sa.Column("bitstream_id", sa.String(36)),
    sa.UniqueConstraint("uuid"),
    sa.Index("deployables_parent_id_idx", "parent_id"),
    sa.Index("deployables_device_id_idx", "device_id"),
    sa.Index("deployables_root_id_idx", "root_id"),
)
_table(
    "attributes",
    _column("uuid", sa.String(36)),
    _column("deployable_id", sa.Integer, sa.ForeignKey("deployables.id")),
    _column("key", sa.Text),
    _column("value", sa.Text),
    sa.UniqueConstraint("uuid"),
    sa.Index("ix_attributes_deployable_id", "deployable_id"),
)
_table(
    "controlpath_ids",
    _column("uuid", sa.String(36)),
    _column("device_id", sa.Integer, sa.ForeignKey("devices.id")),
    _column("cpid_type", _words(16, "PCI")),
    _column("cpid_info", sa.String(255)),
    sa.UniqueConstraint("uuid"),
    sa.Index("ix_controlpath_ids_device_id", "device_id"),
)
_table(
    "attach_handles",
    _column("uuid", sa.String(36)),
    _column("deployable_id", sa.Integer, sa.ForeignKey("deployables.id")),
    _column("cpid_id", sa.Integer, sa.ForeignKey("controlpath_ids.id")),
    sa.Column("in_use", sa.Boolean),
    _column("attach_type", _words(16, "PCI", "MDEV", "TEST_PCI")),
    _column("attach_info", sa.String(255)),
    sa.UniqueConstraint("uuid"),
    sa.Index("attach_handles_deployable_id_idx", "deployable_id"),
    sa.Index("attach_handles_cpid_id_idx", "cpid_id"),
)
_ARQ_STATES = _words(16, "Initial", "BindStarted", "Bound", "Unbound", "BindFailed", "Deleting")
_table(
    "device_profiles",
    _column("uuid", sa.String(36)),
    _column("name", sa.String(255)),
    _column("profile_json", sa.Text),
    sa.Column("description", sa.Text),
    sa.UniqueConstraint("uuid", name="uniq_device_profiles0uuid"),
    sa.UniqueConstraint("name", name="uniq_device_profiles0name"),
)
_table(
    "extended_accelerator_requests",
    _column("uuid", sa.String(36)),
    sa.Column("project_id", sa.String(255)),
    _column("state", _ARQ_STATES),
    _column("device_profile_id", sa.Integer, sa.ForeignKey("device_profiles.id")),
    sa.Column("hostname", sa.String(255)),
    sa.Column("device_rp_uuid", sa.String(36)),
    sa.Column("attach_handle_id", sa.Integer, sa.ForeignKey("attach_handles.id")),
    _column("substate", _words(16, "Initial")),
    sa.Column("deployable_id", sa.Integer, sa.ForeignKey("deployables.id")),
    _column("device_profile_group_id", sa.Integer),
    sa.Column("instance_uuid", sa.String(36)),
    sa.UniqueConstraint("uuid"),
    sa.Index("extArqs_device_profile_id_idx", "device_profile_id"),
    sa.Index("extArqs_device_rp_uuid_idx", "device_rp_uuid"),
    sa.Index("extArqs_attach_handle_id_idx", "attach_handle_id"),
    sa.Index("extArqs_deployable_id_idx", "deployable_id"),
    sa.Index("extArqs_project_id_idx", "project_id"),
    sa.Index("extArqs_instance_uuid_idx", "instance_uuid"),
)
_table(
    "quota_usages",
    sa.Column("project_id", sa.String(255)),
    sa.Column("user_id", sa.String(255)),
    _column("resource", sa.String(255)),
    _column("in_use", sa.Integer),
    _column("reserved", sa.Integer),
    sa.Column("until_refresh", sa.Integer),
    sa.Index("ix_quota_usages_project_id", "project_id"),
    sa.Index("ix_quota_usages_user_id", "user_id"),
)
_table(
    "reservations",
    _column("uuid", sa.String(36)),
    _column("usage_id", sa.Integer, sa.ForeignKey("quota_usages.id")),
    sa.Column("project_id", sa.String(255)),
    sa.Column("user_id", sa.String(255)),
    sa.Column("resource", sa.String(255)),
    _column("delta", sa.Integer),
    sa.Column("expire", sa.DateTime),
    sa.Index("ix_reservations_project_id", "project_id"),
    sa.Index("ix_reservations_user_id", "user_id"),
    sa.Index("reservations_uuid_idx", "uuid"),
    sa.Index("usage_id", "usage_id"),
)
