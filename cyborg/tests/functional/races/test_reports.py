# SPDX-License-Identifier: Apache-2.0
"""Reports and operators against binds: what vanishes, and what is taken out of service."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from uuid import uuid4

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.hosts import devices
from cyborg.db.models import AttachHandle, Deployable, Device, Event, Host
from cyborg.model.device import DeviceStatus
from cyborg.model.report import Report
from cyborg.rpc.verbs import SetDeviceStatus
from cyborg.tests.fixtures.host_reports import provider_of, report_of
from cyborg.tests.fixtures.single_step import Conductor
from cyborg.tests.fixtures.use_cases import NOVA
from cyborg.tests.functional.races.arena import WORKERS, Arena, Outcome, Verb, holds
from cyborg.tests.functional.races.conftest import DEVICES, HOST, UNITS

#: What a host shows when all is well.
WHOLE = report_of(HOST, DEVICES, handles=UNITS)


def without(report: Report, gone: set[int]) -> Report:
    """The same host without some of its devices."""
    (driver,) = report.drivers
    left = tuple(one for index, one in enumerate(driver.devices) if index not in gone)
    return Report((replace(driver, devices=left),))


def shrunk(report: Report, missing: set[int]) -> Report:
    """The same host, each device without some of its units."""
    (driver,) = report.drivers
    devices = []
    for device in driver.devices:
        (deployable,) = device.deployables
        handles = tuple(one for index, one in enumerate(deployable.handles) if index not in missing)
        devices.append(replace(device, deployables=(replace(deployable, handles=handles),)))
    return Report((replace(driver, devices=tuple(devices)),))


def rows(arena: Arena) -> list[int]:
    """The ids of all that a report may find; it never deletes."""
    with arena.db.reader() as tx:
        return [
            one
            for table in (Device, Deployable, AttachHandle)
            for one in tx.execute(sa.select(table.id).order_by(table.id)).scalars()
        ]


@dataclass(frozen=True)
class Boots:
    """Servers that boot with two units each of one device: ARQs and device by instance."""

    bodies: dict[str, list[str]]
    devices: dict[str, int]
    binds: list[Verb]

    def won(self, outcomes: Sequence[Outcome]) -> dict[str, list[str]]:
        """The ARQs by instance of the binds that were carried out."""
        pairs = zip(self.bodies.items(), outcomes, strict=True)
        return {instance: arqs for (instance, arqs), one in pairs if one is None}

    def served(self, outcomes: Sequence[Outcome], devices: Collection[int]) -> None:
        """These devices, in service all the time, have as many guests as they have room for."""
        asked = Counter(self.devices.values())
        bound = Counter(self.devices[one] for one in self.won(outcomes))
        wanted = {one: min(asked[one], UNITS // 2) for one in devices}
        assert {one: bound[one] for one in devices} == wanted


def boots(arena: Arena, dice: Random, count: int) -> Boots:
    """So many servers, each for a device that chance decides on."""
    bodies = {str(uuid4()): arqs for arqs in arena.first.request(count, 2)}
    devices = {instance: dice.randrange(DEVICES) for instance in bodies}
    binds: list[Verb] = [
        partial(conductor.bind, arqs, provider_of(HOST, devices[instance]), instance)
        for conductor, (instance, arqs) in zip(arena.take_turns(count), bodies.items(), strict=True)
    ]
    return Boots(bodies, devices, binds)


def test_devices_vanish_while_they_are_bound(arena: Arena, dice: Random) -> None:
    """What is bound stays bound; what is lost is not bound, and comes back as it was."""
    before = rows(arena)
    arena.first.report(HOST, WHOLE)
    servers = boots(arena, dice, WORKERS - 1)
    verbs = list(servers.binds)
    gone = set(dice.sample(range(DEVICES), 2))
    verbs.insert(dice.randrange(WORKERS), partial(arena.first.report, HOST, without(WHOLE, gone)))
    position = next(index for index, one in enumerate(verbs) if _is_report(one))
    outcomes = arena.outcomes(verbs)
    assert outcomes.pop(position) is None
    allowed = {None, exception.DeviceUnavailable, exception.NoFreeHandle}
    assert set(outcomes) <= allowed
    servers.served(outcomes, set(range(DEVICES)) - gone)
    won = servers.won(outcomes)
    holds(arena.first, won)
    assert arena.first.count(Device, Device.lost_ms.is_not(None)) == len(gone)
    for arqs, one in zip(arena.first.request(len(gone), 2), gone, strict=True):
        verb = partial(arena.first.bind, arqs, provider_of(HOST, one), str(uuid4()))
        assert arena.outcomes([verb]) == [exception.DeviceUnavailable]
    arena.first.report(HOST, WHOLE)
    holds(arena.first, won)
    assert rows(arena) == before
    assert arena.first.count(Device, Device.lost_ms.is_not(None)) == 0


def test_units_vanish_while_they_are_bound(arena: Arena, dice: Random) -> None:
    """A unit that goes is that unit and no other, bound or not."""
    before = rows(arena)
    arena.first.report(HOST, WHOLE)
    missing = set(dice.sample(range(UNITS), dice.randint(1, 3)))
    servers = boots(arena, dice, WORKERS - 2)
    verbs = list(servers.binds)
    second = partial(arena.conductors[1].report, HOST, shrunk(WHOLE, missing))
    verbs += [partial(arena.first.report, HOST, shrunk(WHOLE, missing)), second]
    *outcomes, first, again = arena.outcomes(verbs)
    assert (first, again) == (None, None)
    assert set(outcomes) <= {None, exception.NoFreeHandle}
    won = servers.won(outcomes)
    # Each unit that stays is given out while anybody asks for it.
    asked, bound = Counter(servers.devices.values()), Counter(servers.devices[one] for one in won)
    for index in range(DEVICES):
        assert bound[index] >= min(asked[index], (UNITS - len(missing)) // 2)
    holds(arena.first, won)
    assert (
        arena.first.count(AttachHandle, AttachHandle.lost_ms.is_not(None)) == len(missing) * DEVICES
    )
    assert rows(arena) == before
    arena.first.report(HOST, WHOLE)
    holds(arena.first, won)
    assert arena.first.count(AttachHandle, AttachHandle.lost_ms.is_not(None)) == 0


def test_concurrent_reports_on_two_conductors(arena: Arena, dice: Random) -> None:
    """The same news told many times, as after time-outs: each row is made once."""
    name = f"news-{dice.getrandbits(64):x}"
    arena.first.report(name, Report(()))
    told = [
        partial(one.report, name, report_of(name, 3, handles=2))
        for one in arena.take_turns(WORKERS)
    ]
    assert set(arena.outcomes(told)) == {None}
    with arena.db.reader() as tx:
        found = tx.execute(
            sa.select(Device.device_key, sa.func.count(AttachHandle.id))
            .join(Deployable, Deployable.device_id == Device.id)
            .join(AttachHandle, AttachHandle.deployable_id == Deployable.id)
            .where(Device.hostname == name)
            .group_by(Device.device_key)
        ).all()
    assert [units for _, units in found] == [2, 2, 2]
    assert arena.first.count(Event, Event.action == "discovered", Event.hostname == name) == 3


def test_enable_and_disable_against_reports(arena: Arena, dice: Random) -> None:
    """Every order and every report counts once, and the last order is what holds."""
    arena.first.report(HOST, WHOLE)
    with arena.db.reader() as tx:
        device = tx.execute(
            sa.select(Device.uuid)
            .join(Deployable, Deployable.device_id == Device.id)
            .where(Deployable.rp_uuid == provider_of(HOST, 0))
        ).scalar_one()
    before = generation(arena)
    words = (DeviceStatus.MAINTAINING, DeviceStatus.ENABLED)
    orders: list[Verb] = [
        partial(order, one, device, dice.choice(words)) for one in arena.take_turns(20)
    ]
    news = 4

    def reports(conductor: Conductor) -> None:
        for index in range(news):
            changed = shrunk(WHOLE, {0}) if index % 2 == 0 else WHOLE
            conductor.report(HOST, changed)

    servers = boots(arena, dice, 8)
    verbs: list[Verb] = [*orders, partial(reports, arena.conductors[1])]
    outcomes = arena.outcomes([*verbs, *servers.binds])
    assert set(outcomes[: len(verbs)]) == {None}
    ends = outcomes[len(verbs) :]
    assert set(ends) <= {None, exception.DeviceUnavailable, exception.NoFreeHandle}
    # The orders are about the first device; of the others four units are there all the time.
    servers.served(ends, range(1, DEVICES))
    holds(arena.first, servers.won(ends))
    assert generation(arena) == before + len(orders) + news
    with arena.db.reader() as tx:
        history = list(
            tx.execute(
                sa.select(Event.action).where(Event.subject_uuid == device).order_by(Event.id)
            ).scalars()
        )
        status = tx.execute(sa.select(Device.status).where(Device.uuid == device)).scalar_one()
    assert len(history) == len(orders)
    assert status == history[-1]


def order(conductor: Conductor, device: str, status: DeviceStatus) -> None:
    """An operator's."""
    devices.set_status(conductor.ctx, SetDeviceStatus(NOVA, str(uuid4()), device, status))


def generation(arena: Arena) -> int:
    """That of what is desired of the host."""
    with arena.db.reader() as tx:
        query = sa.select(Host.desired_generation).where(Host.name == HOST)
        return int(tx.execute(query).scalar_one())


def _is_report(verb: Verb) -> bool:
    return isinstance(verb, partial) and verb.func.__name__ == "report"
