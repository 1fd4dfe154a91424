# SPDX-License-Identifier: Apache-2.0
"""From nothing, from the existing service, and from where an upgrade was killed."""

import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db import revisions, schema
from cyborg.db.engine import Database
from cyborg.db.models import (
    METADATA,
    Arq,
    AttachHandle,
    Attribute,
    Deployable,
    Device,
    DeviceProfile,
    Host,
    Instance,
    UsageRecord,
    UsageStart,
)
from cyborg.db.revisions import HEAD
from cyborg.db.schema_lock import LOCK
from cyborg.tests.fixtures.unit_states import HANDLE_ID, UNIT
from cyborg.tests.functional.schema.databases import differences, upgraded_database

#: A revision that a later release of the existing service may have.
LATER = "5f0c2d9ab713"
#: The revisions from the existing service on, in their order; a killed one is no progress.
REVISIONS = [schema.EXISTING, HEAD]


def _rows(db: Database, *columns: Any) -> list[Any]:
    with db.reader() as tx:
        return list(tx.execute(sa.select(*columns).order_by(columns[0])))


def test_new_database_equals_the_models(empty: Database) -> None:
    assert revisions.version(empty) is None
    schema.upgrade(empty)
    assert revisions.version(empty) == HEAD
    assert differences(empty) == []


def test_copy_of_an_upgraded_database_equals_one_that_ran_the_revisions(
    current: Database, tmp_path: Path
) -> None:
    (tmp_path / "copy").mkdir()
    with upgraded_database(tmp_path / "copy") as copy:
        assert revisions.version(copy) == HEAD
        assert differences(copy) == []
        assert _described(copy) == _described(current)
        with copy.writer() as tx:
            tx.execute(sa.insert(Host).values(name="h", updated_ms=1))
        assert _rows(copy, Host.name) != _rows(current, Host.name)


def _described(db: Database) -> dict[str, Any]:
    """Return what the database has of each table, and how many rows."""
    with db.reader() as tx:
        found = sa.inspect(tx.connection)
        return {
            table: (
                [{**column, "type": str(column["type"])} for column in found.get_columns(table)],
                found.get_pk_constraint(table),
                *(
                    sorted(getattr(found, f"get_{kind}")(table), key=str)
                    for kind in ("indexes", "foreign_keys", "unique_constraints")
                ),
                sorted(found.get_check_constraints(table), key=str),
                found.get_table_options(table),
                tx.scalar(sa.select(sa.func.count()).select_from(sa.table(table))),
            )
            for table in found.get_table_names()
        }


def test_comparison_sees_a_difference(current: Database) -> None:
    with current.writer() as tx:
        tx.exec_driver_sql("DROP INDEX ix_events_at_ms" + _on(current, "events"))
        tx.exec_driver_sql("ALTER TABLE hosts ADD COLUMN stray INTEGER")
    assert {one[0] for one in differences(current)} == {"add_index", "remove_column"}


def _on(db: Database, table: str) -> str:
    return f" ON {table}" if db.engine.dialect.name == "mysql" else ""


def test_create_schema_equals_upgrade(empty: Database) -> None:
    schema.create_schema(empty)
    assert revisions.version(empty) == HEAD
    assert differences(empty) == []
    # A new cloud has all uses.
    assert _rows(empty, UsageStart.at_ms) == []
    with pytest.raises(exception.SchemaError, match="already has a schema"):
        schema.create_schema(empty)


