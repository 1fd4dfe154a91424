# SPDX-License-Identifier: Apache-2.0
"""cyborg-dbsync: makes and upgrades the database schema, and deletes old history.

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
from cyborg.db import backfill, history, schema
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
        print(f"{PROG}: {configuration.explained(error, conf)}", file=sys.stderr)
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
    purge = subparsers.add_parser("purge", help="Delete old history; services may run.")
    purge.add_argument(
        "--older-than",
        type=_days,
        metavar="DAYS",
        help="What is older goes; [conductor] history_retention unless given.",
    )
    purge.add_argument("--dry-run", action="store_true", help="Only say how much would go.")
    purge.set_defaults(run=_purge)


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
    schema.check(db)
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


def _days(word: str) -> int:
    days = int(word)
    if days < 1:
        raise argparse.ArgumentTypeError("at least one day is kept")
    return days


def _purge(db: Database, conf: cfg.ConfigOpts) -> int:
    days = conf.command.older_than or conf.conductor.history_retention
    if not days:
        print("Nothing is deleted: [conductor] history_retention is 0. See --older-than.")
        return 0
    schema.check(db)
    before = history.cutoff(db, days * history.DAY_MS)
    found = history.count(db, before)
    if conf.command.dry_run:
        for kept, count in found.items():
            print(f"{kept}: {count} older than {days} day(s) would be deleted")
        return 0

    def progress(kept: history.Kept, so_far: int) -> None:
        # Not to standard output: that is for the answer.
        print(f"{kept}: {so_far} of {found[kept]}", file=sys.stderr)

    for kept, count in history.purge(db, before, history.Purge(tell=progress)).items():
        print(f"{kept}: {count} older than {days} day(s) deleted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
