# SPDX-License-Identifier: Apache-2.0
"""Options of [database]: those of oslo.db, and one that existing files carry."""

from oslo_config import cfg
from oslo_db import options as oslo_db

from cyborg import exception

GROUP = "database"
#: Connections that a process keeps; oslo.db's own default of 5 makes a busy one, whose threads are
#: more, open and close connections all the time.
_MAX_POOL_SIZE = 20
#: The bits that MariaDB's variable of that name knows.
_MAX_SYNC_WAIT = 15


def options() -> list[cfg.Opt]:
    """Return fresh option objects, without those that oslo.db brings."""
    return [
        cfg.StrOpt(
            "mysql_engine",
            default="InnoDB",
            help="Storage engine of the tables on MySQL and MariaDB.",
            deprecated_for_removal=True,
            deprecated_since="18.0.0",
            deprecated_reason="The service needs transactions; its tables are always InnoDB.",
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register all options of [database] on ``conf``; calling twice does no harm."""
    oslo_db.set_defaults(conf, max_pool_size=_MAX_POOL_SIZE)
    conf.register_opts(options(), group=GROUP)


def check(conf: cfg.ConfigOpts) -> None:
    """Refuse what every connection to Galera would be refused for; oslo.db takes any number.

    Raises ``exception.ConfigError``.
    """
    wait = conf.database.mysql_wsrep_sync_wait
    if wait is not None and not 0 <= wait <= _MAX_SYNC_WAIT:
        raise exception.ConfigError(
            reason=f"Option [database] mysql_wsrep_sync_wait cannot be {wait}: it must be between "
            f"0 and {_MAX_SYNC_WAIT}; 1 makes reads wait."
        )


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator (oslo.db lists its own)."""
    return [(GROUP, options())]
