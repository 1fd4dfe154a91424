# SPDX-License-Identifier: Apache-2.0
"""Define the tables, including unused ones that are kept from the existing service."""

import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from cyborg.db.base import (
    MYSQL,
    Base,
    Dated,
    Id,
    Json,
    Milliseconds,
    String64,
    String100,
    String255,
    Text,
    UniqueUuid,
    Uuid,
    Word,
)
from cyborg.model.arq import BINDING

#: The states in which an ARQ has an instance, as a list of SQL.
_BINDING: Final = ", ".join(f"'{state}'" for state in sorted(BINDING))


class QuotaUsage(Dated, Base):
    """Usage of a quota; a table of the existing service that is not used."""

    __tablename__ = "quota_usages"
    id: Mapped[Id]
    project_id: Mapped[str | None] = mapped_column(sa.String(255), index=True)
    user_id: Mapped[str | None] = mapped_column(sa.String(255), index=True)
    resource: Mapped[String255]
    in_use: Mapped[int]
    reserved: Mapped[int]
    until_refresh: Mapped[int | None]


class Reservation(Dated, Base):
    """Reserved part of a quota; a table of the existing service that is not used."""

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


class Host(Base):
    """A compute host; ``name`` is its provider's name in Placement."""

    __tablename__ = "hosts"
    id: Mapped[Id]
    name: Mapped[str] = mapped_column(sa.String(255), unique=True)
    service_host: Mapped[str | None] = mapped_column(sa.String(255), unique=True)
    generation: Mapped[int] = mapped_column(sa.BigInteger, server_default=sa.text("0"))
    desired_generation: Mapped[int] = mapped_column(sa.BigInteger, server_default=sa.text("1"))
    digest: Mapped[String64 | None]
    updated_ms: Mapped[Milliseconds]
    #: After a restore of the database, until an audit has compared the host with Placement.
    unchecked: Mapped[bool] = mapped_column(server_default=sa.false())
    #: The boot of the host for which ``guests`` has the processes; NULL: none was reported.
    boot_id: Mapped[Uuid | None]


class Guest(Base):
    """A guest that runs on a host, or a unit that a process of the host has.

    A guest has one row without a handle, and one for each of its units.
    """

    __tablename__ = "guests"
    id: Mapped[Id]
    host_id: Mapped[int] = mapped_column(sa.ForeignKey("hosts.id", ondelete="CASCADE"), index=True)
    instance_uuid: Mapped[Uuid | None] = mapped_column(index=True)
    process: Mapped[String255]
    handle_id: Mapped[int | None] = mapped_column(index=True)


