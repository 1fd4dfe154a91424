# SPDX-License-Identifier: Apache-2.0
"""Options of [conductor]: how conductors prove that they live, and what they keep for how long."""

from oslo_config import cfg

from cyborg import exception
from cyborg.conf.listening import metrics_listen

GROUP = "conductor"


def options() -> list[cfg.Opt]:
    """Return fresh option objects of [conductor]."""
    return [*_leases(), *_devices(), *_instances(), *_retentions(), metrics_listen()]


def _leases() -> list[cfg.Opt]:
    return [
        cfg.FloatOpt(
            "heartbeat",
            default=1,
            min=0.1,
            help="Interval, in seconds, between two heartbeats of a conductor in the database.",
        ),
        cfg.FloatOpt(
            "lease",
            default=3,
            min=0.2,
            help="Seconds without a heartbeat after which other conductors take over the work "
            "of one. It must be longer than heartbeat; longer values tolerate a slow database, "
            "shorter ones recover sooner.",
        ),
    ]


def _devices() -> list[cfg.Opt]:
    return [
        cfg.ListOpt(
            "auto_enable",
            default=[],
            help="Drivers whose devices are put into service as soon as they are found, by name; "
            "* stands for all of them. The devices of other drivers are inactive at first: known, "
            "reserved in Placement and not bound, until an operator enables them. Devices that "
            "are known already stay as they are.",
        ),
        cfg.FloatOpt(
            "agent_grace",
            default=3600,
            min=0,
            help="Seconds without a heartbeat of a host's agent after which Placement offers none "
            "of its devices any more whose binds need the agent's work. They come back by "
            "themselves with the agent. It must be longer than three times [agent] "
            "heartbeat_interval; 0 keeps them on offer whatever happens.",
        ),
    ]


def _instances() -> list[cfg.Opt]:
    return [
        cfg.FloatOpt(
            "instance_refresh",
            default=300,
            min=0,
            help="Seconds after which one of the conductors asks Nova again what an instance with "
            "accelerators is called and how it is, for the lists of devices. After a bind, and "
            "while Nova is doing something with the instance, it asks sooner. At most twenty "
            "instances are looked up in ten seconds, one by one, so that with more than 600 "
            "instances each has its turn later than the default says. The account of [nova] must "
            "see the servers of all projects; with 0 Nova is not asked, and names and states "
            "stay unknown.",
        ),
    ]


def _retentions() -> list[cfg.Opt]:
    return [
        cfg.IntOpt(
            "lost_retention",
            default=30,
            min=0,
            help="Days after which a device, or a part of one, that its host does not show any "
            "more is given up: its providers leave Placement, unless something is allocated there, "
            "and its rows the database. Until nova-compute has read its providers again ([compute] "
            "resource_provider_association_refresh), builds on that host may fail once. With 0 "
            "lost devices are kept for ever.",
        ),
        cfg.IntOpt(
            "history_retention",
            default=90,
            min=0,
            help="Days after which history is deleted: events, ended operations, and who owned "
            "an instance that has no accelerators any more. A server that stays shelved for "
            "longer belongs to whoever unshelves it as far as its accelerator requests are "
            "concerned. With 0 all of it is kept for ever.",
        ),
    ]


def check(conf: cfg.ConfigOpts) -> None:
    """Refuse a lease that would expire between two heartbeats, and a grace that would too.

    Raises ``exception.ConfigError``.
    """
    lease, heartbeat = conf.conductor.lease, conf.conductor.heartbeat
    if lease <= heartbeat:
        raise exception.ConfigError(
            reason=f"Option [conductor] lease cannot be {lease:g}: it must be longer than "
            f"[conductor] heartbeat, which is {heartbeat:g}."
        )
    grace, beats = conf.conductor.agent_grace, 3 * conf.agent.heartbeat_interval
    if 0 < grace <= beats:
        raise exception.ConfigError(
            reason=f"Option [conductor] agent_grace cannot be {grace:g}: it must be longer than "
            f"three times [agent] heartbeat_interval, which is {beats:g}, or 0."
        )


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [conductor] on ``conf``; calling twice does no harm."""
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
