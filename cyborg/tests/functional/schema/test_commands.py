# SPDX-License-Identifier: Apache-2.0
"""cyborg-dbsync and cyborg-status as an operator runs them: words and exit statuses."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.cmd import dbsync
from cyborg.db import bulk, history, revisions, schema
from cyborg.db.engine import Database
from cyborg.db.models import Arq, Device, DeviceProfile, Event, Instance, Operation, OperationResult
from cyborg.tests.fixtures.waiting import eventually, result
from cyborg.tests.functional.schema.commands import checked, run


def test_refusals_are_reported_in_one_line(empty: Database, tmp_path: Path) -> None:
    def refused(command: str) -> str:
        status, out, err = run(empty, tmp_path, "dbsync", command)
        assert (status, out) == (1, "")
        assert "Traceback" not in err
        return err.strip().splitlines()[-1]

    assert "run 'cyborg-dbsync upgrade'" in refused("purge")
    schema.upgrade(empty)
    assert refused("create_schema") == (
        "cyborg-dbsync: The database already has a schema, at revision "
        f"{revisions.HEAD}: run 'cyborg-dbsync upgrade'."
    )
    with empty.writer() as tx:
        tx.execute(sa.text("UPDATE alembic_version SET version_num = '6c77bd6afea5'"))
    assert "17.0.0" in refused("upgrade")


def test_wrong_usage_exits_with_2(empty: Database, tmp_path: Path) -> None:
    for words in ("", "downgrade", "purge --older-than 0", "purge --older-than soon"):
        assert run(empty, tmp_path, "dbsync", *words.split())[0] == 2, words


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
        (profile_id,) = bulk.insert_ids(tx, DeviceProfile, [profile]).values()
        for name, days in (("released", 100), ("named", 100), ("recent", 0)):
            values = {"uuid": name, "updated_ms": now - days * DAY}
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
        ids = bulk.insert_ids(tx, Operation, operations).values()
        results = [{"operation_id": one, "host": "one", "state": "done"} for one in ids]
        bulk.insert(tx, OperationResult, results)
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


def test_purge_deletes_expired_rows(aged: Database, tmp_path: Path) -> None:
    def purge(*words: str) -> tuple[list[str], list[str]]:
        status, out, err = run(aged, tmp_path, "dbsync", *words)
        assert status == 0
        return out.splitlines(), [one for one in err.splitlines() if one.startswith("events: ")]

    (tmp_path / "more.conf").write_text("[conductor]\nhistory_retention = 0\n")
    before = _left(aged)
    (unlimited,), _ = purge("--config-file", str(tmp_path / "more.conf"), "purge")
    assert "history_retention is 0" in unlimited
    expired = [
        "events: 2001 older than 90 day(s)",
        "instances: 1 older than 90 day(s)",
        "operations: 1 older than 90 day(s)",
    ]
    assert purge("purge", "--dry-run")[0] == [f"{one} would be deleted" for one in expired]
    assert _left(aged) == before
    out, progress = purge("purge")
    assert out == [f"{one} deleted" for one in expired]
    assert progress == [f"events: {so_far} of 2001" for so_far in (1000, 2000, 2001)]
    assert _left(aged) == (4, ["named", "recent"], ["recent", "running"], 2)
    assert purge("purge")[0][0] == "events: 0 older than 90 day(s) deleted"
    out, _ = purge("purge", "--older-than", "30")
    assert out[0] == "events: 3 older than 30 day(s) deleted"
    assert _left(aged)[0] == 1


def test_instance_bound_during_purge_is_kept(aged: Database) -> None:
    """A bind that was faster than the batch has the row."""
    before = history.cutoff(aged, 90 * DAY)
    with ThreadPoolExecutor(1) as pool:
        with aged.writer() as tx:
            released = sa.update(Instance).where(Instance.uuid == "released")
            tx.execute(released.values(updated_ms=aged.now))
            purging = pool.submit(history.purge, aged, before)
            eventually(purging.running, "the purge has begun")
        assert result(purging) == {"events": 2001, "instances": 0, "operations": 1}
    assert _left(aged)[1] == ["named", "recent", "released"]


def test_purge_run_is_bounded(aged: Database) -> None:
    how = history.Purge(batch=7, batches=3)
    gone = history.purge(aged, history.cutoff(aged, 90 * DAY), how)
    assert gone == {"events": 21, "instances": 1, "operations": 1}


def test_online_data_migrations_fill_device_states(existing: Database, tmp_path: Path) -> None:
    schema.upgrade(existing)
    _forget_owners(existing)
    with existing.writer() as tx:
        tx.execute(sa.update(Device).values(device_state=None))
    assert checked(existing, tmp_path).results["Device state backfill"] == 2
    status, out, _ = run(existing, tmp_path, "dbsync", "online_data_migrations")
    failed, filled = out.splitlines()
    assert (status, filled) == (2, "Backfilled device_state on 3/3 devices")
    assert failed.startswith("Failed to migrate the project ids of ARQs: [nova]")
    assert checked(existing, tmp_path).results["Device state backfill"] == 0
    with existing.writer() as tx:
        assert set(tx.scalars(sa.select(Device.device_state))) == {"allocated"}
        for model in (Instance, Arq):
            tx.execute(sa.update(model).values(project_id="p"))
    status, out, _ = run(existing, tmp_path, "dbsync", "online_data_migrations")
    assert (status, out) == (0, "Migrated 0 ARQ(s)\nBackfilled device_state on 0/0 devices\n")


def test_owners_are_read_from_nova(existing: Database, capsys: pytest.CaptureFixture[str]) -> None:
    schema.upgrade(existing)
    _forget_owners(existing)
    with existing.reader() as tx:
        gone, *known = sorted(tx.scalars(sa.select(Instance.uuid)))
    asked: list[str] = []

    def no_answer(_instance: str) -> str | None:
        raise exception.Unavailable(peer="Nova", reason="it is off")

    def project_of(instance: str) -> str | None:
        asked.append(instance)
        return None if instance == gone else f"owner of {instance}"

    assert dbsync.online_data_migrations(existing, no_answer) == 2
    assert capsys.readouterr().out.splitlines() == [
        "Failed to migrate the project ids of ARQs: Nova is not available: it is off",
        "Backfilled device_state on 0/0 devices",
    ]
    assert dbsync.online_data_migrations(existing, project_of) == 0
    assert capsys.readouterr().out.splitlines()[0] == "Migrated 4 ARQ(s)"
    assert asked == [gone, *known]
    with existing.reader() as tx:
        for model in (Instance.uuid, Instance.project_id), (Arq.instance_uuid, Arq.project_id):
            rows = tx.execute(sa.select(*model).where(model[0].is_not(None)))
            owners = {row[0]: row[1] for row in rows}
            assert owners.pop(gone) is None
            assert owners == {one: f"owner of {one}" for one in known}


def _forget_owners(db: Database) -> None:
    with db.writer() as tx:
        for model in (Arq, Instance):
            tx.execute(sa.update(model).values(project_id=None))


@pytest.mark.parametrize("command", ["upgrade", "create_schema"])
def test_new_installation_is_told_to_require_signatures(
    empty: Database, tmp_path: Path, command: str
) -> None:
    status, _, err = run(empty, tmp_path, "dbsync", command)
    assert status == 0
    assert "set [DEFAULT] message_signing = required" in err
    # From now on it is an existing installation.
    assert "message_signing" not in run(empty, tmp_path, "dbsync", "upgrade")[2]
