# SPDX-License-Identifier: Apache-2.0
"""Options of [conductor] and [audit]: leases, device administration, retention times, audits."""

from oslo_config import cfg

from cyborg import exception
from cyborg.conf.default import metrics_listen


def options() -> dict[str, list[cfg.Opt]]:
    """Return new option objects by group."""
    return {"conductor": _conductor(), "audit": _audit()}


def _conductor() -> list[cfg.Opt]:
    return [
        cfg.FloatOpt(
            "heartbeat",
            default=1,
            min=0.1,
            help="Interval, in seconds, between two heartbeats that a conductor writes to the "
            "database. It must be shorter than lease. A small value adds load on the database.",
        ),
        cfg.FloatOpt(
            "lease",
            default=3,
            min=0.2,
            help="Time, in seconds, without a heartbeat after which other conductors take over "
            "the work of a conductor. It must be longer than heartbeat. Raise it if the database "
            "is slow; a small value makes other conductors take over sooner.",
        ),
        cfg.ListOpt(
            "auto_enable",
            default=[],
            help="Names of drivers whose devices are enabled as soon as they are discovered, or "
            "'*' for all drivers. New devices of other drivers are inactive: they are in the "
            "database, reserved in Placement and cannot be bound until an operator enables them. "
            "Set it if no operator has to approve new devices. A change does not affect devices "
            "that are already in the database.",
        ),
        cfg.FloatOpt(
            "agent_grace",
            default=3600,
            min=0,
            help="Time, in seconds, without a heartbeat of an agent after which the conductor "
            "reserves in Placement every unit of its devices that the agent must prepare before "
            "use. The units are released when the agent returns. A small value prevents binds "
            "that would fail on this host; a large value tolerates longer maintenance of the "
            "agent. It must be longer than three times [agent] heartbeat_interval. With 0 the "
            "units are never reserved.",
        ),
        cfg.FloatOpt(
            "instance_refresh",
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
        ),
        cfg.IntOpt(
            "lost_retention",
            default=30,
            min=0,
            help="Time, in days, after which a device, or a part of a device, that its host no "
            "longer reports is removed from the database. Its providers are removed from "
            "Placement, unless something is allocated there. Until nova-compute reads its "
            "providers again ([compute] resource_provider_association_refresh), builds on that "
            "host may fail once. Choose a value that is longer than the repair of a device takes. "
            "With 0 lost devices are kept for ever.",
        ),
        cfg.IntOpt(
            "history_retention",
            default=90,
            min=0,
            help="Time, in days, after which history is deleted: events, ended operations, and "
            "the project of an instance that no longer has accelerators. If a server stays "
            "shelved for longer, its accelerator requests belong to the project that unshelves "
            "it. A large value needs more space in the database. With 0 history is kept for "
            "ever.",
        ),
        metrics_listen(),
    ]


def _audit() -> list[cfg.Opt]:
    return [
        cfg.FloatOpt(
            "interval",
            default=600,
            min=1,
            help="Interval, in seconds, between two audit passes. In each pass one of the "
            "conductors compares the database, Placement and Nova, and repairs the "
            "inconsistencies that can be repaired automatically. A small value finds "
            "inconsistencies sooner and adds load on all three.",
        ),
        cfg.IntOpt(
            "max_changes",
            default=50,
            min=0,
            help="Maximum number of repairs in one audit pass or one run of cyborg-audit --fix. "
            "The remaining inconsistencies are left for the next pass. A small value limits the "
            "effect of a wrong repair; raise it to repair many inconsistencies at once. With 0 "
            "the conductors only report.",
        ),
        cfg.IntOpt(
            "unbound_age",
            default=24 * 3600,
            min=600,
            help="Age, in seconds, at which an accelerator request that was not bound is deleted. "
            "Nova binds its requests within seconds. Raise it if users create requests by hand "
            "and bind them later.",
        ),
        cfg.IntOpt(
            "allocation_age",
            default=3600,
            min=60,
            help="Age, in seconds, at which an allocation in Placement is reported if it has no "
            "accelerator request and Nova does not know its server. An allocation without an "
            "accelerator request is normal between scheduling and bind, and after an evacuation. "
            "The allocation is never removed.",
        ),
        cfg.IntOpt(
            "lost_age",
            default=7 * 24 * 3600,
            min=60,
            help="Time, in seconds, for which a host must have stopped reporting a device before "
            "the audit reports the device.",
        ),
    ]


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
