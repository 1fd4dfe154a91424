# SPDX-License-Identifier: Apache-2.0
"""Options of [audit]: how often the cloud is checked, and what is changed without being asked."""

from oslo_config import cfg

GROUP = "audit"


def options() -> list[cfg.Opt]:
    """Return fresh option objects of [audit]."""
    return [
        cfg.FloatOpt(
            "interval",
            default=600,
            min=1,
            help="Seconds between two passes in which one of the conductors compares database, "
            "Placement and Nova, and repairs what it may.",
        ),
        cfg.IntOpt(
            "max_changes",
            default=50,
            min=0,
            help="How many repairs one pass, or one cyborg-audit --fix, makes at most; the rest "
            "is left for the next. With 0 the conductors report only.",
        ),
        cfg.IntOpt(
            "unbound_age",
            default=24 * 3600,
            min=600,
            help="Seconds after which an accelerator request that nobody binds is deleted. Nova "
            "binds its requests within seconds; whoever makes requests by hand may need longer.",
        ),
        cfg.IntOpt(
            "allocation_age",
            default=3600,
            min=60,
            help="Seconds after which an allocation in Placement is reported if it has no "
            "accelerator request and Nova does not know its server. It is never removed.",
        ),
        cfg.IntOpt(
            "lost_age",
            default=7 * 24 * 3600,
            min=60,
            help="Seconds after which a device that its host does not show any more is reported.",
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [audit] on ``conf``; calling twice does no harm."""
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
