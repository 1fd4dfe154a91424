# SPDX-License-Identifier: Apache-2.0
"""Options of [cyborg_sys_admin]: of the helper with privileges that the agent once had."""

from oslo_config import cfg

GROUP = "cyborg_sys_admin"

_NO_EFFECT = (
    "It has no effect any more: the agent runs without privileges and has no helper (no "
    "privsep-helper, and no line for it in sudoers). Only a command of the generic_driver may ask "
    "for some, through sudo."
)


def options() -> list[cfg.Opt]:
    """Return fresh option objects; they are those of oslo.privsep that deployments set."""
    return [
        _former(cfg.StrOpt, "user", "User as whom the helper ran."),
        _former(cfg.StrOpt, "group", "Group with which the helper ran."),
        _former(cfg.ListOpt, "capabilities", "Capabilities that the helper kept."),
        _former(cfg.IntOpt, "thread_pool_size", "How many threads the helper had."),
        _former(cfg.StrOpt, "helper_command", "Command by which the helper was started."),
    ]


def _former(kind: type[cfg.Opt], name: str, meaning: str) -> cfg.Opt:
    return kind(
        name,
        help=meaning,
        deprecated_for_removal=True,
        deprecated_since="18.0.0",
        deprecated_reason=_NO_EFFECT,
    )


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [cyborg_sys_admin] on ``conf``; calling twice does no harm."""
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
