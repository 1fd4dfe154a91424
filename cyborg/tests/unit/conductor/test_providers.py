# SPDX-License-Identifier: Apache-2.0
"""What Placement shall show is computed in one place, and each of its readers sees the same."""

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
import sqlalchemy as sa

import cyborg
from cyborg.conductor.context import Conductor
from cyborg.conductor.hosts.heartbeats import heartbeat
from cyborg.conductor.reports import apply, desired_state
from cyborg.db import audit, providers
from cyborg.db.engine import Database
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Attribute,
    Deployable,
    Device,
    DeviceProfile,
    Driver,
    Host,
    Service,
)
from cyborg.model.device import DeviceStatus, HandleState
from cyborg.model.process import HostStatus
from cyborg.model.provider import Provider
from cyborg.model.report import AgentHeartbeat
from cyborg.rpc.verbs import FetchDesired, Heartbeat, SendReport
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.fixtures.host_reports import report_of
from cyborg.tests.oracle import snapshot

HOSTS: Final = ("first", "second")
CARDS: Final = 6
UNITS: Final = 3
#: The values of a column; each row gets one of them by chance. The first is the usual one.
VALUES: Final[Mapping[Any, list[Any]]] = {
    Device.status: [status.value for status in DeviceStatus],
    Device.lost_ms: [None, 1],
    Device.health: [None, "ok", "degraded", "drain", "dead", "of a later release"],
    Deployable.lost_ms: [None, 1],
    Deployable.publish_error: [None, "its name is taken"],
    Deployable.key: [None, "moved"],
    Deployable.group_size: [None, 2],
    AttachHandle.state: [state.value for state in HandleState],
    AttachHandle.lost_ms: [None, 1],
    AttachHandle.blocked: [False, True],
    AttachHandle.cleaning: [False, True],
    Driver.state: ["READY", "FAILED"],
    Host.unchecked: [False, True],
    Service.host_status: list(HostStatus),
}


@pytest.fixture
def ctx(db: Database) -> Conductor:
    """Return the context of a conductor with two hosts, whose ARQs have units."""
    ctx = context(db)
    for name in HOSTS:
        epoch = heartbeat(
            ctx, Heartbeat(AgentHeartbeat(name, (name,), "0", f"agent@{name}", None))
        ).epoch
        apply.store(ctx, SendReport(name, epoch, report_of(name, CARDS, handles=UNITS)))
    profile = {"id": 1, "uuid": str(uuid4()), "name": "profile", "profile_json": '{"groups": []}'}
    with db.writer() as tx:
        tx.execute(sa.insert(DeviceProfile).values(profile))
        for id_ in tx.scalars(sa.select(AttachHandle.id).where(AttachHandle.id % UNITS == 0)).all():
            arq = tx.execute(
                sa.insert(Arq).values(
                    uuid=str(uuid4()),
                    state="Bound",
                    device_profile_id=1,
                    device_profile_group_id=0,
                    instance_uuid=str(uuid4()),
                )
            ).inserted_primary_key
            holder = {"arq_id": arq[0] if arq else None}
            tx.execute(sa.update(AttachHandle).where(AttachHandle.id == id_).values(holder))
    return ctx


def desired_by_readers(ctx: Conductor) -> list[dict[str, Provider]]:
    """Return uuid → provider as the desired states, the audit and the views of devices say."""
    trees = [desired_state.desired(ctx, FetchDesired(name, 1)).tree for name in HOSTS]
    of_agents = [provider for tree in trees for provider in tree.providers]
    of_audit = [
        part.desired
        for page in audit.host_pages(ctx.db)
        for row in page
        for part in row.deployables
    ]
    with ctx.db.reader() as tx:
        ids = list(tx.scalars(sa.select(Device.id)))
        of_views = [part.desired for p in providers.of_devices(tx, ids).values() for part in p]
    return [{one.uuid: one for one in them} for them in (of_agents, of_audit, of_views)]


def expected(db: Database) -> dict[str, Provider]:
    """Return what the rule in plain Python says of the same rows."""
    cloud = snapshot.take(db)
    rows = [cloud.desired(deployable) for deployable in cloud.deployables]
    return {provider.uuid: provider for provider in rows}


@pytest.mark.parametrize("seed", range(20))
def test_readers_and_rule_agree_on_random_rows(ctx: Conductor, seed: int) -> None:
    chance = random.Random(seed)
    traits = [f"CUSTOM_{number}" for number in range(4)]
    with ctx.db.writer() as tx:
        for column, values in VALUES.items():
            table = column.class_
            for id_ in tx.scalars(sa.select(table.id)).all():
                value = chance.choice([*values[:1] * 4, *values])
                if value == "moved":
                    value = f"moved-{id_}"
                tx.execute(sa.update(table).where(table.id == id_).values({column: value}))
        for id_ in tx.scalars(sa.select(Deployable.id)).all():
            for trait in chance.sample(traits, chance.randint(0, 3)):
                tx.execute(
                    sa.insert(Attribute).values(
                        uuid=str(uuid4()),
                        deployable_id=id_,
                        key=chance.choice(["trait0", "trait1", "rc"]),
                        value=trait,
                        origin=chance.choice(["discovered", "operator"]),
                    )
                )
    rule = expected(ctx.db)
    assert len(rule) == len(HOSTS) * CARDS
    assert desired_by_readers(ctx) == [rule] * 3


@pytest.mark.parametrize(
    ("word", "units"),
    [(None, 1), ("ok", 1), ("degraded", 1), ("drain", 3), ("dead", 3), ("of a later release", 3)],
)
def test_all_units_of_a_faulty_device_are_reserved(
    ctx: Conductor, word: str | None, units: int
) -> None:
    with ctx.db.writer() as tx:
        tx.execute(sa.update(Device).values(health=word))
        quarantined = AttachHandle.id % UNITS == 1
        tx.execute(sa.update(AttachHandle).where(quarantined).values(state="quarantined"))
    for readers in desired_by_readers(ctx):
        assert {provider.reserved for provider in readers.values()} == {units}


def test_no_other_module_computes_a_provider_from_rows() -> None:
    root = Path(cyborg.__file__).parent
    computing = {
        path.relative_to(root).as_posix()
        for package in ("api", "conductor", "db")
        for path in (root / package).rglob("*.py")
        if re.search(r"\bProvider\(|\bunits\.RESERVED\b", path.read_text())
    }
    assert computing == {"db/providers.py"}
