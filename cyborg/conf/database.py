# SPDX-License-Identifier: Apache-2.0
"""Options of [database]: those of oslo.db, and a deprecated one that existing files contain."""

from oslo_config import cfg
from oslo_db import options as oslo_db

from cyborg import exception

GROUP = "database"
#: Connections that a process keeps open. oslo.db's default of 5 is less than the number of threads:
#: a busy process would open and close connections all the time.
_MAX_POOL_SIZE = 20
#: Largest value of MariaDB's variable wsrep_sync_wait, which is a bit mask.
_MAX_SYNC_WAIT = 15


def options() -> list[cfg.Opt]:
    """Return new option objects, without those of oslo.db."""
    return [
        cfg.StrOpt(
            "mysql_engine",
            default="InnoDB",
            help="Storage engine of the tables on MySQL and MariaDB.",
            deprecated_for_removal=True,
            deprecated_since="18.0.0",
            deprecated_reason="It no longer has any effect: the tables always use InnoDB, because "
            "the service needs transactions.",
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register all options of [database] on ``conf``; a second call has no effect."""
    oslo_db.set_defaults(conf, max_pool_size=_MAX_POOL_SIZE)
    conf.register_opts(options(), group=GROUP)


def check(conf: cfg.ConfigOpts) -> None:
    """Check the range of ``mysql_wsrep_sync_wait``, which oslo.db does not check.

    With a value out of range Galera refuses every connection. Raises ``exception.ConfigError``.
    """
    wait = conf.database.mysql_wsrep_sync_wait
    if wait is not None and not 0 <= wait <= _MAX_SYNC_WAIT:
        raise exception.ConfigError(
            reason=f"Option [database] mysql_wsrep_sync_wait cannot be {wait}: it must be between "
            f"0 and {_MAX_SYNC_WAIT}. With 1 reads wait for the node to apply earlier writes."
        )


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator; oslo.db lists its own options."""
    return [(GROUP, options())]
