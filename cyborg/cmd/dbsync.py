# SPDX-License-Identifier: Apache-2.0
"""cyborg-dbsync: makes and upgrades the database schema.

Ends with 0 when what was asked is done, 1 with one sentence when it cannot be done, 2 for a wrong
command line or an online data migration that failed.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from oslo_config import cfg
from oslo_log import log

from cyborg import conf as configuration
from cyborg import exception
from cyborg.clients.keystone import Sessions
from cyborg.clients.nova import Nova
from cyborg.db import backfill, schema
from cyborg.db.engine import Database

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = object

PROG = "cyborg-dbsync"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command; answers the exit status."""
    conf = cfg.ConfigOpts()
    conf.register_cli_opt(
        cfg.SubCommandOpt("command", title="commands", handler=_add_commands, help="What to do.")
    )
    # Standard output is for the answer: without this, oslo.log would write there.
    log.register_options(conf)
    conf.set_default("use_stderr", True)
    try:
        configuration.prepare(
            sys.argv[1:] if argv is None else argv,
            prog=PROG,
            conf=conf,
        )
        db = Database.from_conf(conf)
        # Where everything starts together, the database may be the last one to be up.
        db.wait(conf.database.max_retries, conf.database.retry_interval)
        run: Callable[[Database, cfg.ConfigOpts], int] = conf.command.run
        return run(db, conf)
    except exception.CyborgError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1


def _add_commands(subparsers: Subparsers) -> None:
    upgrade = subparsers.add_parser("upgrade", help="Upgrade the schema to the newest revision.")
    upgrade.add_argument("--revision", default="head", help="Stop at this revision.")
    upgrade.set_defaults(run=_upgrade)
    revision = subparsers.add_parser("revision", help="Write a new revision (for developers).")
    revision.add_argument("-m", "--message", help="What the revision does.")
    revision.add_argument(
        "--autogenerate", action="store_true", help="Fill it from the difference to the models."
    )
    revision.set_defaults(run=_revision)
    stamp = subparsers.add_parser("stamp", help="Note a revision without running it.")
    stamp.add_argument("--revision", help="The revision; without it the note is cleared.")
    stamp.set_defaults(run=_stamp)
    subparsers.add_parser("version", help="Print the revision of the database.").set_defaults(
        run=_version
    )
    subparsers.add_parser("create_schema", help="Make all tables at once.").set_defaults(
        run=_create_schema
    )
    subparsers.add_parser(
        "online_data_migrations", help="Fill what an upgrade left; services may run."
    ).set_defaults(run=_online_data_migrations)


def _upgrade(db: Database, conf: cfg.ConfigOpts) -> int:
    schema.upgrade(db, conf.command.revision)
    return 0


def _revision(db: Database, conf: cfg.ConfigOpts) -> int:
    schema.revision(db, conf.command.message, autogenerate=conf.command.autogenerate)
    return 0


def _stamp(db: Database, conf: cfg.ConfigOpts) -> int:
    schema.stamp(db, conf.command.revision)
    return 0


def _version(db: Database, conf: cfg.ConfigOpts) -> int:
    print(schema.version(db))
    return 0


def _create_schema(db: Database, conf: cfg.ConfigOpts) -> int:
    schema.create_schema(db)
    return 0


def _online_data_migrations(db: Database, conf: cfg.ConfigOpts) -> int:
    sessions = Sessions(conf)

    def project_of(instance: str) -> str | None:
        # The account is looked at only when there is something to ask for.
        return Nova(sessions.nova()).server_project(instance)

    return online_data_migrations(db, project_of)


def online_data_migrations(db: Database, project_of: Callable[[str], str | None]) -> int:
    """Run both steps, whatever becomes of the first; answers the exit status."""
    status = 0
    try:
        print(f"Migrated {backfill.project_ids(db, project_of)} ARQ(s)")
    except exception.CyborgError as error:
        print(f"Failed to migrate the project ids of ARQs: {error}")
        status = 2
    try:
        filled, needed = backfill.device_states(db)
        print(f"Backfilled device_state on {filled}/{needed} devices")
    except exception.CyborgError as error:
        print(f"Failed to backfill device_state: {error}")
        status = 2
    return status


if __name__ == "__main__":
    sys.exit(main())
