# SPDX-License-Identifier: Apache-2.0
"""Options of [upgrade_levels]: RPC version limits while processes run different releases."""

from oslo_config import cfg

GROUP = "upgrade_levels"


def options() -> list[cfg.Opt]:
    """Return new option objects of [upgrade_levels]."""
    return [
        cfg.StrOpt(
            "conductor",
            help="Newest RPC version that this process sends to conductors, for example 1.0. "
            "During an upgrade, set it to the version of the oldest release whose conductors "
            "still run, and remove it when all conductors are upgraded. If unset, it is the "
            "version of this release. A request that needs a newer version is rejected with an "
            "error that names this option.",
        ),
        cfg.StrOpt(
            "agent",
            help="Newest RPC version that conductors send to agents, for example 1.0. During an "
            "upgrade, set it to the version of the oldest release whose agents still run, and "
            "remove it when all agents are upgraded. If unset, it is the version of this release. "
            "An operation that needs a newer version fails with an error that names this option.",
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [upgrade_levels] on ``conf``; a second call has no effect."""
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
