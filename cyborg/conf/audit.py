# SPDX-License-Identifier: Apache-2.0
"""Options of [audit]: the interval of audit passes, their limit of repairs, and age limits."""

from oslo_config import cfg

GROUP = "audit"


def options() -> list[cfg.Opt]:
    """Return new option objects of [audit]."""
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


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [audit] on ``conf``; a second call has no effect."""
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
