# SPDX-License-Identifier: Apache-2.0
"""Options without effect that deployment tools write, declared so that validators accept them.

At start the services log that these options have no effect.
"""

import os
from typing import Any

from oslo_config import cfg

_NO_EFFECT = "It no longer has any effect; it is accepted so that existing files stay valid."
_NEVER = "It has no effect, and never had one; it is accepted so that existing files stay valid."
_FIXED = (
    "It no longer has any effect: each kind of privileged action has a process of its own with "
    "fixed capabilities and one user. See [agent] privileged_socket."
)
_SPDK = (
    "It no longer has any effect: the nvmf_spdk_driver asks SPDK by its socket. See "
    "[nvmf_spdk_driver] socket."
)


def options() -> dict[str, list[cfg.Opt]]:
    """Return new option objects by group."""
    return {
        "DEFAULT": [
            _obsolete(
                "bindir",
                "Directory of helper programs.",
                _NO_EFFECT,
                default=os.path.join("$pybasedir", "bin"),
            ),
            _obsolete(
                "fatal_exception_format_errors",
                "Raise errors in the format strings of messages instead of logging them.",
                _NO_EFFECT,
                cfg.BoolOpt,
                default=False,
            ),
            _obsolete("auth_strategy", "How callers are authenticated: use [api] auth_strategy."),
            *_spdk_options(),
        ],
        "agent": [
            _obsolete(
                "resource_provider_startup_retries",
                "How many times the agent looks for the compute host's resource provider.",
                "It no longer has any effect: the agent never gives up. It logs once that the "
                "provider is missing, looks for it at each heartbeat, and publishes the devices "
                "as soon as the provider exists.",
                cfg.IntOpt,
                default=3,
                min=0,
            ),
        ],
        "database": [
            _obsolete(
                "mysql_engine",
                "Storage engine of the tables on MySQL and MariaDB.",
                "It no longer has any effect: the tables always use InnoDB, because the service "
                "needs transactions.",
                default="InnoDB",
            ),
        ],
        "backend_defaults": _spdk_options(),
        "api": [
            _obsolete(
                "ramdisk_heartbeat_timeout", "Timeout, in seconds; an option of other services."
            )
        ],
        "conductor": [
            _obsolete(
                "automated_clean", "Whether devices are cleaned; an option of other services."
            )
        ],
        "keystone": [
            _obsolete(
                "region_name",
                "Region of the peers: use region_name in [nova], [placement] and [glance].",
            )
        ],
        "cyborg_sys_admin": [
            _helper("user", "User that the helper ran as."),
            _helper("group", "Group that the helper ran as."),
            _helper("capabilities", "Capabilities that the helper kept.", cfg.ListOpt),
            _helper("thread_pool_size", "Number of threads of the helper.", cfg.IntOpt),
        ],
    }


def _spdk_options() -> list[cfg.Opt]:
    """Return the options of the nvmf_spdk_driver of earlier releases, which had two places."""
    return [
        _obsolete("spdk_conf_file", "Configuration file of SPDK.", _SPDK),
        _obsolete("accelerator_servers", "Applications of SPDK.", _SPDK, cfg.ListOpt),
        _obsolete("spdk_dir", "Directory with the sources of SPDK.", _SPDK),
        _obsolete("device_type", "Type of the devices of SPDK.", _SPDK),
        _obsolete("remoteable", "Whether devices of SPDK are remote.", _SPDK),
    ]


def _helper(name: str, meaning: str, kind: type[cfg.Opt] = cfg.StrOpt) -> cfg.Opt:
    """Return an option of the one privileged helper that the agent had in earlier releases."""
    return _obsolete(name, meaning, _FIXED, kind)


def _obsolete(
    name: str,
    meaning: str,
    reason: str = _NEVER,
    kind: type[cfg.Opt] = cfg.StrOpt,
    **how: Any,
) -> cfg.Opt:
    return kind(
        name,
        **how,
        help=meaning,
        deprecated_for_removal=True,
        deprecated_since="18.0.0",
        deprecated_reason=reason,
    )
