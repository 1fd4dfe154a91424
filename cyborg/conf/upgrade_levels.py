# SPDX-License-Identifier: Apache-2.0
"""Options of [upgrade_levels]: what may be sent while not all processes are of one release."""

from oslo_config import cfg

GROUP = "upgrade_levels"


def options() -> list[cfg.Opt]:
    """Return fresh option objects of [upgrade_levels]."""
    return [
        cfg.StrOpt(
            "conductor",
            help="The newest RPC version that this process sends to conductors, as 1.0. Set it to "
            "that of the oldest release whose conductors still run, and remove it when all are "
            "upgraded; unset, it is that of this release. What needs a newer one is refused with "
            "a sentence that names this option.",
        ),
        cfg.StrOpt(
            "agent",
            help="The newest RPC version that conductors send to agents, as 1.0. Set it to that "
            "of the oldest release whose agents still run, and remove it when all are upgraded; "
            "unset, it is that of this release. What needs a newer one fails with a sentence that "
            "names this option.",
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [upgrade_levels] on ``conf``; calling twice does no harm."""
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
