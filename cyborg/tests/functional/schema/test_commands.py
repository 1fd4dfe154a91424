# SPDX-License-Identifier: Apache-2.0
"""cyborg-dbsync and cyborg-status as an operator runs them: words and exit statuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

import cyborg
from cyborg import exception
from cyborg.cmd import dbsync
from cyborg.db import schema
from cyborg.db.engine import Database
from cyborg.db.models import Arq, Device, Instance

ROOT = Path(cyborg.__file__).parent.parent


def _run(db: Database, directory: Path, program: str, *words: str) -> tuple[int, str, str]:
    config = directory / "cyborg.conf"
    url = db.engine.url.render_as_string(hide_password=False)
    config.write_text(f"[database]\nconnection = {url}\nmax_retries = 0\n")
    done = subprocess.run(
        [sys.executable, "-m", f"cyborg.cmd.{program}", "--config-file", str(config), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def _checks(db: Database, directory: Path) -> tuple[int, dict[str, int]]:
    status, out, _ = _run(db, directory, "status", "upgrade", "check", "--json")
    return status, {one["check"]: one["result"] for one in json.loads(out)["checks"]}


def test_a_schema_from_nothing(empty: Database, tmp_path: Path) -> None:
    assert _run(empty, tmp_path, "dbsync", "version")[:2] == (0, "None\n")
    assert _checks(empty, tmp_path)[0] == 2
    status, out, _ = _run(empty, tmp_path, "dbsync", "upgrade")
    assert (status, out) == (0, "")
    assert _run(empty, tmp_path, "dbsync", "version")[:2] == (0, f"{schema.head()}\n")
    assert _checks(empty, tmp_path) == (
        0,
        {
            "Policy File JSON to YAML Migration": 0,
            "Schema at head": 0,
            "Device state backfill": 0,
        },
    )


def test_a_versioned_database_is_not_created_again(current: Database, tmp_path: Path) -> None:
    status, out, err = _run(current, tmp_path, "dbsync", "create_schema")
    assert (status, out) == (1, "")
    assert err.strip().splitlines()[-1] == (
        "cyborg-dbsync: The database is under version control already, at revision "
        f"{schema.head()}; use 'cyborg-dbsync upgrade'."
    )


@pytest.mark.parametrize("words", [(), ("downgrade",)])
def test_wrong_usage(empty: Database, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert _run(empty, tmp_path, "dbsync", *words)[0] == 2


def test_a_foreign_schema_is_one_sentence(existing: Database, tmp_path: Path) -> None:
    schema.stamp(existing, schema.EXISTING)
    with existing.writer() as tx:
        tx.execute(sa.text("UPDATE alembic_version SET version_num = '6c77bd6afea5'"))
    status, _, err = _run(existing, tmp_path, "dbsync", "upgrade")
    assert status == 1
    assert "17.0.0" in err
    assert "Traceback" not in err


def test_online_data_migrations_by_hand(existing: Database, tmp_path: Path) -> None:
    schema.upgrade(existing)
    with existing.writer() as tx:
        tx.execute(sa.update(Device).values(device_state=None))
    assert _checks(existing, tmp_path)[1]["Device state backfill"] == 2
    status, out, _ = _run(existing, tmp_path, "dbsync", "online_data_migrations")
    assert status == 0
    assert out == "Migrated 0 ARQ(s)\nBackfilled device_state on 3/3 devices\n"
    assert _checks(existing, tmp_path)[0] == 0
    with existing.reader() as tx:
        assert set(tx.scalars(sa.select(Device.device_state))) == {"allocated"}


def test_without_an_account_nova_is_not_asked(existing: Database, tmp_path: Path) -> None:
    schema.upgrade(existing)
    _forget_owners(existing)
    status, out, _ = _run(existing, tmp_path, "dbsync", "online_data_migrations")
    assert status == 2
    assert out.splitlines()[0].startswith("Failed to migrate the project ids of ARQs: [nova]")
    assert out.splitlines()[1] == "Backfilled device_state on 0/0 devices"


def test_owners_come_from_nova(existing: Database, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_one_failing_step_does_not_keep_the_other(
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


def test_an_unreachable_database_fails_the_check(tmp_path: Path) -> None:
    nowhere = Database(f"sqlite:///{tmp_path}/missing/cyborg.sqlite")
    status, results = _checks(nowhere, tmp_path)
    assert status == 2
    assert results["Schema at head"] == results["Device state backfill"] == 2
    status, _, err = _run(nowhere, tmp_path, "dbsync", "version")
    assert status == 1
    assert err.strip().splitlines()[-1].startswith("cyborg-dbsync: The database is not available")


def test_a_json_policy_file_fails_the_check(current: Database, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("{}")
    assert _checks(current, tmp_path)[1]["Policy File JSON to YAML Migration"] == 2
