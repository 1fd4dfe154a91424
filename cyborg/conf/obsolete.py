# SPDX-License-Identifier: Apache-2.0
"""Options without effect that deployment tools write, declared so that validators accept them.

At start the services log that these options have no effect.
"""

from oslo_config import cfg

_SINCE = "18.0.0"
_NEVER = "It has no effect, and never had one; it is accepted so that existing files stay valid."


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return new option objects by group."""
    return [
        (
            "DEFAULT",
            [_obsolete("auth_strategy", "How callers are authenticated: use [api] auth_strategy.")],
        ),
        (
            "api",
            [
                _obsolete(
                    "ramdisk_heartbeat_timeout", "Timeout, in seconds; an option of other services."
                )
            ],
        ),
        (
            "conductor",
            [
                _obsolete(
                    "automated_clean", "Whether devices are cleaned; an option of other services."
                )
            ],
        ),
        (
            "keystone",
            [
                _obsolete(
                    "region_name",
                    "Region of the peers: use region_name in [nova], [placement] and [glance].",
                )
            ],
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options on ``conf``; a second call has no effect."""
    for group, options in list_opts():
        conf.register_opts(options, group=None if group == "DEFAULT" else group)


def _obsolete(name: str, meaning: str) -> cfg.Opt:
    return cfg.StrOpt(
        name,
        help=meaning,
        deprecated_for_removal=True,
        deprecated_since=_SINCE,
        deprecated_reason=_NEVER,
    )
