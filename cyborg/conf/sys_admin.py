# SPDX-License-Identifier: Apache-2.0
"""Options of [cyborg_sys_admin]: the privileged helper that the agent had in earlier releases."""

from oslo_config import cfg

GROUP = "cyborg_sys_admin"

_NO_EFFECT = (
    "It no longer has any effect: the agent runs without privileges and has no helper (no "
    "privsep-helper, and no line for it in sudoers). Only commands of the generic_driver may run "
    "with privileges, through sudo."
)


def options() -> list[cfg.Opt]:
    """Return new option objects: the options of oslo.privsep that deployments set."""
    return [
        _former(cfg.StrOpt, "user", "User that the helper ran as."),
        _former(cfg.StrOpt, "group", "Group that the helper ran as."),
        _former(cfg.ListOpt, "capabilities", "Capabilities that the helper kept."),
        _former(cfg.IntOpt, "thread_pool_size", "Number of threads of the helper."),
        _former(cfg.StrOpt, "helper_command", "Command that started the helper."),
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
    """Register the options of [cyborg_sys_admin] on ``conf``; a second call has no effect."""
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
