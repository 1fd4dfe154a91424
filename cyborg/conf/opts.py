# SPDX-License-Identifier: Apache-2.0
"""The list of all option groups, for registration and for oslo.config's generator and validator."""

from typing import Final

from oslo_config import cfg
from oslo_db import options as oslo_db

from cyborg.conf import agent, api, clients, conductor, default, devices, generic, obsolete

#: Connections that a process keeps open. oslo.db's default of 5 is less than the number of threads:
#: a busy process would open and close connections all the time.
_MAX_POOL_SIZE: Final = 20


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return every option of this service by group (entry point ``oslo.config.opts: cyborg``)."""
    return _own_opts() + clients.list_opts()


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register every option of this service on ``conf``; a second call has no effect."""
    oslo_db.set_defaults(conf, max_pool_size=_MAX_POOL_SIZE)
    for group, options in _own_opts():
        conf.register_opts(options, group=None if group == "DEFAULT" else group)
    clients.register_opts(conf)


def _own_opts() -> list[tuple[str, list[cfg.Opt]]]:
    modules = (default, agent, api, conductor, devices, generic, obsolete)
    return [listing for module in modules for listing in module.options().items()]
