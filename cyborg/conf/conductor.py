# SPDX-License-Identifier: Apache-2.0
"""Options of [conductor], [audit] and [quota]: leases, devices, limits, retention times, audits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from oslo_config import cfg

from cyborg import exception
from cyborg.conf.default import metrics_listen
from cyborg.conf.group import OptionGroup, option

#: The choices of ``[conductor] repair_unattached``.
NOTIFY: Final = "notify"
REBOOT: Final = "reboot"


@dataclass(frozen=True)
class ConductorOptions(OptionGroup):
    """Options of a conductor; times are in seconds, and retentions in days."""

    GROUP: ClassVar[str] = "conductor"

    heartbeat: float = option(
        cfg.FloatOpt,
        default=1,
        min=0.1,
        help="Interval, in seconds, between two heartbeats that a conductor writes to the "
        "database. It must be shorter than lease. A small value adds load on the database.",
    )
    lease: float = option(
        cfg.FloatOpt,
        default=3,
        min=0.2,
        help="Time, in seconds, without a heartbeat after which other conductors take over "
        "the work of a conductor. It must be longer than heartbeat. Raise it if the database "
        "is slow; a small value makes other conductors take over sooner.",
    )
    agent_grace: float = option(
        cfg.FloatOpt,
        default=3600,
        min=0,
        help="Time, in seconds, without a heartbeat of an agent after which the conductor "
        "reserves in Placement every unit of its devices that the agent must prepare before "
        "use. The units are released when the agent returns. A small value prevents binds "
        "that would fail on this host; a large value tolerates longer maintenance of the "
        "agent. It must be longer than three times [agent] heartbeat_interval. With 0 the "
        "units are never reserved.",
    )
    repair_unattached: str = option(
        cfg.StrOpt,
        default=NOTIFY,
        choices=[
            (NOTIFY, "report the server; its owner or an operator reboots it"),
            (REBOOT, "report the server and reboot it hard, once for each boot of its host"),
        ],
        help="What to do about a server that runs without an accelerator that is bound to it. "
        "Nova starts such servers after a reboot of their host if "
        "resume_guests_state_on_host_boot is set. With 'reboot' the account in [nova] must be "
        "allowed to reboot the servers of all projects.",
    )
    instance_refresh: float = option(
        cfg.FloatOpt,
        default=300,
        min=0,
        help="Age, in seconds, at which a conductor refreshes the name and the state of an "
        "instance with accelerators from Nova, for the lists of devices. It refreshes them "
        "sooner after a bind and while Nova carries out a task on the instance. The "
        "conductors look up at most 20 instances in 10 seconds, one after the other, so with "
        "more than 600 instances the refresh takes longer than the default. A small value "
        "sends more requests to Nova. The account in [nova] must be allowed to see the "
        "servers of all projects. With 0 Nova is not asked, and names and states stay "
        "unknown.",
    )
    lost_retention: int = option(
        cfg.IntOpt,
        default=30,
        min=0,
        help="Time, in days, after which a device, or a part of a device, that its host no "
        "longer reports is removed from the database. Its providers are removed from "
        "Placement, unless something is allocated there. Until nova-compute reads its "
        "providers again ([compute] resource_provider_association_refresh), builds on that "
        "host may fail once. Choose a value that is longer than the repair of a device takes. "
        "With 0 lost devices are kept for ever.",
    )
    history_retention: int = option(
        cfg.IntOpt,
        default=90,
        min=0,
        help="Time, in days, after which history is deleted: events, ended operations, and "
        "the project of an instance that no longer has accelerators. If a server stays "
        "shelved for longer, its accelerator requests belong to the project that unshelves "
        "it. A large value needs more space in the database. With 0 history is kept for "
        "ever.",
    )
    usage_retention: int = option(
        cfg.IntOpt,
        default=400,
        min=0,
        help="Time, in days, after which the records of use are deleted: for how long which "
        "project had a unit, which GET /v2/usage sums up. Choose a value that is longer than the "
        "time in which an invoice can be questioned. Each bind of a unit adds one record, of about "
        "300 bytes. What is in use now is never deleted. With 0 the records are kept for ever.",
    )
    metrics_listen: str | None = metrics_listen()
    auto_enable: Sequence[str] = option(
        cfg.ListOpt,
        default=[],
        help="Names of drivers whose devices are enabled as soon as they are discovered, or "
        "'*' for all drivers. New devices of other drivers are inactive: they are in the "
        "database, reserved in Placement and cannot be bound until an operator enables them. "
        "Set it if no operator has to approve new devices. A change does not affect devices "
        "that are already in the database.",
    )
    clean_existing_units: bool = option(
        cfg.BoolOpt,
        default=False,
        help="Whether the first report of a host after an upgrade from the existing Cyborg "
        "service has the free units of the host cleaned before they are offered. The existing "
        "service did not clean units, so they can have data of former guests. Units that "
        "requests hold are not cleaned. Set it before the agents start: all free units are "
        "reserved until they are clean.",
    )
    provider_names: Mapping[str, str] = option(
        cfg.DictOpt,
        default={},
        help="Hosts whose own resource provider in Placement has another name than [DEFAULT] "
        "host: pairs of host and provider, like compute-1:node-7.example.org. Where messages "
        "must be signed, an agent can name no other provider and take over no other host.",
    )
    health_probation: float = option(
        cfg.FloatOpt,
        default=600,
        min=0,
        help="Time, in seconds, for which a device stays reserved after its fault is gone. "
        "Then its units are offered again without an operator, unless a fault has returned. "
        "Raise it if faults return after a longer time. With 0 a device is offered as soon as "
        "its agent reports no fault. The end of a probation is noticed within 10 seconds.",
    )
    health_faults: int = option(
        cfg.IntOpt,
        default=3,
        min=0,
        help="How many times faults must take a device out of service within "
        "health_fault_window until it is parked: it stays reserved until an operator releases "
        "it with 'cyborg accelerator-update --health auto'. A small value keeps unreliable "
        "devices from users sooner. With 0 no device is parked.",
    )
    health_fault_window: float = option(
        cfg.FloatOpt,
        default=24 * 3600,
        min=1,
        help="Time, in seconds, in which faults of a device count for health_faults. Older "
        "faults are forgotten. It should be longer than health_probation times health_faults, "
        "because a device cannot have a second fault counted during the first.",
    )
    max_arqs_per_request: int = option(
        cfg.IntOpt,
        default=256,
        min=1,
        help="Maximum number of accelerator requests that one API request may create. A "
        "request for a device profile that needs more gets 403. Raise it if a server gets "
        "more accelerators than this; a large value lets one request of any user add that "
        "many rows to the database.",
    )
    max_unbound_arqs: int = option(
        cfg.IntOpt,
        default=2000,
        min=1,
        help="Maximum number of accelerator requests of one project that are not bound to a "
        "server. A request that would exceed it gets 403. Nova binds its requests within "
        "seconds, so the number limits how many accelerators the servers that a project "
        "builds at the same time may need. A small value makes large parallel builds fail; a "
        "large value lets any user fill the database. Requests that stay unbound are deleted "
        "after [audit] unbound_age.",
    )


@dataclass(frozen=True)
class AuditOptions(OptionGroup):
    """Options of the audits; times are in seconds."""

    GROUP: ClassVar[str] = "audit"

    interval: float = option(
        cfg.FloatOpt,
        default=600,
        min=1,
        help="Interval, in seconds, between two audit passes. In each pass one of the "
        "conductors compares the database, Placement and Nova, and repairs the "
        "inconsistencies that can be repaired automatically. A small value finds "
        "inconsistencies sooner and adds load on all three.",
    )
    max_changes: int = option(
        cfg.IntOpt,
        default=50,
        min=0,
        help="Maximum number of repairs in one audit pass or one run of cyborg-audit --fix. "
        "The remaining inconsistencies are left for the next pass. A small value limits the "
        "effect of a wrong repair; raise it to repair many inconsistencies at once. With 0 "
        "the conductors only report.",
    )
    unbound_age: int = option(
        cfg.IntOpt,
        default=24 * 3600,
        min=600,
        help="Age, in seconds, at which an accelerator request that was not bound is deleted. "
        "Nova binds its requests within seconds. Raise it if users create requests by hand "
        "and bind them later.",
    )
    allocation_age: int = option(
        cfg.IntOpt,
        default=3600,
        min=60,
        help="Age, in seconds, at which an allocation in Placement is reported if it has no "
        "accelerator request and Nova does not know its server. An allocation without an "
        "accelerator request is normal between scheduling and bind, and after an evacuation. "
        "The allocation is never removed.",
    )
    lost_age: int = option(
        cfg.IntOpt,
        default=7 * 24 * 3600,
        min=60,
        help="Time, in seconds, for which a host must have stopped reporting a device before "
        "the audit reports the device.",
    )


@dataclass(frozen=True)
class QuotaOptions(OptionGroup):
    """Options of the limits of projects."""

    GROUP: ClassVar[str] = "quota"

    enabled: bool = option(
        cfg.BoolOpt,
        default=False,
        help="Enforce limits of projects that Keystone has (unified limits), on conductors, "
        "and show them at GET /v2/limits, on API hosts. The resources are "
        "accelerator_requests, and class:NAME for the bound accelerators of each resource "
        "class, for example class:FPGA. Register a limit of each resource before you set it: "
        "a resource without a registered limit has the limit 0. [oslo_limit] needs an "
        "account that may read the limits of all projects (the role reader with the scope "
        "of the system), and the endpoint of this service. While Keystone does not answer, "
        "no accelerator request is created.",
    )


def options() -> dict[str, list[cfg.Opt]]:
    """Return new option objects by group."""
    groups = (ConductorOptions, AuditOptions, QuotaOptions)
    return {group.GROUP: group.options() for group in groups}


def check(conf: cfg.ConfigOpts) -> None:
    """Check that ``lease`` and ``agent_grace`` are longer than the heartbeats that renew them.

    Raises ``exception.ConfigError``.
    """
    lease, heartbeat = conf.conductor.lease, conf.conductor.heartbeat
    if lease <= heartbeat:
        raise exception.ConfigError(
            reason=f"Option [conductor] lease cannot be {lease:g}: it must be longer than "
            f"[conductor] heartbeat, which is {heartbeat:g}."
        )
    grace, minimum = conf.conductor.agent_grace, 3 * conf.agent.heartbeat_interval
    if 0 < grace <= minimum:
        raise exception.ConfigError(
            reason=f"Option [conductor] agent_grace cannot be {grace:g}: it must be longer than "
            f"three times [agent] heartbeat_interval, which is {minimum:g}, or 0."
        )
