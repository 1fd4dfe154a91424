# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg-dbsync`` program: create and upgrade the database schema, and delete old history.

Exit status: 0 for success, 1 with an error message for a failure, 2 for a wrong command line or a
failed online data migration.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from oslo_config import cfg
from oslo_log import log

from cyborg import conf as configuration
from cyborg import exception
from cyborg.clients.http import Sessions
from cyborg.clients.nova import Nova
from cyborg.db import backfill, history, revisions, schema
from cyborg.db.engine import Database
from cyborg.db.schema_lock import Rules

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = object

PROG = "cyborg-dbsync"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    conf = cfg.ConfigOpts()
    conf.register_cli_opt(
        cfg.SubCommandOpt(
            "command", title="commands", handler=_add_commands, help="The command to run."
        )
    )
    # Keep the log off standard output, which holds the result of the command.
    log.register_options(conf)
    conf.set_default("use_stderr", True)
    try:
        configuration.prepare(
            sys.argv[1:] if argv is None else argv,
            prog=PROG,
            conf=conf,
        )
        db = Database.from_conf(conf)
        # When all services start at the same time, the database may be the last one to be ready.
        db.wait(conf.database.max_retries, conf.database.retry_interval)
        return _run(db, conf)
    except exception.CyborgError as error:
        print(f"{PROG}: {configuration.explained(error, conf)}", file=sys.stderr)
        return 1


def _add_commands(subparsers: Subparsers) -> None:
    upgrade = subparsers.add_parser("upgrade", help="Upgrade the schema to the newest revision.")
    upgrade.add_argument(
        "--revision", default="head", help="Revision to upgrade to (default: head, the newest one)."
    )
    revision = subparsers.add_parser("revision", help="Create a new revision (for developers).")
    revision.add_argument("-m", "--message", help="Title of the revision.")
    revision.add_argument(
        "--autogenerate",
        action="store_true",
        help="Generate the revision from the difference between the database and the models.",
    )
    stamp = subparsers.add_parser("stamp", help="Record a revision as current without running it.")
    stamp.add_argument(
        "--revision",
        help="Revision to record (default: none, which removes the recorded revision).",
    )
    subparsers.add_parser("version", help="Print the revision of the database.")
    subparsers.add_parser("create_schema", help="Create all tables of an empty database at once.")
    subparsers.add_parser(
        "online_data_migrations", help="Fill in data that an upgrade left open. Services may run."
    )
    purge = subparsers.add_parser("purge", help="Delete old history. Services may run.")
    purge.add_argument(
        "--older-than",
        type=_days,
        metavar="DAYS",
        help="Age in days; older history is deleted (default: [conductor] history_retention).",
    )
    purge.add_argument(
        "--dry-run",
        action="store_true",
        help="Print the number of rows to delete, and delete nothing.",
    )


def _run(db: Database, conf: cfg.ConfigOpts) -> int:
    """Run the command that the command line names; return the exit status."""
    command = conf.command
    rules = Rules(progress=_report)
    match command.name:
        case "upgrade":
            is_new = revisions.version(db) is None
            schema.upgrade(db, command.revision, rules=rules)
            if is_new:
                _advise(conf)
        case "revision":
            schema.revision(db, command.message, autogenerate=command.autogenerate)
        case "stamp":
            schema.stamp(db, command.revision, rules=rules)
        case "version":
            print(revisions.version(db))
        case "create_schema":
            schema.create_schema(db, rules=rules)
            _advise(conf)
        case "online_data_migrations":
            revisions.check(db)
            sessions = Sessions(conf)

            def project_of(instance: str) -> str | None:
                # The session is created here because [nova] may be missing when there is nothing
                # to ask.
                return Nova(sessions.nova()).server_project(instance)

            return online_data_migrations(db, project_of)
        case "purge":
            _purge(db, conf)
    return 0


def _report(sentence: str) -> None:
    """Print a sentence about the progress; standard output holds the result only."""
    print(f"{PROG}: {sentence}", file=sys.stderr, flush=True)


def _advise(conf: cfg.ConfigOpts) -> None:
    """Tell what a new installation needs, which no older process can be part of.

    The default of the option is for upgrades, and no process can know by itself that it belongs to
    a new installation: an agent reaches no database.
    """
    if conf.message_signing != "required":
        print(
            f"{PROG}: This installation is new: set [DEFAULT] message_signing = required in every "
            "process, and give each of them its keys (cyborg-signing-key create, derive). "
            f"The configuration has {conf.message_signing}, for upgrades only: everyone with the "
            "transport_url of one host would control the service.",
            file=sys.stderr,
        )


def online_data_migrations(db: Database, project_of: Callable[[str], str | None]) -> int:
    """Run both migrations, the second also if the first fails; return the exit status."""
    status = 0
    try:
        print(f"Migrated {backfill.project_ids(db, project_of)} ARQ(s)")
    except exception.CyborgError as error:
        print(f"Failed to migrate the project ids of ARQs: {error}")
        status = 2
    try:
        filled, total = backfill.device_states(db)
        print(f"Backfilled device_state on {filled}/{total} devices")
    except exception.CyborgError as error:
        print(f"Failed to backfill device_state: {error}")
        status = 2
    return status


def _days(word: str) -> int:
    days = int(word)
    if days < 1:
        raise argparse.ArgumentTypeError("must be at least 1 day")
    return days


def _purge(db: Database, conf: cfg.ConfigOpts) -> None:
    days = conf.command.older_than or conf.conductor.history_retention
    if not days:
        print(
            "Nothing is deleted: [conductor] history_retention is 0. Set an age with --older-than."
        )
        return
    revisions.check(db)
    before = history.cutoff(db, days * history.DAY_MS)
    old_rows = history.count(db, before)
    if conf.command.dry_run:
        for table, count in old_rows.items():
            print(f"{table}: {count} older than {days} day(s) would be deleted")
        return

    def progress(table: history.Table, deleted: int) -> None:
        # Standard output holds the result only.
        print(f"{table}: {deleted} of {old_rows[table]}", file=sys.stderr)

    for table, count in history.purge(db, before, history.Purge(progress=progress)).items():
        print(f"{table}: {count} older than {days} day(s) deleted")


if __name__ == "__main__":
    sys.exit(main())