class HostReadings(Base):
    """What the devices of a host measured last; ``figures`` has those of each by its uuid."""

    __tablename__ = "readings"
    __table_args__ = MYSQL
    host_id: Mapped[int] = mapped_column(
        sa.ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    at_ms: Mapped[Milliseconds]
    figures: Mapped[dict[str, dict[str, float]] | None] = mapped_column(Json)


class Service(Base):
    """A process, its lease, and the status that it last reported."""

    __tablename__ = "services"
    __table_args__ = (
        sa.UniqueConstraint("host", "binary", "process"),
        Base.__table_args__,
    )
    id: Mapped[Id]
    uuid: Mapped[UniqueUuid]
    host: Mapped[String255]
    binary: Mapped[String64]
    process: Mapped[str] = mapped_column(sa.String(64), server_default="")
    version: Mapped[String64 | None]
    endpoint: Mapped[String255 | None]
    status: Mapped[Word]
    #: Why the status is FAILED.
    status_reason: Mapped[Text | None]
    #: Whether the host of an agent is in service: a :class:`~cyborg.model.process.HostStatus`.
    host_status: Mapped[Word] = mapped_column(server_default="enabled")
    #: Why it is not.
    disabled_reason: Mapped[Text | None]
    epoch: Mapped[int] = mapped_column(sa.BigInteger, server_default=sa.text("0"))
    last_seen_ms: Mapped[int] = mapped_column(sa.BigInteger, index=True)
    #: Why the process receives no requests over the message bus, and since when; NULL: it does.
    bus_error: Mapped[Text | None]
    bus_error_ms: Mapped[Milliseconds | None]
    #: Why conductors have refused its messages since its last heartbeat: a clock is wrong.
    clock_error: Mapped[Text | None]
    #: Why an agent cannot publish in Placement, and since when; NULL: it can.
    publish_error: Mapped[Text | None]
    publish_error_ms: Mapped[Milliseconds | None]
    #: When a notification said that the service is down; NULL: none did, or it is up again.
    reported_down_ms: Mapped[Milliseconds | None]


class Device(Dated, Base):
    """A device of a host: a card or a PCI function."""

    __tablename__ = "devices"
    __table_args__ = (sa.UniqueConstraint("host_id", "driver", "device_key"), Base.__table_args__)
    id: Mapped[Id]
    uuid: Mapped[UniqueUuid]
    host_id: Mapped[int] = mapped_column(sa.ForeignKey("hosts.id"))
    driver: Mapped[String100]
    backend: Mapped[String255 | None]
    device_key: Mapped[String255]
    type: Mapped[str] = mapped_column(sa.String(16), index=True)
    vendor: Mapped[str] = mapped_column(sa.String(255), index=True)
    model: Mapped[String255]
    std_board_info: Mapped[Text | None]
    vendor_board_info: Mapped[Text | None]
    hostname: Mapped[str] = mapped_column(sa.String(255), index=True)
    status: Mapped[str] = mapped_column(sa.String(16), index=True)
    status_reason: Mapped[Text | None]
    lost_ms: Mapped[Milliseconds | None]
    numa_node: Mapped[int | None]
    labels: Mapped[dict[str, str] | None] = mapped_column(Json)
    origin: Mapped[str] = mapped_column(sa.String(16), server_default="discovered")
    being_removed: Mapped[bool] = mapped_column(server_default=sa.false())
    device_state: Mapped[str | None] = mapped_column(sa.String(32))
    #: The health that decides about its units, one reason to a line, since when; NULL: not known.
    health: Mapped[Word | None]
    health_reason: Mapped[Text | None]
    health_ms: Mapped[Milliseconds | None]
    #: The health that the agent last reported, and its reasons.
    reported_health: Mapped[Word | None]
    reported_health_reason: Mapped[Text | None]
    #: When the probation, or the ignoring of faults, ends; NULL: neither of them.
    health_until_ms: Mapped[Milliseconds | None] = mapped_column(index=True)
    #: The times at which faults took the device out of service; NULL: none did.
    health_faults: Mapped[list[int] | None] = mapped_column(Json)
    #: A list of {kind, value, confidence}, and an object of PCI addresses; NULL: not known.
    identity: Mapped[list[dict[str, str]] | None] = mapped_column(Json)
    topology: Mapped[dict[str, Any] | None] = mapped_column(Json)
    #: The capacity that its units share: name → size; NULL: they share none.
    pools: Mapped[dict[str, int] | None] = mapped_column(Json)


class Deployable(Dated, Base):
    """A part of a device that offers units; one resource provider in Placement."""

    __tablename__ = "deployables"
    id: Mapped[Id]
    uuid: Mapped[UniqueUuid]
    parent_id: Mapped[int | None] = mapped_column(
        sa.ForeignKey("deployables.id", ondelete="CASCADE")
    )
    root_id: Mapped[int | None] = mapped_column(sa.ForeignKey("deployables.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(sa.String(255), unique=True)
    #: The name that the driver uses; NULL: it is ``name``, because the device has not moved.
    key: Mapped[String255 | None]
    num_accelerators: Mapped[int]
    device_id: Mapped[int] = mapped_column(sa.ForeignKey("devices.id"))
    rp_uuid: Mapped[str | None] = mapped_column(sa.String(36), unique=True)
    driver_name: Mapped[String100 | None]
    bitstream_id: Mapped[Uuid | None]
    resource_class: Mapped[String255]
    prepare: Mapped[bool] = mapped_column(server_default=sa.false())
    programmable: Mapped[bool] = mapped_column(server_default=sa.false())
    lost_ms: Mapped[Milliseconds | None]
    publish_error: Mapped[Text | None]
    #: What the agent has published: the total, and how many units are reserved; NULL: nothing.
    published_total: Mapped[int | None]
    published_reserved: Mapped[int | None]
    #: What each unit takes of the pools of its device: name → amount; NULL: nothing.
    cost: Mapped[dict[str, int] | None] = mapped_column(Json)
    #: How many units a guest takes at a time; NULL: one.
    group_size: Mapped[int | None]
    #: How the host cleans a unit after its guest, see ``HostClean``; NULL: it cannot.
    clean: Mapped[Word | None]
    #: The traits that name the product, in the order of its driver; NULL: none does.
    product_traits: Mapped[list[str] | None] = mapped_column(Json)


sa.Index("deployables_parent_id_idx", Deployable.parent_id)
sa.Index("deployables_root_id_idx", Deployable.root_id)
sa.Index("deployables_device_id_idx", Deployable.device_id)


class Attribute(Dated, Base):
    """A key and value of a deployable, discovered or added by an operator."""

    __tablename__ = "attributes"
    id: Mapped[Id]
    uuid: Mapped[UniqueUuid]
    deployable_id: Mapped[int] = mapped_column(sa.ForeignKey("deployables.id"), index=True)
    key: Mapped[Text]
    value: Mapped[Text]
    origin: Mapped[str] = mapped_column(sa.String(16), server_default="discovered")


class ControlpathId(Dated, Base):
    """The control path of a device."""

    __tablename__ = "controlpath_ids"
    id: Mapped[Id]
    uuid: Mapped[UniqueUuid]
    device_id: Mapped[int] = mapped_column(sa.ForeignKey("devices.id"), index=True)
    cpid_type: Mapped[Word]
    cpid_info: Mapped[String255]


class AttachHandle(Dated, Base):
    """A unit that a guest gets; ``arq_id`` is the only record of the ARQ that has it."""

    __tablename__ = "attach_handles"
    __table_args__ = (sa.UniqueConstraint("deployable_id", "handle_key"), Base.__table_args__)
    id: Mapped[Id]
    uuid: Mapped[UniqueUuid]
    deployable_id: Mapped[int] = mapped_column(sa.ForeignKey("deployables.id"))
    cpid_id: Mapped[int] = mapped_column(sa.ForeignKey("controlpath_ids.id"))
    attach_type: Mapped[Word]
    attach_info: Mapped[String255]
    #: The ARQ that has the unit, or waits until it is released; NULL: no ARQ.
    arq_id: Mapped[int | None] = mapped_column(
        sa.ForeignKey("extended_accelerator_requests.id", ondelete="SET NULL"), unique=True
    )
    state: Mapped[str] = mapped_column(sa.String(16), server_default="ready")
    handle_key: Mapped[String255]
    lost_ms: Mapped[Milliseconds | None]
    #: The pools of its device have no room for this unit, which no ARQ has.
    blocked: Mapped[bool] = mapped_column(server_default=sa.false())
    #: The host cleans the unit; it is reserved meanwhile.
    cleaning: Mapped[bool] = mapped_column(server_default=sa.false())
    #: The last cleaning, see ``CleanRecord``, and its time; NULL: there was none.
    clean_record: Mapped[dict[str, Any] | None] = mapped_column(Json)
    clean_ms: Mapped[Milliseconds | None]
    #: In quarantine because a server without an ARQ may have the unit, see ``unknown-holder``.
    suspect: Mapped[bool] = mapped_column(server_default=sa.false())


sa.Index("attach_handles_cpid_id_idx", AttachHandle.cpid_id)
sa.Index("attach_handles_deployable_id_idx", AttachHandle.deployable_id)
# For the claim of a bind: the handles of one deployable that no ARQ has, in order of state and id.
sa.Index(None, AttachHandle.deployable_id, AttachHandle.arq_id, AttachHandle.state, AttachHandle.id)


class DirtyUnit(Base):
    """A unit that has had a guest, and was not cleaned since: a fact about a place on a host.

    It has no foreign key, because it outlives the rows of its handle, device, driver and host.
    """

    __tablename__ = "dirty_units"
    id: Mapped[Id]
    #: The handle that the unit has, or had last.
    handle_uuid: Mapped[UniqueUuid]
    hostname: Mapped[str] = mapped_column(sa.String(255), index=True)
    driver: Mapped[String100]
    device_key: Mapped[String255]
    handle_key: Mapped[String255]
    attach_info: Mapped[String255]
    vendor: Mapped[String255]
    #: The identity of the device, as in ``devices``, and the strongest number that moves with it.
    identity: Mapped[list[dict[str, str]] | None] = mapped_column(Json)
    number: Mapped[str | None] = mapped_column(sa.String(255), index=True)
    #: How it must be cleaned, see ``CleanLevel``.
    level: Mapped[Word]
    #: The ARQ and the instance that have, or had, the unit.
    arq_uuid: Mapped[Uuid | None]
    instance_uuid: Mapped[Uuid | None]
    since_ms: Mapped[Milliseconds]
    #: Why the last attempt to clean it has failed.
    fault: Mapped[Text | None]


class DeviceProfile(Dated, Base):
    """A named request for accelerators; ``profile_json`` holds ``{"groups": [...]}``.

    All projects use it, unless it is private.
    """

    __tablename__ = "device_profiles"
    id: Mapped[Id]
    uuid: Mapped[UniqueUuid]
    name: Mapped[str] = mapped_column(sa.String(255), unique=True)
    profile_json: Mapped[Text]
    description: Mapped[Text | None]
    private: Mapped[bool] = mapped_column(server_default=sa.false())


class ProfileProject(Base):
    """A project that may use a private device profile."""

    __tablename__ = "device_profile_projects"
    __table_args__ = MYSQL
    device_profile_id: Mapped[int] = mapped_column(
        sa.ForeignKey("device_profiles.id", ondelete="CASCADE"), primary_key=True
    )
    project_id: Mapped[str] = mapped_column(sa.String(64), primary_key=True, index=True)


class Arq(Dated, Base):
    """An accelerator request; ``AttachHandle.arq_id`` tells which unit it has."""

    __tablename__ = "extended_accelerator_requests"
    __table_args__ = (
        sa.CheckConstraint(
            f"state NOT IN ({_BINDING}) OR instance_uuid IS NOT NULL",
            name="bound_to_instance",
        ),
        Base.__table_args__,
    )
    id: Mapped[Id]
    uuid: Mapped[UniqueUuid]
    project_id: Mapped[String255 | None]
    state: Mapped[Word]
    device_profile_id: Mapped[int] = mapped_column(sa.ForeignKey("device_profiles.id"))
    device_profile_group_id: Mapped[int]
    hostname: Mapped[str | None] = mapped_column(sa.String(255), index=True)
    device_rp_uuid: Mapped[Uuid | None]
    instance_uuid: Mapped[Uuid | None]
    substate: Mapped[str] = mapped_column(sa.String(16), server_default="Initial")
    deployable_id: Mapped[int | None] = mapped_column(sa.ForeignKey("deployables.id"))
    group_spec: Mapped[dict[str, str] | None] = mapped_column(Json)
    prepared: Mapped[bool] = mapped_column(server_default=sa.false())
    origin: Mapped[Word | None]
    hidden: Mapped[bool] = mapped_column(server_default=sa.false())
    fault: Mapped[Text | None]
    operation_id: Mapped[Uuid | None]


sa.Index("extArqs_project_id_idx", Arq.project_id)
sa.Index("extArqs_device_profile_id_idx", Arq.device_profile_id)
sa.Index("extArqs_device_rp_uuid_idx", Arq.device_rp_uuid)
sa.Index("extArqs_instance_uuid_idx", Arq.instance_uuid)
sa.Index("extArqs_deployable_id_idx", Arq.deployable_id)
sa.Index(None, Arq.state, Arq.id)
# For the unbound ARQs of a project.
sa.Index(None, Arq.project_id, Arq.instance_uuid)


class Instance(Base):
    """An instance that has, or had, accelerators; its lock serialises bind and delete.

    It is bound while an ARQ has it. ``name`` and ``status`` are Nova's answer at ``seen_ms``. The
    next look-up is at ``look_ms``, which is 0 when there was none since the bind; NULL: none is
    due.
    """

    __tablename__ = "instances"
    __table_args__ = MYSQL
    uuid: Mapped[str] = mapped_column(sa.String(36), primary_key=True)
    name: Mapped[String255 | None]
    status: Mapped[String64 | None]
    seen_ms: Mapped[Milliseconds | None]
    look_ms: Mapped[Milliseconds | None] = mapped_column(server_default=sa.text("0"), index=True)
    project_id: Mapped[String255 | None]
    hostname: Mapped[String255 | None]
    operation_id: Mapped[Uuid | None]
    updated_ms: Mapped[Milliseconds]
    #: The boots of its host in which it was reported without a unit, and repaired.
    unattached_boot: Mapped[Uuid | None]
    repaired_boot: Mapped[Uuid | None]


class Project(Base):
    """A project that has requested accelerators; the lock on the row serialises its limits."""

    __tablename__ = "projects"
    __table_args__ = MYSQL
    id: Mapped[str] = mapped_column(sa.String(255), primary_key=True)


class Work(Base):
    """Work to do after a commit, with its owner and fencing number."""

    __tablename__ = "work"
    id: Mapped[Id]
    uuid: Mapped[UniqueUuid]
    kind: Mapped[str] = mapped_column(sa.String(32))
    instance_uuid: Mapped[str | None] = mapped_column(sa.String(36), index=True)
    arq_uuid: Mapped[str | None] = mapped_column(sa.String(36), index=True)
    host_id: Mapped[int | None] = mapped_column(sa.ForeignKey("hosts.id"), index=True)
    deployable_id: Mapped[int | None] = mapped_column(sa.ForeignKey("deployables.id"), index=True)
    attach_handle_id: Mapped[int | None] = mapped_column(
        sa.ForeignKey("attach_handles.id"), index=True
    )
    spec: Mapped[dict[str, Any] | None] = mapped_column(Json)
    owner_id: Mapped[int | None] = mapped_column(
        sa.ForeignKey("services.id", ondelete="SET NULL"), index=True
    )
    owner_epoch: Mapped[int | None] = mapped_column(sa.BigInteger)
    fence: Mapped[int] = mapped_column(sa.BigInteger, server_default=sa.text("0"))
    attempts: Mapped[int] = mapped_column(server_default=sa.text("0"))
    not_before_ms: Mapped[Milliseconds]
    deadline_ms: Mapped[Milliseconds | None]
    created_ms: Mapped[Milliseconds]
    error: Mapped[Text | None]
    operation_id: Mapped[str | None] = mapped_column(sa.String(36), index=True)


sa.Index(None, Work.not_before_ms, Work.id)


class Event(Base):
    """An event of the append-only history: who had which device when."""

    __tablename__ = "events"
    id: Mapped[Id]
    at_ms: Mapped[int] = mapped_column(sa.BigInteger, index=True)
    noun: Mapped[Word]
    subject_uuid: Mapped[Uuid]
    action: Mapped[str] = mapped_column(sa.String(32))
    project_id: Mapped[String255 | None]
    user_id: Mapped[String255 | None]
    request_id: Mapped[String64 | None]
    operation_id: Mapped[str | None] = mapped_column(sa.String(36), index=True)
    instance_uuid: Mapped[str | None] = mapped_column(sa.String(36), index=True)
    hostname: Mapped[String255 | None]
    reason: Mapped[Text | None]
    detail: Mapped[dict[str, Any] | None] = mapped_column(Json)
    #: The device that the event concerns, for events of every noun.
    device_uuid: Mapped[str | None] = mapped_column(sa.String(36))
    #: When it is deleted before the end of the retention period; NULL: it is not.
    expires_ms: Mapped[int | None] = mapped_column(sa.BigInteger, index=True)


sa.Index(None, Event.subject_uuid, Event.id)
sa.Index(None, Event.device_uuid, Event.id)
sa.Index(None, Event.hostname, Event.id)
sa.Index(None, Event.request_id)


class Outbox(Base):
    """An event that is not sent as a notification yet; the row is deleted with its event."""

    __tablename__ = "outbox"
    __table_args__ = MYSQL
    event_id: Mapped[int] = mapped_column(
        sa.ForeignKey("events.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )


class UsageRecord(Base):
    """The time for which an ARQ had a unit, with what the unit and its holder were at its begin.

    The history has the same two moments, but not whose unit it was, and it is deleted long before
    an invoice is questioned. ``arq_id`` is the ARQ while it has the unit: so an ARQ has one open
    use at most, and cannot be removed before the use is ended.
    """

    __tablename__ = "usage_records"
    __table_args__ = (
        sa.CheckConstraint(
            "(arq_id IS NULL) = (ended_ms IS NOT NULL)",
            name="open_while_held",
        ),
        Base.__table_args__,
    )
    id: Mapped[Id]
    arq_id: Mapped[int | None] = mapped_column(
        sa.ForeignKey("extended_accelerator_requests.id"), unique=True
    )
    instance_uuid: Mapped[Uuid]
    project_id: Mapped[String255 | None]
    profile: Mapped[String255]
    resource_class: Mapped[String255]
    type: Mapped[Word]
    hostname: Mapped[String255]
    #: The times of the events that say that the ARQ got the unit, and that it gave it back.
    began_ms: Mapped[int] = mapped_column(sa.BigInteger)
    ended_ms: Mapped[int | None] = mapped_column(sa.BigInteger, index=True)


class UsageStart(Base):
    """From when on all uses have a ``UsageRecord``; the latest row counts. Without one all have.

    An upgrade from the existing service writes one, and so does the deletion of old uses.
    """

    __tablename__ = "usage_start"
    id: Mapped[Id]
    at_ms: Mapped[int] = mapped_column(sa.BigInteger)


class Driver(Base):
    """A driver on a host, as its agent last reported it and as the operator requests it."""

    __tablename__ = "drivers"
    __table_args__ = (sa.UniqueConstraint("host_id", "name"), Base.__table_args__)
    id: Mapped[Id]
    uuid: Mapped[UniqueUuid]
    host_id: Mapped[int] = mapped_column(sa.ForeignKey("hosts.id"))
    name: Mapped[String100]
    state: Mapped[Word]
    version: Mapped[String64 | None]
    device_type: Mapped[String64 | None]
    endpoint: Mapped[String255 | None]
    #: Whether operators request the driver; NULL: the configuration of the host decides.
    requested: Mapped[bool | None] = mapped_column()
    enabled: Mapped[bool] = mapped_column(server_default=sa.true())
    options: Mapped[Any | None] = mapped_column(Json)
    #: What operators may set: a list of objects with name, group, type, default and help.
    accepts: Mapped[Any | None] = mapped_column(Json)
    error: Mapped[Text | None]
    discovered_ms: Mapped[Milliseconds | None]


class Backend(Base):
    """A backend of a driver."""

    __tablename__ = "backends"
    __table_args__ = (sa.UniqueConstraint("driver_id", "name"), Base.__table_args__)
    id: Mapped[Id]
    uuid: Mapped[UniqueUuid]
    driver_id: Mapped[int] = mapped_column(sa.ForeignKey("drivers.id"))
    name: Mapped[String255]
    state: Mapped[Word]
    services: Mapped[Any | None] = mapped_column(Json)
    capabilities: Mapped[Any | None] = mapped_column(Json)
    #: Attach type of accelerators that operators create there; NULL: operators cannot create any.
    creates: Mapped[Word | None]
    discovered_ms: Mapped[Milliseconds | None]


class Hardware(Base):
    """A physical device of a host, with ``offered`` and the reason when it is not."""

    __tablename__ = "hardware"
    __table_args__ = (sa.UniqueConstraint("host_id", "driver", "hardware_key"), Base.__table_args__)
    id: Mapped[Id]
    uuid: Mapped[UniqueUuid]
    host_id: Mapped[int] = mapped_column(sa.ForeignKey("hosts.id"))
    driver: Mapped[String100]
    hardware_key: Mapped[String255]
    device_type: Mapped[String64 | None]
    offered: Mapped[bool]
    setup_required: Mapped[bool]
    reboot_required: Mapped[bool]
    reason: Mapped[Text | None]
    acc_specs: Mapped[Any | None] = mapped_column(Json)
    acc_status: Mapped[Any | None] = mapped_column(Json)
    seen_ms: Mapped[Milliseconds]


class Operation(Base):
    """A long-running request of an operator (``verb``) to one or more hosts."""

    __tablename__ = "operations"
    id: Mapped[Id]
    uuid: Mapped[UniqueUuid]
    verb: Mapped[String64]
    state: Mapped[Word]
    project_id: Mapped[String255 | None]
    user_id: Mapped[String255 | None]
    request_id: Mapped[String64 | None]
    steps: Mapped[Any | None] = mapped_column(Json)
    error: Mapped[Text | None]
    created_ms: Mapped[int] = mapped_column(sa.BigInteger, index=True)
    finished_ms: Mapped[Milliseconds | None]
    #: The objects of the operation by type: {"driver": ..., "device": ..., "instance": ...}.
    subject: Mapped[Any | None] = mapped_column(Json)


class OperationResult(Base):
    """The result of an operation on one host."""

    __tablename__ = "operation_results"
    __table_args__ = (sa.UniqueConstraint("operation_id", "host"), Base.__table_args__)
    id: Mapped[Id]
    operation_id: Mapped[int] = mapped_column(sa.ForeignKey("operations.id", ondelete="CASCADE"))
    host: Mapped[String255]
    state: Mapped[Word]
    result: Mapped[Any | None] = mapped_column(Json)
    error: Mapped[Text | None]


#: All tables, including the unused ones.
METADATA = Base.metadata
