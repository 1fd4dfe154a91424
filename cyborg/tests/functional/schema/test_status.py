# SPDX-License-Identifier: Apache-2.0
"""cyborg-status upgrade check on real databases: what it finds, and what it tells to do."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import version
from cyborg.cmd.signing_key import main
from cyborg.cmd.status import CHECKS
from cyborg.db import revisions, schema, services
from cyborg.db.engine import Database
from cyborg.db.models import Arq, AttachHandle, Device, Driver, Host, Instance
from cyborg.db.services import Process
from cyborg.db.transaction import Transaction
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import TOKEN, PlacementService, shared
from cyborg.tests.fixtures.processes import Options
from cyborg.tests.functional.schema.commands import checked, run

NAMES = [name for name, _ in CHECKS]
ORPHANS = "Orphaned accelerator requests"
PEERS = {"Account at Nova", "Account at Placement"}
HERE = version.installed()


@pytest.fixture
def nova() -> Iterator[SimulatedNova]:
    with SimulatedNova() as running:
        yield running


@pytest.fixture
def placement() -> PlacementService:
    return shared()


def accounts(nova: SimulatedNova, placement: PlacementService, token: str = TOKEN) -> Options:
    """The groups by which both are reached."""
    return {
        "nova": {"auth_type": "none", "endpoint": nova.url},
        "placement": {"auth_type": "admin_token", "endpoint": placement.url, "token": token},
    }


def test_checks_succeed_after_fresh_installation(
    empty: Database, tmp_path: Path, nova: SimulatedNova, placement: PlacementService
) -> None:
    assert run(empty, tmp_path, "dbsync", "version")[:2] == (0, "None\n")
    before = checked(empty, tmp_path)
    assert before.status == 2
    assert before.results["Schema at head"] == before.results["Device state backfill"] == 2
    assert run(empty, tmp_path, "dbsync", "upgrade")[:2] == (0, "")
    assert run(empty, tmp_path, "dbsync", "version")[:2] == (0, f"{revisions.HEAD}\n")
    assert main(["create", str(tmp_path / "keys.json")]) == 0
    signing = {"message_signing": "required", "message_signing_key_file": tmp_path / "keys.json"}
    more = {**accounts(nova, placement), "DEFAULT": signing}
    found = checked(empty, tmp_path, more=more)
    assert found.status == 0
    assert found.results == dict.fromkeys(NAMES, 0)
    # About a server that nobody has: nothing has come of it.
    (told,) = nova.events
    assert nova.guests.uuids() == []
    assert told.server_uuid != told.tag


def test_checks_warn_about_missing_accounts(current: Database, tmp_path: Path) -> None:
    found = checked(current, tmp_path)
    assert found.status == 1
    assert {name for name, result in found.results.items() if result} == {*PEERS, "Message signing"}
    for name, group in (("Account at Nova", "[nova]"), ("Account at Placement", "[placement]")):
        assert found.details[name].startswith(f"Not checked: {group} auth_type is not set")
    (tmp_path / "policy.yaml").write_text("{}")
    assert checked(current, tmp_path).results["Policy File JSON to YAML Migration"] == 2


def test_checks_fail_with_unreachable_database(tmp_path: Path) -> None:
    found = checked(Database(f"sqlite:///{tmp_path}/missing/cyborg.sqlite"), tmp_path)
    assert found.status == 2
    failed = {name for name, result in found.results.items() if result == 2}
    assert failed == {"Schema at head", "Device state backfill"}
    assert found.details[ORPHANS].startswith("Not checked: The database is not available")


def test_preflight_check_lists_what_upgrade_refuses(existing: Database, tmp_path: Path) -> None:
    """Before anything is stopped it lists what the upgrade would refuse, and how to see it."""
    tables = sa.MetaData()
    with existing.writer() as tx:
        tables.reflect(tx.connection)
        arqs = tables.tables["extended_accelerator_requests"]
        tx.execute(arqs.update().where(arqs.c.id == 4).values(attach_handle_id=1))
    found = checked(existing, tmp_path)
    assert found.status == 2
    assert found.results["Device state backfill"] == 0
    assert "run 'cyborg-dbsync upgrade'" in found.details["Schema at head"]
    listed = found.details["Duplicate rows"]
    assert "attach_handle_id 1 is in several rows, with id 1, 4; find the instance" in listed
    query = listed[listed.index("SELECT") :].rstrip(";")
    with existing.reader() as tx:
        assert {row.attach_handle_id for row in tx.execute(sa.text(query))} == {1}
    assert all(
        found.details[name].startswith("Not checked: The schema is at revision b47c8f2d1e3a")
        for name in ("Services of one release", "Services that are silent", ORPHANS)
    )


def test_check_reports_services_of_other_releases(current: Database, tmp_path: Path) -> None:
    present = Process("control-1", CONDUCTOR, HERE, "bus", "2")
    for process, seen in (
        # One that was stopped, and started again beside the present one.
        (Process("control-1", CONDUCTOR, HERE, "bus", "1"), -600_000),
        (Process("compute-1", AGENT, HERE, "bus"), -600_000),
        (present, -600_000),
    ):
        _seen(current, process, seen)
    # All are silent, as an upgrade wants it.
    assert checked(current, tmp_path).results["Services that are silent"] == 0
    _seen(current, present)
    _seen(current, Process("control-1", API, "19.0.0", "http"))
    found = checked(current, tmp_path)
    assert found.status == 1
    silent = found.details["Services that are silent"]
    assert silent.startswith("No heartbeat of cyborg-agent on compute-1 (for 10 minutes). Run")
    mixed = found.details["Services of one release"]
    assert f"{HERE}: cyborg-conductor on control-1; 19.0.0: cyborg-api on control-1." in mixed
    _seen(current, Process("compute-1", AGENT, "16.0.1", "bus"))
    found = checked(current, tmp_path)
    assert found.results["Services that are silent"] == 0
    assert found.results["Services of one release"] == 2
    assert "16.0.1: cyborg-agent on compute-1" in found.details["Services of one release"]


def _seen(db: Database, process: Process, when: int = 600_000) -> None:
    """So many milliseconds from now: the future, lest it be silent before a slow check ends."""
    with db.writer() as tx:
        services.register(Transaction(tx.connection, db.now + when), process, "ready")


def test_check_warns_about_inactive_devices(existing: Database, tmp_path: Path) -> None:
    schema.upgrade(existing)
    with existing.writer() as tx:
        tx.execute(sa.update(Device).values(status="inactive"))
    found = checked(existing, tmp_path)
    assert found.results["Devices that wait"] == 1
    assert "3 device(s) wait to be enabled" in found.details["Devices that wait"]
    enabling: Options = {"conductor": {"auto_enable": "fake_driver"}}
    assert checked(existing, tmp_path, more=enabling).results["Devices that wait"] == 0


def test_check_warns_about_options_that_only_files_may_set(
    current: Database, tmp_path: Path
) -> None:
    with current.writer() as tx:
        tx.execute(sa.insert(Host).values(name="compute-1", updated_ms=0))
        host_id = tx.execute(sa.select(Host.id)).scalar_one()
        for name, options, accepts in (
            (
                "pci_driver",
                {"pci.passthrough_whitelist": "{}"},
                [{"name": "passthrough_whitelist"}],
            ),
            ("fake_driver", {"fault": "hot"}, []),
            ("their_driver", {"speed": "1", "cards.colour": "red"}, [{"name": "speed"}]),
            ("silent_driver", {"speed": "1"}, None),
            ("generic_driver", None, None),
        ):
            values = {"name": name, "options": options, "accepts": accepts, "host_id": host_id}
            tx.execute(sa.insert(Driver).values(uuid=str(uuid4()), state="READY", **values))
    found = checked(current, tmp_path)
    assert found.results["Options of drivers"] == 1
    assert (
        ": pci.passthrough_whitelist of pci_driver on compute-1, cards.colour of their_driver on "
        "compute-1. Set them in"
    ) in found.details["Options of drivers"]


def test_check_warns_about_arqs_of_deleted_servers(
    existing: Database, tmp_path: Path, nova: SimulatedNova, placement: PlacementService
) -> None:
    schema.upgrade(existing)
    with existing.writer() as tx:
        gone, *known = sorted(tx.scalars(sa.select(Instance.uuid)))
        # Whose rows were just written may be on its way.
        tx.execute(sa.update(Arq).values(created_at=None, updated_at=None))
        stranded = tx.scalar(sa.select(AttachHandle.uuid).where(AttachHandle.id == 48))
        tx.execute(sa.update(AttachHandle).where(AttachHandle.id == 48).values(state="releasing"))
    for instance in known:
        nova.own(instance, "demo")
    found = checked(existing, tmp_path, more=accounts(nova, placement))
    assert (found.status, found.results[ORPHANS]) == (1, 1)
    said = found.details[ORPHANS]
    assert f"handle {stranded}: It is to be released, but there is no work for it. cyborg-" in said
    assert f"instance {gone}: It has ARQs, but Nova has no such server. cyborg-audit" in said
    assert not any(one in said for one in known)
    nova.stop()
    said = checked(existing, tmp_path, more=accounts(nova, placement)).details[ORPHANS]
    assert f"handle {stranded}" in said
    assert "Not checked whether Nova has all servers of 5 instance(s): Nova is not avail" in said


def test_check_fails_for_accounts_without_rights(
    current: Database, tmp_path: Path, nova: SimulatedNova, placement: PlacementService
) -> None:
    nova.answer_calls(403)
    found = checked(current, tmp_path, more=accounts(nova, placement, token=uuid4().hex))
    assert found.status == 2
    assert {name for name, result in found.results.items() if result == 2} == PEERS
    for name in PEERS:
        assert "openstack role add --user USER --project PROJECT service" in found.details[name]
    nova.hide_servers()
    found = checked(current, tmp_path, more=accounts(nova, placement))
    assert found.results["Account at Nova"] == 1
    assert "may not list the servers of all projects" in found.details["Account at Nova"]
