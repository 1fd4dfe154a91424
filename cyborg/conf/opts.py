# SPDX-License-Identifier: Apache-2.0
"""The list of all option groups, for registration and for oslo.config's generator and validator."""

from types import ModuleType

from oslo_config import cfg

from cyborg.conf import (
    agent,
    api,
    audit,
    conductor,
    database,
    default,
    devices,
    generic,
    glance,
    nova,
    obsolete,
    placement,
    service_user,
    sys_admin,
    tracing,
    upgrade_levels,
)

GROUPS: tuple[ModuleType, ...] = (
    default,
    agent,
    api,
    audit,
    conductor,
    database,
    devices,
    generic,
    glance,
    nova,
    obsolete,
    placement,
    service_user,
    sys_admin,
    tracing,
    upgrade_levels,
)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return every option of this service by group (entry point ``oslo.config.opts: cyborg``)."""
    return [listing for group in GROUPS for listing in group.list_opts()]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register every option of this service on ``conf``; a second call has no effect."""
    for group in GROUPS:
        group.register_opts(conf)