def test_upgrade_keeps_what_there_was_and_fills_what_is_new(
    existing: Database,
) -> None:
    schema.upgrade(existing)
    arqs = _rows(existing, Arq.id, Arq.state, HANDLE_ID.label("handle_id"), Arq.group_spec)
    assert [row.handle_id for row in arqs] == [1, 4, 29, 2, 6, None, None]
    assert Counter(row.state for row in arqs) == {"Bound": 5, "Unbound": 1, "Initial": 1}
    spec = {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}
    assert [row.group_spec for row in arqs] == [spec] * 7
    handles = _rows(existing, AttachHandle.id, UNIT.label("unit"), AttachHandle.handle_key)
    assert [row.id for row in handles if row.unit == "held"] == [1, 2, 4, 6, 29]
    assert {row.unit for row in handles} == {"held", "free"}
    assert handles[0].handle_key == "0000:0c:00.1"
    assert len(handles) == 48
    # The existing service does not say since when they are held.
    (start,) = _rows(existing, UsageStart.at_ms)
    columns = (UsageRecord.arq_id, UsageRecord.began_ms, UsageRecord.ended_ms)
    records = _rows(existing, *columns, UsageRecord.resource_class)
    assert [tuple(row) for row in records] == [
        (row.id, start.at_ms, None, "FPGA") for row in arqs if row.handle_id is not None
    ]
    hosts = _rows(existing, Host.name, Host.id, Host.generation, Host.desired_generation)
    assert [(row.name, row.generation, row.desired_generation) for row in hosts] == [
        ("lab-host-1", 0, 1),
        ("lab-host-2", 0, 1),
        ("lab-sim-1", 0, 1),
    ]
    devices = _rows(
        existing, Device.hostname, Device.host_id, Device.status, Device.driver, Device.device_key
    )
    assert [row.host_id for row in devices] == [row.id for row in hosts]
    assert [row.status for row in devices] == ["maintaining", "enabled", "enabled"]
    assert {(row.driver, row.device_key) for row in devices} == {("fake_driver", "0000:0c:00.0")}
    assert _rows(existing, Deployable.id, Deployable.resource_class) == [
        (1, "FPGA"),
        (2, "FPGA"),
        (3, "FPGA"),
    ]
    instances = _rows(existing, Instance.uuid, Instance.hostname)
    bound = _rows(existing, Arq.instance_uuid, Arq.hostname)
    assert instances == [row for row in bound if row[0]]
    assert len(instances) == 5


