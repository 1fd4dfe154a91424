# SPDX-License-Identifier: Apache-2.0
"""The schema after revision c58e1f7a3b92, which never changes.

It is separate from the models on purpose: the models follow the newest revision.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import SchemaItem

from cyborg.db.base import MYSQL, NAMING

METADATA = sa.MetaData(naming_convention=NAMING)

_CASCADE = "CASCADE"
_JSON = sa.JSON(none_as_null=True)


def _table(name: str, *items: SchemaItem) -> sa.Table:
    key = sa.Column("id", sa.Integer, primary_key=True)
    return sa.Table(name, METADATA, key, *items, sqlite_autoincrement=True, **MYSQL)


def _dated(name: str, *items: SchemaItem) -> sa.Table:
    dates = sa.Column("created_at", sa.DateTime), sa.Column("updated_at", sa.DateTime)
    return _table(name, *dates, *items)


def _text(name: str, length: int, *, null: bool = False, **kw: Any) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=null, **kw)


def _long(name: str, *, null: bool = True) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=null)


def _flag(name: str, default: bool | None = None, *, null: bool = False) -> sa.Column[bool]:
    default_sql = None if default is None else (sa.true() if default else sa.false())
    return sa.Column(name, sa.Boolean, nullable=null, server_default=default_sql)


def _number(name: str, default: str | None = None, *, null: bool = False) -> sa.Column[int]:
    default_sql = None if default is None else sa.text(default)
    return sa.Column(name, sa.Integer, nullable=null, server_default=default_sql)


def _ms(name: str, default: str | None = None, *, null: bool = False) -> sa.Column[int]:
    default_sql = None if default is None else sa.text(default)
    return sa.Column(name, sa.BigInteger, nullable=null, server_default=default_sql)


def _reference(
    name: str, target: str, *, null: bool = False, ondelete: str | None = None
) -> sa.Column[int]:
    key = sa.ForeignKey(f"{target}.id", ondelete=ondelete)
    return sa.Column(name, sa.Integer, key, nullable=null)


# Tables that the existing service has.

DEVICES = _dated(
    "devices",
    _text("uuid", 36, unique=True),
    _text("type", 16),
    _text("vendor", 255),
    _text("model", 255),
    _long("std_board_info"),
    _long("vendor_board_info"),
    _text("hostname", 255),
    _text("status", 16),
    _text("device_state", 32, null=True),
    _reference("host_id", "hosts"),
    _text("driver", 100),
    _text("backend", 255, null=True),
    _text("device_key", 255),
    _long("status_reason"),
    _ms("lost_ms", null=True),
    _number("numa_node", null=True),
    sa.Column("labels", _JSON),
    _text("origin", 16, server_default="discovered"),
    _flag("being_removed", default=False),
    _text("health", 16, null=True),
    _long("health_reason"),
    _ms("health_ms", null=True),
    _text("reported_health", 16, null=True),
    _long("reported_health_reason"),
    _ms("health_until_ms", null=True),
    sa.Column("health_faults", _JSON),
    sa.Column("identity", _JSON),
    sa.Column("topology", _JSON),
    sa.Column("pools", _JSON),
    sa.UniqueConstraint("host_id", "driver", "device_key"),
    sa.Index("ix_devices_hostname", "hostname"),
    sa.Index("ix_devices_type", "type"),
    sa.Index("ix_devices_vendor", "vendor"),
    sa.Index("ix_devices_status", "status"),
    sa.Index("ix_devices_health_until_ms", "health_until_ms"),
)
DEPLOYABLES = _dated(
    "deployables",
    _text("uuid", 36, unique=True),
    _reference("parent_id", "deployables", null=True, ondelete=_CASCADE),
    _reference("root_id", "deployables", null=True, ondelete=_CASCADE),
    _text("name", 255, unique=True),
    _number("num_accelerators"),
    _reference("device_id", "devices"),
    _text("rp_uuid", 36, null=True, unique=True),
    _text("driver_name", 100, null=True),
    _text("bitstream_id", 36, null=True),
    _text("resource_class", 255),
    _flag("prepare", default=False),
    _flag("programmable", default=False),
    _ms("lost_ms", null=True),
    _long("publish_error"),
    _text("key", 255, null=True),
    sa.Column("cost", _JSON),
    _number("group_size", null=True),
    _text("clean", 16, null=True),
    sa.Column("product_traits", _JSON),
    _number("published_total", null=True),
    _number("published_reserved", null=True),
    sa.Index("deployables_parent_id_idx", "parent_id"),
    sa.Index("deployables_root_id_idx", "root_id"),
    sa.Index("deployables_device_id_idx", "device_id"),
)
ATTRIBUTES = _dated(
    "attributes",
    _text("uuid", 36, unique=True),
    _reference("deployable_id", "deployables"),
    _long("key", null=False),
    _long("value", null=False),
    _text("origin", 16, server_default="discovered"),
    sa.Index("ix_attributes_deployable_id", "deployable_id"),
)
CONTROLPATH_IDS = _dated(
    "controlpath_ids",
    _text("uuid", 36, unique=True),
    _reference("device_id", "devices"),
    _text("cpid_type", 16),
    _text("cpid_info", 255),
    sa.Index("ix_controlpath_ids_device_id", "device_id"),
)
ATTACH_HANDLES = _dated(
    "attach_handles",
    _text("uuid", 36, unique=True),
    _reference("deployable_id", "deployables"),
    _reference("cpid_id", "controlpath_ids"),
    _text("attach_type", 16),
    _text("attach_info", 255),
    _reference("arq_id", "extended_accelerator_requests", null=True, ondelete="SET NULL"),
    _text("state", 16, server_default="ready"),
    _text("handle_key", 255),
    _ms("lost_ms", null=True),
    _flag("blocked", default=False),
    _flag("cleaning", default=False),
    sa.Column("clean_record", _JSON),
    _ms("clean_ms", null=True),
    _flag("suspect", default=False),
    sa.UniqueConstraint("arq_id"),
    sa.UniqueConstraint("deployable_id", "handle_key"),
    sa.Index("attach_handles_cpid_id_idx", "cpid_id"),
    sa.Index("attach_handles_deployable_id_idx", "deployable_id"),
    sa.Index(
        "ix_attach_handles_deployable_id_arq_id_state_id", "deployable_id", "arq_id", "state", "id"
    ),
)
DEVICE_PROFILES = _dated(
    "device_profiles",
    _text("uuid", 36, unique=True),
    _text("name", 255, unique=True),
    _long("profile_json", null=False),
    _long("description"),
    _flag("private", default=False),
)
ARQS = _dated(
    "extended_accelerator_requests",
    _text("uuid", 36, unique=True),
    _text("project_id", 255, null=True),
    _text("state", 16),
    _reference("device_profile_id", "device_profiles"),
    _text("hostname", 255, null=True),
    _text("device_rp_uuid", 36, null=True),
    _text("substate", 16, server_default="Initial"),
    _reference("deployable_id", "deployables", null=True),
    _number("device_profile_group_id"),
    _text("instance_uuid", 36, null=True),
    sa.Column("group_spec", _JSON),
    _flag("prepared", default=False),
    _text("origin", 16, null=True),
    _flag("hidden", default=False),
    _long("fault"),
    _text("operation_id", 36, null=True),
    sa.CheckConstraint(
        "state NOT IN ('Bound', 'BindStarted') OR instance_uuid IS NOT NULL",
        name="bound_to_instance",
    ),
    sa.Index("extArqs_project_id_idx", "project_id"),
    sa.Index("extArqs_device_profile_id_idx", "device_profile_id"),
    sa.Index("extArqs_device_rp_uuid_idx", "device_rp_uuid"),
    sa.Index("extArqs_instance_uuid_idx", "instance_uuid"),
    sa.Index("extArqs_deployable_id_idx", "deployable_id"),
    sa.Index("ix_extended_accelerator_requests_hostname", "hostname"),
    sa.Index("ix_extended_accelerator_requests_state_id", "state", "id"),
    sa.Index(
        "ix_extended_accelerator_requests_project_id_instance_uuid", "project_id", "instance_uuid"
    ),
)
QUOTA_USAGES = _dated(
    "quota_usages",
    _text("project_id", 255, null=True),
    _text("user_id", 255, null=True),
    _text("resource", 255),
    _number("in_use"),
    _number("reserved"),
    _number("until_refresh", null=True),
    sa.Index("ix_quota_usages_project_id", "project_id"),
    sa.Index("ix_quota_usages_user_id", "user_id"),
)
RESERVATIONS = _dated(
    "reservations",
    _text("uuid", 36),
    _reference("usage_id", "quota_usages"),
    _text("project_id", 255, null=True),
    _text("user_id", 255, null=True),
    _text("resource", 255, null=True),
    _number("delta"),
    sa.Column("expire", sa.DateTime),
    sa.Index("ix_reservations_project_id", "project_id"),
    sa.Index("ix_reservations_user_id", "user_id"),
    sa.Index("reservations_uuid_idx", "uuid"),
    sa.Index("usage_id", "usage_id"),
)

# New tables.

HOSTS = _table(
    "hosts",
    _text("name", 255, unique=True),
    _text("service_host", 255, null=True, unique=True),
    _ms("generation", "0"),
    _ms("desired_generation", "1"),
    _text("digest", 64, null=True),
    _ms("updated_ms"),
    _flag("unchecked", default=False),
    _text("boot_id", 36, null=True),
)
SERVICES = _table(
    "services",
    _text("uuid", 36, unique=True),
    _text("host", 255),
    _text("binary", 64),
    _text("process", 64, server_default=""),
    _text("version", 64, null=True),
    _text("endpoint", 255, null=True),
    _text("status", 16),
    _text("host_status", 16, server_default="enabled"),
    _long("disabled_reason"),
    _ms("epoch", "0"),
    _ms("last_seen_ms"),
    _long("status_reason"),
    _long("bus_error"),
    _ms("bus_error_ms", null=True),
    _long("clock_error"),
    _long("publish_error"),
    _ms("publish_error_ms", null=True),
    _ms("reported_down_ms", null=True),
    sa.UniqueConstraint("host", "binary", "process"),
    sa.Index("ix_services_last_seen_ms", "last_seen_ms"),
)
INSTANCES = sa.Table(
    "instances",
    METADATA,
    sa.Column("uuid", sa.String(36), primary_key=True),
    _text("name", 255, null=True),
    _text("status", 64, null=True),
    _ms("seen_ms", null=True),
    _ms("look_ms", "0", null=True),
    _text("project_id", 255, null=True),
    _text("hostname", 255, null=True),
    _text("operation_id", 36, null=True),
    _ms("updated_ms"),
    _text("unattached_boot", 36, null=True),
    _text("repaired_boot", 36, null=True),
    sa.Index("ix_instances_look_ms", "look_ms"),
    **MYSQL,
)
WORK = _table(
    "work",
    _text("uuid", 36, unique=True),
    _text("kind", 32),
    _text("instance_uuid", 36, null=True, index=True),
    _text("arq_uuid", 36, null=True, index=True),
    _reference("host_id", "hosts", null=True),
    _reference("deployable_id", "deployables", null=True),
    _reference("attach_handle_id", "attach_handles", null=True),
    sa.Column("spec", _JSON),
    _reference("owner_id", "services", null=True, ondelete="SET NULL"),
    _ms("owner_epoch", null=True),
    _ms("fence", "0"),
    _number("attempts", "0"),
    _ms("not_before_ms"),
    _ms("deadline_ms", null=True),
    _ms("created_ms"),
    _long("error"),
    _text("operation_id", 36, null=True, index=True),
    sa.Index("ix_work_host_id", "host_id"),
    sa.Index("ix_work_deployable_id", "deployable_id"),
    sa.Index("ix_work_attach_handle_id", "attach_handle_id"),
    sa.Index("ix_work_owner_id", "owner_id"),
    sa.Index("ix_work_not_before_ms_id", "not_before_ms", "id"),
)
EVENTS = _table(
    "events",
    _ms("at_ms"),
    _text("noun", 16),
    _text("subject_uuid", 36),
    _text("action", 32),
    _text("project_id", 255, null=True),
    _text("user_id", 255, null=True),
    _text("request_id", 64, null=True),
    _text("operation_id", 36, null=True, index=True),
    _text("instance_uuid", 36, null=True, index=True),
    _text("hostname", 255, null=True),
    _long("reason"),
    sa.Column("detail", _JSON),
    _text("device_uuid", 36, null=True),
    _ms("expires_ms", null=True),
    sa.Index("ix_events_at_ms", "at_ms"),
    sa.Index("ix_events_subject_uuid_id", "subject_uuid", "id"),
    sa.Index("ix_events_device_uuid_id", "device_uuid", "id"),
    sa.Index("ix_events_hostname_id", "hostname", "id"),
    sa.Index("ix_events_request_id", "request_id"),
    sa.Index("ix_events_expires_ms", "expires_ms"),
)
DRIVERS = _table(
    "drivers",
    _text("uuid", 36, unique=True),
    _reference("host_id", "hosts"),
    _text("name", 100),
    _text("state", 16),
    _text("version", 64, null=True),
    _text("device_type", 64, null=True),
    _text("endpoint", 255, null=True),
    _flag("requested", null=True),
    _flag("enabled", default=True),
    sa.Column("options", _JSON),
    _long("error"),
    _ms("discovered_ms", null=True),
    sa.Column("accepts", _JSON),
    sa.UniqueConstraint("host_id", "name"),
)
BACKENDS = _table(
    "backends",
    _text("uuid", 36, unique=True),
    _reference("driver_id", "drivers"),
    _text("name", 255),
    _text("state", 16),
    sa.Column("services", _JSON),
    sa.Column("capabilities", _JSON),
    _text("creates", 16, null=True),
    _ms("discovered_ms", null=True),
    sa.UniqueConstraint("driver_id", "name"),
)
HARDWARE = _table(
    "hardware",
    _text("uuid", 36, unique=True),
    _reference("host_id", "hosts"),
    _text("driver", 100),
    _text("hardware_key", 255),
    _text("device_type", 64, null=True),
    _flag("offered"),
    _flag("setup_required"),
    _flag("reboot_required"),
    _long("reason"),
    sa.Column("acc_specs", _JSON),
    sa.Column("acc_status", _JSON),
    _ms("seen_ms"),
    sa.UniqueConstraint("host_id", "driver", "hardware_key"),
)
OPERATIONS = _table(
    "operations",
    _text("uuid", 36, unique=True),
    _text("verb", 64),
    _text("state", 16),
    _text("project_id", 255, null=True),
    _text("user_id", 255, null=True),
    _text("request_id", 64, null=True),
    sa.Column("steps", _JSON),
    _long("error"),
    _ms("created_ms"),
    _ms("finished_ms", null=True),
    sa.Column("subject", _JSON),
    sa.Index("ix_operations_created_ms", "created_ms"),
)
OPERATION_RESULTS = _table(
    "operation_results",
    _reference("operation_id", "operations", ondelete=_CASCADE),
    _text("host", 255),
    _text("state", 16),
    sa.Column("result", _JSON),
    _long("error"),
    sa.UniqueConstraint("operation_id", "host"),
)
PROJECTS = sa.Table(
    "projects", METADATA, sa.Column("id", sa.String(255), primary_key=True), **MYSQL
)
OUTBOX = sa.Table(
    "outbox",
    METADATA,
    sa.Column(
        "event_id",
        sa.Integer,
        sa.ForeignKey("events.id", ondelete=_CASCADE),
        primary_key=True,
        autoincrement=False,
    ),
    **MYSQL,
)
GUESTS = sa.Table(
    "guests",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    _reference("host_id", "hosts", ondelete=_CASCADE),
    _text("instance_uuid", 36, null=True, index=True),
    _text("process", 255),
    _number("handle_id", null=True),
    sa.Index("ix_guests_host_id", "host_id"),
    sa.Index("ix_guests_handle_id", "handle_id"),
    **MYSQL,
)
READINGS = sa.Table(
    "readings",
    METADATA,
    sa.Column(
        "host_id",
        sa.Integer,
        sa.ForeignKey("hosts.id", ondelete=_CASCADE),
        primary_key=True,
        autoincrement=False,
    ),
    _ms("at_ms"),
    sa.Column("figures", _JSON),
    **MYSQL,
)
DEVICE_PROFILE_PROJECTS = sa.Table(
    "device_profile_projects",
    METADATA,
    sa.Column(
        "device_profile_id",
        sa.Integer,
        sa.ForeignKey("device_profiles.id", ondelete=_CASCADE),
        primary_key=True,
    ),
    sa.Column("project_id", sa.String(64), primary_key=True),
    sa.Index("ix_device_profile_projects_project_id", "project_id"),
    **MYSQL,
)
DIRTY_UNITS = _table(
    "dirty_units",
    _text("handle_uuid", 36, unique=True),
    _text("hostname", 255, index=True),
    _text("driver", 100),
    _text("device_key", 255),
    _text("handle_key", 255),
    _text("attach_info", 255),
    _text("vendor", 255),
    sa.Column("identity", _JSON),
    _text("number", 255, null=True, index=True),
    _text("level", 16),
    _text("arq_uuid", 36, null=True),
    _text("instance_uuid", 36, null=True),
    _ms("since_ms"),
    _long("fault"),
)
USAGE_RECORDS = _table(
    "usage_records",
    _reference("arq_id", "extended_accelerator_requests", null=True),
    _text("instance_uuid", 36),
    _text("project_id", 255, null=True),
    _text("profile", 255),
    _text("resource_class", 255),
    _text("type", 16),
    _text("hostname", 255),
    _ms("began_ms"),
    _ms("ended_ms", null=True),
    sa.CheckConstraint(
        "(arq_id IS NULL) = (ended_ms IS NOT NULL)",
        name="open_while_held",
    ),
    sa.UniqueConstraint("arq_id"),
    sa.Index("ix_usage_records_ended_ms", "ended_ms"),
)
USAGE_START = _table("usage_start", _ms("at_ms"))

#: Each table comes after the tables that it refers to.
OLD = (
    DEVICES,
    DEPLOYABLES,
    ATTRIBUTES,
    CONTROLPATH_IDS,
    DEVICE_PROFILES,
    ARQS,
    ATTACH_HANDLES,
    QUOTA_USAGES,
    RESERVATIONS,
)
NEW = (
    HOSTS,
    SERVICES,
    INSTANCES,
    WORK,
    EVENTS,
    DRIVERS,
    BACKENDS,
    HARDWARE,
    OPERATIONS,
    OPERATION_RESULTS,
    PROJECTS,
    OUTBOX,
    GUESTS,
    READINGS,
    DEVICE_PROFILE_PROJECTS,
    DIRTY_UNITS,
    USAGE_RECORDS,
    USAGE_START,
)
