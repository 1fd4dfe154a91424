# SPDX-License-Identifier: Apache-2.0
"""Clients that bind while an operator begins to drain their host, or its devices."""

import threading
from collections.abc import Callable
from functools import partial
from random import Random
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.context import Conductor
from cyborg.conductor.hosts import devices, removal
from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle, Device
from cyborg.model.device import DeviceStatus
from cyborg.model.process import HostStatus
from cyborg.rpc.verbs import SetServiceStatus, UpdateDevice
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.single_step import Conductor as SteppedConductor
from cyborg.tests.fixtures.use_cases import NOVA
from cyborg.tests.fixtures.waiting import acquired
from cyborg.tests.functional.races.arena import WORKERS, Arena, at_once, sound
from cyborg.tests.functional.races.conftest import DEVICES, HOST, UNITS

Order = Callable[[Conductor, bool], object]


def order_host(arena: Arena) -> Order:
    """Begin to drain the host, or resume it."""
    agent = arena.first.agent_row(HOST).uuid

    def order(ctx: Conductor, drain: bool) -> None:
        status = HostStatus.DRAINING if drain else HostStatus.ENABLED
        removal.set_status(ctx, SetServiceStatus(NOVA, str(uuid4()), agent, status, reason=None))

    return order


def order_devices(arena: Arena) -> Order:
    """Begin to drain each device, or resume it."""
    uuids = [row.uuid for row in arena.first.rows(Device)]

    def order(ctx: Conductor, drain: bool) -> None:
        status = DeviceStatus.DRAINING if drain else DeviceStatus.ENABLED
        for uuid in uuids:
            devices.update(ctx, UpdateDevice(NOVA, str(uuid4()), uuid, status, {}, None))

    return order


def held(db: Database) -> set[int]:
    """The units that ARQs have."""
    with db.reader() as tx:
        query = sa.select(AttachHandle.id).where(AttachHandle.arq_id.is_not(None))
        return set(tx.execute(query).scalars())


@pytest.mark.parametrize("kind", [order_host, order_devices])
def test_nothing_is_bound_once_a_drain_is_answered(
    arena: Arena, dice: Random, kind: Callable[[Arena], Order]
) -> None:
    order, bound = kind(arena), threading.Semaphore(0)
    answered: list[set[int]] = []
    bodies = arena.first.request(WORKERS)

    def bind(conductor: SteppedConductor, arqs: list[str]) -> bool:
        """Bind and unbind until a bind is refused; half of the clients keep what they bind."""
        while True:
            late = bool(answered)
            try:
                conductor.bind(arqs, provider_of(HOST, dice.randrange(DEVICES)), str(uuid4()))
            except exception.NoFreeHandle:
                continue
            except exception.DeviceUnavailable:
                return False
            bound.release()
            assert not late
            if arqs in bodies[: UNITS * DEVICES // 2]:
                return True
            conductor.unbind(arqs)

    def drain() -> bool:
        for _ in range(dice.randint(0, 2 * WORKERS)):
            acquired(bound, "a bind")
        order(dice.choice(arena.conductors).ctx, True)
        answered.append(held(arena.db))
        return False

    verbs: list[Callable[[], bool]] = [drain]
    verbs += [
        partial(bind, conductor, arqs)
        for conductor, arqs in zip(arena.take_turns(WORKERS), bodies, strict=True)
    ]
    kept = at_once(verbs)
    # Those that were bound before the answer, and are not unbound since.
    assert held(arena.db) <= answered[0]
    assert len(held(arena.db)) == kept.count(True)
    sound(arena.db)
    order(arena.first.ctx, False)


@pytest.mark.parametrize("kind", [order_host, order_devices])
def test_bind_that_has_read_its_device_before_a_drain_is_refused(
    arena: Arena, kind: Callable[[Arena], Order]
) -> None:
    """The drain is answered between the first statement of the bind and its claim."""
    order, ((arq,),) = kind(arena), arena.first.request(1)
    other = Database(arena.db.engine.url.render_as_string(hide_password=False))
    engine, orders = arena.db.engine, [True]

    def meanwhile(_connection: sa.Connection, statement: object, *_rest: object) -> None:
        if isinstance(statement, sa.Select) and AttachHandle.__table__ in (
            statement.columns_clause_froms
        ):
            while orders:
                order(context(other), orders.pop())

    if arena.db.engine.dialect.name == "sqlite":
        # One transaction writes at a time: the drain comes before or after the bind.
        order(arena.first.ctx, orders.pop())
    sa.event.listen(engine, "before_execute", meanwhile)
    try:
        with pytest.raises(exception.DeviceUnavailable, match="draining"):
            arena.first.bind([arq], provider_of(HOST, 0), str(uuid4()))
    finally:
        sa.event.remove(engine, "before_execute", meanwhile)
        order(arena.first.ctx, False)
        other.close()
    assert held(arena.db) == set()
    sound(arena.db)
