# SPDX-License-Identifier: Apache-2.0
"""cyborg-dbsync and cyborg-status as an operator runs them: words and exit statuses."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from cyborg import exception, service
from cyborg.cmd import dbsync
from cyborg.db import base, history, schema
from cyborg.db.engine import Database
from cyborg.db.models import Arq, Device, DeviceProfile, Event, Instance, Operation, OperationResult
from cyborg.tests.functional.schema.commands import checked, run


def test_create_schema_refuses_a_versioned_database(current: Database, tmp_path: Path) -> None:
    status, out, err = run(current, tmp_path, "dbsync", "create_schema")
    assert (status, out) == (1, "")
    assert err.strip().splitlines()[-1] == (
        "cyborg-dbsync: The database already has a schema, at revision "
        f"{schema.head()}: run 'cyborg-dbsync upgrade'."
    )


@pytest.mark.parametrize("words", [(), ("downgrade",)])
def test_wrong_usage_exits_with_2(empty: Database, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run(empty, tmp_path, "dbsync", *words)[0] == 2


def test_unknown_schema_is_reported_in_one_line(existing: Database, tmp_path: Path) -> None:
    schema.stamp(existing, schema.EXISTING)
    with existing.writer() as tx:
        tx.execute(sa.text("UPDATE alembic_version SET version_num = '6c77bd6afea5'"))
    status, _, err = run(existing, tmp_path, "dbsync", "upgrade")
    assert status == 1
    assert "17.0.0" in err
    assert "Traceback" not in err


DAY = 24 * 3600 * 1000
#: Days ago, of events; two batches and one row are a hundred days old.
AGES = [*[100] * 2001, *[60] * 3, 0]


@pytest.fixture
def aged(current: Database) -> Database:
    """A database with old and new history, and with what is never history."""
    with current.writer() as tx:
        now = int(tx.execute(sa.select(current.now)).scalar_one())
        events = [
            {"at_ms": now - days * DAY, "noun": "arq", "subject_uuid": "a", "action": "Bound"}
            for days in AGES
        ]
        tx.execute(sa.insert(Event), events)
        profile = {"uuid": "p", "name": "p", "profile_json": "{}"}
        (profile_id,) = base.insert_ids(tx, DeviceProfile, [profile]).values()
        for name, bound, days in (
            ("released", False, 100),
            ("bound", True, 100),
            ("named", False, 100),
            ("recent", False, 0),
        ):
            values = {"uuid": name, "bound": bound, "updated_ms": now - days * DAY}
            tx.execute(sa.insert(Instance).values(values))
        tx.execute(
            sa.insert(Arq).values(
                uuid="b",
                state="Unbound",
                instance_uuid="named",
                device_profile_id=profile_id,
                device_profile_group_id=0,
            )
        )
        ends = {"ended": now - 95 * DAY, "running": None, "recent": now}
        operations = [
            {
                "uuid": name,
                "verb": "discover",
                "state": "done",
                "created_ms": now - 100 * DAY,
                "finished_ms": ended,
            }
            for name, ended in ends.items()
        ]
        ids = base.insert_ids(tx, Operation, operations).values()
        results = [{"operation_id": one, "host": "one", "state": "done"} for one in ids]
        base.insert(tx, OperationResult, results)
    return current


def _left(db: Database) -> tuple[int, list[str], list[str], int]:
    """How many events, which instances and operations, and how many results there are."""
    with db.reader() as tx:
        return (
            tx.execute(sa.select(sa.func.count(Event.id))).scalar_one(),
            sorted(tx.scalars(sa.select(Instance.uuid))),
            sorted(tx.scalars(sa.select(Operation.uuid))),
            tx.execute(sa.select(sa.func.count(OperationResult.id))).scalar_one(),
        )


KEPT = ["bound", "named", "recent"]


def test_purge_dry_run_counts_rows(aged: Database, tmp_path: Path) -> None:
    before = _left(aged)
    status, out, _ = run(aged, tmp_path, "dbsync", "purge", "--dry-run")
    assert status == 0
    assert out.splitlines() == [
        "events: 2001 older than 90 day(s) would be deleted",
        "instances: 1 older than 90 day(s) would be deleted",
        "operations: 1 older than 90 day(s) would be deleted",
    ]
    assert _left(aged) == before


def test_purge_deletes_expired_rows(aged: Database, tmp_path: Path) -> None:
    status, out, err = run(aged, tmp_path, "dbsync", "purge")
    assert status == 0
    assert out.splitlines() == [
        "events: 2001 older than 90 day(s) deleted",
        "instances: 1 older than 90 day(s) deleted",
        "operations: 1 older than 90 day(s) deleted",
    ]
    progress = [one for one in err.splitlines() if one.startswith("events: ")]
    assert progress == [f"events: {so_far} of 2001" for so_far in (1000, 2000, 2001)]
    assert _left(aged) == (4, KEPT, ["recent", "running"], 2)
    status, out, _ = run(aged, tmp_path, "dbsync", "purge")
    assert (status, out.splitlines()[0]) == (0, "events: 0 older than 90 day(s) deleted")


def test_purge_older_than_overrides_retention(aged: Database, tmp_path: Path) -> None:
    status, out, _ = run(aged, tmp_path, "dbsync", "purge", "--older-than", "30")
    assert (status, out.splitlines()[0]) == (0, "events: 2004 older than 30 day(s) deleted")
    assert _left(aged)[0] == 1


@pytest.mark.parametrize("days", ["0", "soon"])
def test_purge_refuses_less_than_a_day(empty: Database, tmp_path: Path, days: str) -> None:
    assert run(empty, tmp_path, "dbsync", "purge", "--older-than", days)[0] == 2


def test_purge_keeps_history_without_retention(aged: Database, tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("[conductor]\nhistory_retention = 0\n")
    before = _left(aged)
    words = ("--config-file", str(tmp_path / "more.conf"), "purge")
    status, out, _ = run(aged, tmp_path, "dbsync", *words)
    assert (status, _left(aged)) == (0, before)
    assert "history_retention is 0" in out


def test_purge_refuses_schema_of_another_release(empty: Database, tmp_path: Path) -> None:
    status, _, err = run(empty, tmp_path, "dbsync", "purge")
    assert status == 1
    assert "run 'cyborg-dbsync upgrade'" in err.splitlines()[-1]


def test_instance_bound_during_purge_is_kept(aged: Database) -> None:
    """A bind that was faster than the batch has the row."""
    before = history.cutoff(aged, 90 * DAY)
    with ThreadPoolExecutor(1) as pool:
        with aged.writer() as tx:
            tx.execute(sa.update(Instance).where(Instance.uuid == "released").values(bound=True))
            purging = pool.submit(history.purge, aged, before)
            assert service.wait_until(purging.running, timeout=10)
        assert purging.result(60) == {"events": 2001, "instances": 0, "operations": 1}
    assert _left(aged)[1] == ["bound", "named", "recent", "released"]


def test_purge_run_is_bounded(aged: Database) -> None:
    how = history.Purge(batch=7, batches=3)
    gone = history.purge(aged, history.cutoff(aged, 90 * DAY), how)
    assert gone == {"events": 21, "instances": 1, "operations": 1}


def test_online_data_migrations_fill_device_states(existing: Database, tmp_path: Path) -> None:
    schema.upgrade(existing)
    with existing.writer() as tx:
        tx.execute(sa.update(Device).values(device_state=None))
    assert checked(existing, tmp_path).results["Device state backfill"] == 2
    status, out, _ = run(existing, tmp_path, "dbsync", "online_data_migrations")
    assert status == 0
    assert out == "Migrated 0 ARQ(s)\nBackfilled device_state on 3/3 devices\n"
    assert checked(existing, tmp_path).results["Device state backfill"] == 0
    with existing.reader() as tx:
        assert set(tx.scalars(sa.select(Device.device_state))) == {"allocated"}


def test_owner_backfill_fails_without_account(existing: Database, tmp_path: Path) -> None:
    schema.upgrade(existing)
    _forget_owners(existing)
    status, out, _ = run(existing, tmp_path, "dbsync", "online_data_migrations")
    assert status == 2
    assert out.splitlines()[0].startswith("Failed to migrate the project ids of ARQs: [nova]")
    assert out.splitlines()[1] == "Backfilled device_state on 0/0 devices"


def test_owners_are_read_from_nova(existing: Database, capsys: pytest.CaptureFixture[str]) -> None:
    schema.upgrade(existing)
    _forget_owners(existing)
    with existing.reader() as tx:
        gone, *known = sorted(tx.scalars(sa.select(Instance.uuid)))
    asked: list[str] = []

    def project_of(instance: str) -> str | None:
        asked.append(instance)
        return None if instance == gone else f"owner of {instance}"

    assert dbsync.online_data_migrations(existing, project_of) == 0
    assert capsys.readouterr().out.splitlines()[0] == "Migrated 4 ARQ(s)"
    assert asked == [gone, *known]
    with existing.reader() as tx:
        for model in (Instance.uuid, Instance.project_id), (Arq.instance_uuid, Arq.project_id):
            rows = tx.execute(sa.select(*model).where(model[0].is_not(None)))
            owners = {row[0]: row[1] for row in rows}
            assert owners.pop(gone) is None
            assert owners == {one: f"owner of {one}" for one in known}


def test_failed_migration_does_not_stop_the_next(
    existing: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    schema.upgrade(existing)
    _forget_owners(existing)
    with existing.writer() as tx:
        tx.execute(sa.update(Device).values(device_state=None))

    def project_of(instance: str) -> str | None:
        raise exception.Unavailable(peer="Nova", reason="it is off")

    assert dbsync.online_data_migrations(existing, project_of) == 2
    assert capsys.readouterr().out.splitlines() == [
        "Failed to migrate the project ids of ARQs: Nova is not available: it is off",
        "Backfilled device_state on 3/3 devices",
    ]


def _forget_owners(db: Database) -> None:
    with db.writer() as tx:
        tx.execute(sa.update(Arq).values(project_id=None))
        tx.execute(sa.update(Instance).values(project_id=None))