def test_bind_without_an_instance_ends_and_its_unit_is_not_offered(
    existing: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The instance may be any, so only an operator can say that no guest has the unit."""
    arqs = sa.table("extended_accelerator_requests", sa.column("id"), sa.column("instance_uuid"))
    with existing.writer() as tx:
        tx.execute(sa.update(arqs).where(arqs.c.id.in_([1, 2])).values(instance_uuid=None))
    assert schema.preflight(existing) == []
    schema.upgrade(existing)
    assert differences(existing) == []
    columns = Arq.id, Arq.uuid, Arq.state, HANDLE_ID.label("handle_id"), Arq.fault
    ended = [row for row in _rows(existing, *columns) if row.id in (1, 2)]
    assert {(row.state, row.handle_id) for row in ended} == {("BindFailed", None)}
    handles = _rows(existing, AttachHandle.id, AttachHandle.uuid, UNIT.label("unit"))
    assert Counter(row.unit for row in handles) == {"quarantined": 2, "held": 3, "free": 43}
    suspects = _rows(existing, AttachHandle.id, AttachHandle.suspect)
    assert [row.id for row in suspects if row.suspect] == [1, 4]
    uuids = {row.id: row.uuid for row in handles}
    for row, handle in zip(ended, (1, 4), strict=True):
        unit = f"attach handle {uuids[handle]} is in quarantine until an operator frees it"
        assert row.fault == f"It was Bound without an instance before the upgrade; {unit}."
        assert f"ARQ {row.uuid} is BindFailed now: {row.fault}" in caplog.text


def test_repeating_an_upgrade_changes_nothing(existing: Database) -> None:
    schema.upgrade(existing)
    before = _everything(existing)
    schema.upgrade(existing)
    assert _everything(existing) == before
    # Ids are never used twice.
    with existing.writer() as tx:
        newest = tx.execute(sa.select(sa.func.max(Attribute.id))).scalar_one()
        tx.execute(sa.delete(Attribute).where(Attribute.id == newest))
        row = {"uuid": str(uuid.uuid4()), "deployable_id": 1, "key": "k", "value": "v"}
        made = tx.execute(sa.insert(Attribute), row).inserted_primary_key
        assert made is not None
        assert made[0] > newest


def _everything(db: Database) -> dict[str, list[Any]]:
    with db.reader() as tx:
        return {
            table.name: sorted(map(repr, tx.execute(sa.select(table))))
            for table in METADATA.sorted_tables
        }


class _Killed(BaseException):
    """No Exception: like a signal, it is not to be caught on its way."""


def test_killed_upgrade_is_run_again(existing: Database) -> None:
    # DDL commits by itself on MySQL: there each run gets one statement further. The others take
    # all of it back, so each run is let go further than the one before.
    commits = existing.engine.dialect.name == "mysql"
    left = 0
    killed = 0
    before = schema.EXISTING

    def kill(*args: Any) -> None:
        nonlocal left
        if args[2].lstrip().upper().startswith(("CREATE", "ALTER", "DROP")):
            left -= 1
            if left == 0:
                raise _Killed("by the test")

    sa.event.listen(existing.engine, "after_cursor_execute", kill)
    for attempt in range(1, 300):
        left = 1 if commits else attempt * 20
        try:
            schema.upgrade(existing)
            break
        except _Killed:
            killed += 1
            reached = revisions.version(existing)
            assert reached in REVISIONS[REVISIONS.index(before) : -1], "it went back, or too far"
            before = reached
    sa.event.remove(existing.engine, "after_cursor_execute", kill)
    assert killed > (60 if commits else 1)
    assert revisions.version(existing) == HEAD
    assert differences(existing) == []
    assert len(_rows(existing, Instance.uuid)) == 5
    handles = _rows(existing, UNIT.label("unit"), AttachHandle.id)
    assert Counter(row.unit for row in handles) == {"held": 5, "free": 43}


def test_first_revision_is_run_again_when_killed(empty: Database) -> None:
    left = 5

    def kill(*args: Any) -> None:
        nonlocal left
        left -= args[2].lstrip().upper().startswith("CREATE")
        if left == 0:
            raise _Killed("by the test")

    sa.event.listen(empty.engine, "after_cursor_execute", kill)
    with pytest.raises(_Killed):
        schema.upgrade(empty)
    sa.event.remove(empty.engine, "after_cursor_execute", kill)
    schema.upgrade(empty)
    assert differences(empty) == []


def test_text_beyond_the_basic_plane_is_kept(current: Database) -> None:
    name = "gpu \N{ROCKET}"
    with current.writer() as tx:
        tx.execute(
            sa.insert(DeviceProfile),
            [
                {"uuid": str(uuid.uuid4()), "name": one, "profile_json": "{}"}
                for one in (name, name.upper())
            ],
        )
    assert {row.name for row in _rows(current, DeviceProfile.name)} == {name, name.upper()}


def test_older_and_unknown_schemas_are_refused(existing: Database) -> None:
    assert len(schema.TOO_OLD) == 17
    for revision in sorted(schema.TOO_OLD):
        _note(existing, revision)
        words = rf"{revision} of the existing.*First run 'cyborg-dbsync upgrade' .*17\.0\.0"
        with pytest.raises(exception.SchemaError, match=words):
            schema.upgrade(existing)
        assert revisions.version(existing) == revision
    _note(existing, "0123456789ab")
    with pytest.raises(exception.SchemaError, match="0123456789ab, which this release does not"):
        schema.upgrade(existing)


def test_later_schema_of_the_existing_service_is_upgraded_if_it_only_adds(
    existing: Database,
) -> None:
    with existing.writer() as tx:
        tx.exec_driver_sql("ALTER TABLE devices ADD COLUMN cleaned_at VARCHAR(36)")
        tx.exec_driver_sql("CREATE TABLE cleanings (id INTEGER PRIMARY KEY, note VARCHAR(36))")
        tx.exec_driver_sql("INSERT INTO cleanings VALUES (1, 'kept')")
    _note(existing, LATER)
    with pytest.raises(exception.SchemaError, match=f"{LATER}, which this release does not know"):
        schema.upgrade(existing)
    handle = sa.table("attach_handles", sa.column("id"), sa.column("attach_info"))
    with existing.writer() as tx:
        info = sa.select(handle.c.attach_info)
        other, before = (tx.scalar(info.where(handle.c.id == row)) for row in (5, 7))
        tx.execute(sa.update(handle).where(handle.c.id == 7).values(attach_info=other))
    with pytest.raises(exception.SchemaError, match="nothing was changed"):
        schema.upgrade(existing, additions={LATER})
    assert revisions.version(existing) == LATER
    with existing.writer() as tx:
        tx.execute(sa.update(handle).where(handle.c.id == 7).values(attach_info=before))
    schema.upgrade(existing, additions={LATER})
    assert revisions.version(existing) == HEAD
    with existing.reader() as tx:
        assert tx.scalar(sa.text("SELECT note FROM cleanings")) == "kept"
    added = {str(one[1] if one[0] == "remove_table" else one[3]) for one in differences(existing)}
    kept_column = existing.engine.dialect.name != "sqlite"
    assert added == ({"cleanings", "devices.cleaned_at"} if kept_column else {"cleanings"})
    assert len(_rows(existing, AttachHandle.id)) == 48
    schema.upgrade(existing, additions={LATER})


def test_tables_that_nobody_versioned_are_left_alone(existing: Database) -> None:
    with existing.writer() as tx:
        tx.exec_driver_sql("DROP TABLE alembic_version")
    before = _tables(existing)
    with pytest.raises(
        exception.SchemaError, match=r"attach_handles, attr.*records no revision"
    ) as it:
        schema.upgrade(existing)
    assert _tables(existing) == before
    assert f"'cyborg-dbsync stamp --revision {schema.EXISTING}'" in str(it.value)
    schema.stamp(existing, schema.EXISTING)
    schema.upgrade(existing)
    assert differences(existing) == []
    schema.stamp(existing)
    assert revisions.version(existing) is None


def _note(db: Database, revision: str) -> None:
    with db.writer() as tx:
        tx.execute(
            sa.text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision}
        )


def test_preflight_lists_all_and_changes_nothing(existing: Database) -> None:
    old = sa.MetaData()
    with existing.writer() as tx:
        old.reflect(tx.connection)
        arqs, handles, devices, deployables = (
            old.tables[name]
            for name in (
                "extended_accelerator_requests",
                "attach_handles",
                "devices",
                "deployables",
            )
        )
        # Two requests with one handle, one function twice, one device twice, one name twice.
        tx.execute(arqs.update().where(arqs.c.id == 4).values(attach_handle_id=1))
        info = tx.scalar(sa.select(handles.c.attach_info).where(handles.c.id == 5))
        tx.execute(handles.update().where(handles.c.id == 7).values(attach_info=info))
        tx.execute(devices.update().where(devices.c.id == 3).values(hostname="lab-sim-1"))
        tx.execute(
            deployables.update()
            .where(deployables.c.id == 3)
            .values(name="lab-sim-1_FakeDevice", rp_uuid=None)
        )
    before = _tables(existing)
    listed = schema.preflight(existing)
    with pytest.raises(exception.SchemaError) as caught:
        schema.upgrade(existing)
    for table, value, ids in (
        ("devices", "device 0000:0c:00.0 of fake_driver on host lab-sim-1", "2, 3"),
        ("deployables", "name lab-sim-1_FakeDevice", "2, 3"),
        ("attach_handles", "handle 0000:0c:00.4 of deployable 1", "5, 7"),
        ("extended_accelerator_requests", "attach_handle_id 1", "1, 4"),
    ):
        line = f"{table}: {value} is in several rows, with id {ids}; "
        assert line in str(caught.value)
        assert any(one.startswith(line) for one in listed)
    assert len(listed) == 4
    assert _tables(existing) == before
    assert revisions.version(existing) == schema.EXISTING


def _tables(db: Database) -> dict[str, Any]:
    """Return the tables with their columns, but not the lock of those that change them."""
    inspector = sa.inspect(db.engine)
    return {
        name: [column["name"] for column in inspector.get_columns(name)]
        for name in inspector.get_table_names()
        if name != LOCK.name
    }
