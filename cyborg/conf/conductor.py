# SPDX-License-Identifier: Apache-2.0
"""Options of [conductor]: how conductors prove that they live."""

from oslo_config import cfg

from cyborg import exception

GROUP = "conductor"


def options() -> list[cfg.Opt]:
    """Return fresh option objects of [conductor]."""
    return [
        cfg.FloatOpt(
            "heartbeat",
            default=1,
            min=0.1,
            help="Seconds between two signs of life that a conductor writes to the database.",
        ),
        cfg.FloatOpt(
            "lease",
            default=3,
            min=0.2,
            help="Seconds without a sign of life after which other conductors take over the work "
            "of one. It must be longer than heartbeat; longer values tolerate a slow database, "
            "shorter ones recover sooner.",
        ),
    ]


def check(conf: cfg.ConfigOpts) -> None:
    """Refuse a lease that would expire between two signs of life.

    Raises ``exception.ConfigError``.
    """
    lease, heartbeat = conf.conductor.lease, conf.conductor.heartbeat
    if lease <= heartbeat:
        raise exception.ConfigError(
            reason=f"Option [conductor] lease cannot be {lease:g}: it must be longer than "
            f"[conductor] heartbeat, which is {heartbeat:g}."
        )


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [conductor] on ``conf``; calling twice does no harm."""
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
