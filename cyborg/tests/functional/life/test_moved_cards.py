# SPDX-License-Identifier: Apache-2.0
"""Cards that are moved, exchanged and replaced: through HTTP and with reports of their host."""

import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from oslo_utils.uuidutils import is_uuid_like

from cyborg.db.engine import Database
from cyborg.db.models import Deployable
from cyborg.model import device as facts
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Confidence,
    Device,
    DeviceType,
    Hardware,
    Identity,
    IdentityKind,
)
from cyborg.model.pci import PciAddress
from cyborg.model.provider import provider_uuid
from cyborg.model.report import AgentHeartbeat, Desired, DriverReport, DriverState, Report
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import FetchDesired, FetchUnitUses, Heartbeat, SendReport
from cyborg.tests.fixtures.any_host import AnyHost
from cyborg.tests.fixtures.placement import fresh_host
from cyborg.tests.fixtures.stack import Stack, reach
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import bind, create, delete_arqs, of_instance

SLOTS = ("0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0", "0000:af:00.0")
DRIVERS = ("card_driver", "other_driver")
#: What is in each slot of a host: the serial number of a card, empty for a card that shows none.
Slots = dict[str, str]


class Host:
    """A host with cards that a test puts into slots.

    They have one unit each unless ``units`` (serial number → units of each part) tells otherwise,
    and the driver of ``drivers`` (serial number → name), else ``card_driver``. Cards with
    ``parts`` have a deployable for each of these.
    """

    def __init__(
        self, conductor: ConductorClient, operator: Client, *, name: str | None = None
    ) -> None:
        self.name = name or fresh_host("slots")
        self.units: dict[str, int] = {}
        self.drivers: dict[str, str] = {}
        self.parts: dict[str, tuple[str, ...]] = {}
        self._conductor, self._operator = conductor, operator
        beat = AgentHeartbeat(self.name, (self.name,), "0", f"cyborg-agent@{self.name}", None)
        self._epoch = conductor.request(Heartbeat(beat)).epoch

    def provider(self, slot: str) -> str:
        """Return the uuid of the provider of the first card in a slot."""
        return provider_uuid(f"{self.name}_{slot}")

    def boot(
        self, slots: Slots, *, kind: Confidence = Confidence.UNIQUE, failed: Sequence[str] = ()
    ) -> dict[str, str]:
        """Report the cards in the slots; return slot → uuid of its device.

        The drivers that have ``failed`` report neither cards nor hardware.
        """
        devices: dict[str, list[Device]] = {name: [] for name in DRIVERS}
        for slot, serial in slots.items():
            driver = self.drivers.get(serial, DRIVERS[0])
            devices[driver].append(self._card(slot, serial, kind))
        reports = [
            DriverReport(
                driver,
                DriverState.READY,
                tuple(cards),
                hardware=tuple(Hardware.of(card) for card in cards),
            )
            if driver not in failed
            else DriverReport(driver, DriverState.FAILED, error="it does not answer")
            for driver, cards in devices.items()
        ]
        report = Report(tuple(reports))
        taken = self._conductor.request(SendReport(self.name, self._epoch, report))
        assert taken.refused == {}
        return {card["address"]: card["uuid"] for card in self.cards() if card["status"] != "lost"}

    def cards(self) -> list[dict[str, Any]]:
        """Return the devices of the host."""
        listed = self._operator.get("/devices", hostname=self.name)["devices"]
        return [self._operator.get(f"/devices/{device['uuid']}") for device in listed]

    def card(self, uuid: str) -> dict[str, Any]:
        """Return a device."""
        shown: dict[str, Any] = self._operator.get(f"/devices/{uuid}")
        return shown

    def desired(self) -> Desired:
        """Return what the agent of the host must bring about."""
        return self._conductor.request(FetchDesired(self.name, self._epoch))

    def prepared(self) -> list[tuple[str, str, str]]:
        """Return device, deployable and handle of each prepared unit, as the driver names them."""
        units = self._conductor.request(FetchUnitUses(self.name, self._epoch)).units
        return [(u.task.device_key, u.task.deployable, u.task.handle_key) for u in units]

    def _card(self, slot: str, serial: str, kind: Confidence) -> Device:
        info = PciAddress.parse(slot).info()
        functions = [
            PciAddress.parse(f"{slot[:-1]}{index}") for index in range(self.units.get(serial, 1))
        ]
        parts = tuple(
            facts.Deployable(
                f"{self.name}_{slot}{part}",
                "CUSTOM_CARD",
                "card",
                tuple(AttachHandle(str(it), AttachType.PCI, it.info()) for it in functions),
                prepare=serial.startswith("prepared"),
            )
            for part in self.parts.get(serial, ("",))
        )
        identity: tuple[Identity, ...] = (Identity(IdentityKind.ADDRESS, slot, Confidence.PLACE),)
        if serial:
            identity = (Identity(IdentityKind.VENDOR, serial, kind), *identity)
        return Device(
            slot, DeviceType.FPGA, "1d22", "m", info, parts, numa_node=0, identity=identity
        )


@pytest.fixture
def host(stack: Stack, operator: Client) -> Iterator[Host]:
    client = reach(AnyHost(stack.bus(), timeout=PATIENCE))
    yield Host(client, operator)
    client.close()


@pytest.fixture
def bound(
    host: Host, nova: Client, member: Client, profile: Callable[..., str]
) -> Callable[..., str]:
    """Bind units of the card whose first slot this was; return the instance."""

    def bind_units(slot: str, count: int = 1) -> str:
        arqs = create(member, profile({"resources:CUSTOM_CARD": str(count)}))
        provider = slot if is_uuid_like(slot) else host.provider(slot)
        return bind(nova, arqs, provider, host=host.name)

    return bind_units


def actions(card: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(event["action"], event["reason"]) for event in reversed(card["events"])]


@pytest.mark.parametrize(
    ("before", "after", "moves"),
    [
        pytest.param({0: "a"}, {1: "a"}, {0: 1}, id="into a free slot"),
        pytest.param({0: "a", 1: "b"}, {1: "a", 0: "b"}, {0: 1, 1: 0}, id="two exchange slots"),
        pytest.param(
            {0: "a", 1: "b", 2: "c"},
            {0: "new", 1: "a", 2: "b", 3: "c"},
            {0: 1, 1: 2, 2: 3},
            id="a new card shifts all numbers of the buses",
        ),
        pytest.param({0: "a", 1: ""}, {1: "a"}, {0: 1}, id="into a slot of an unknown card"),
        pytest.param({0: "", 1: "b"}, {0: "b", 1: ""}, {1: 0}, id="with a card that shows nothing"),
    ],
)
def test_a_card_keeps_its_history_in_another_slot(
    host: Host, before: dict[int, str], after: dict[int, str], moves: dict[int, int]
) -> None:
    uuids = host.boot({SLOTS[slot]: serial for slot, serial in before.items()})
    moved = host.boot({SLOTS[slot]: serial for slot, serial in after.items()})
    assert {uuids[SLOTS[old]]: SLOTS[new] for old, new in moves.items()}.items() <= {
        uuid: slot for slot, uuid in moved.items()
    }.items()
    for old, new in moves.items():
        card = host.card(uuids[SLOTS[old]])
        assert actions(card)[-1] == ("moved", f"from {SLOTS[old]} to {SLOTS[new]}")
        # Allocations hang on the provider.
        (provider,) = card["providers"]
        assert provider["uuid"] == host.provider(SLOTS[old])
    assert len(moved) == len(after)
    # Another report of the same changes nothing.
    generation = host.desired().generation
    assert host.boot({SLOTS[slot]: serial for slot, serial in after.items()}) == moved
    assert host.desired().generation == generation


def test_instances_keep_a_card_that_has_moved(
    host: Host, bound: Callable[..., str], nova: Client
) -> None:
    uuid = host.boot({SLOTS[0]: "a", SLOTS[1]: "prepared"})[SLOTS[0]]
    instance = bound(SLOTS[0])
    bound(SLOTS[1])
    host.boot({SLOTS[0]: "new", SLOTS[1]: "a", SLOTS[2]: "prepared"})
    (arq,) = of_instance(nova, instance)
    assert arq["device_rp_uuid"] == host.provider(SLOTS[0])
    assert arq["attach_handle_info"] == PciAddress.parse(SLOTS[1]).info()
    assert host.card(uuid)["in_use"]
    # The driver is told its own names.
    assert host.prepared() == [(SLOTS[2], f"{host.name}_{SLOTS[2]}", SLOTS[2])]
    tree = host.desired().tree
    assert tree.deployables() == {f"{host.name}_{slot}" for slot in SLOTS[:3]}
    assert {host.provider(slot) for slot in SLOTS[:2]} < {item.uuid for item in tree.providers}


def test_the_image_of_a_card_that_has_moved_is_unknown(host: Host, database: Database) -> None:
    host.boot({SLOTS[0]: "a"})
    name = f"{host.name}_{SLOTS[0]}"
    with database.writer() as tx:
        loaded = sa.update(Deployable).where(Deployable.name == name)
        tx.execute(loaded.values(bitstream_id=str(uuid4())))
    host.boot({SLOTS[1]: "a"})
    with database.reader() as tx:
        image = tx.execute(sa.select(Deployable.bitstream_id).where(Deployable.name == name))
        assert image.scalar_one() is None


def test_a_card_that_replaces_another_one_inherits_nothing(
    host: Host, operator: Client, bound: Callable[..., str], nova: Client
) -> None:
    (old,) = host.boot({SLOTS[0]: "old"}).values()
    instance = bound(SLOTS[0])
    operator.patch(f"/devices/{old}", {"labels": {"rack": "r1"}}, status=200)
    operator.post(f"/devices/{old}/disable", status=204)
    (new,) = host.boot({SLOTS[0]: "new"}).values()
    assert new != old
    card, lost = host.card(new), host.card(old)
    assert (card["status"], card["labels"], card["in_use"]) == ("enabled", {}, False)
    assert (lost["status"], lost["labels"], lost["in_use"]) == ("lost", {"rack": "r1"}, True)
    assert lost["address"] is None
    (arq,) = of_instance(nova, instance)
    # Nova must not give the new card to the instance that had the old one.
    assert arq["attach_handle_info"] == {}
    providers = {provider.uuid: provider for provider in host.desired().tree.providers}
    assert providers.pop(host.provider(SLOTS[0])).reserved == 1
    (provider,) = providers.values()
    assert provider.name.startswith(f"{host.name}_{SLOTS[0]}_")
    assert provider.deployable == f"{host.name}_{SLOTS[0]}"
    assert (provider.total, provider.reserved) == (1, 0)
    # The old card is found again wherever it is, with all that is known of it.
    delete_arqs(nova, instance)
    assert host.boot({SLOTS[0]: "new", SLOTS[2]: "old"}) == {SLOTS[0]: new, SLOTS[2]: old}
    back = host.card(old)
    assert (back["status"], back["labels"]) == ("maintaining", {"rack": "r1"})
    assert ("found again", None) in actions(back)
    handle = next(iter(host.desired().tree.providers))
    assert handle.reserved == handle.total


def test_a_number_of_a_whole_batch_moves_no_card(host: Host) -> None:
    same = {SLOTS[0]: "batch", SLOTS[1]: "batch"}
    uuids = host.boot(same, kind=Confidence.BOARD)
    assert host.boot(same, kind=Confidence.BOARD) == uuids
    moved = host.boot({SLOTS[2]: "batch", SLOTS[3]: "batch"}, kind=Confidence.BOARD)
    assert set(moved.values()).isdisjoint(uuids.values())


def test_a_card_without_a_number_stays_what_its_slot_says(host: Host) -> None:
    (uuid,) = host.boot({SLOTS[0]: ""}).values()
    assert host.boot({SLOTS[0]: "serial"}) == {SLOTS[0]: uuid}
    assert host.boot({SLOTS[0]: ""}) == {SLOTS[0]: uuid}
    assert json.dumps(host.card(uuid)["identity"]).count("serial") == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([{0: "a"}], {0: "x"}, id="replaced"),
        pytest.param([{0: "a"}, {}], {0: "x"}, id="replaced after it was removed"),
        pytest.param([{0: "a", 1: "x"}], {0: "x"}, id="into the slot of a removed card"),
        pytest.param([{0: "a", 1: "x"}], {1: "a", 0: "x"}, id="exchanged"),
        pytest.param([{0: ""}, {1: "x"}], {0: "x"}, id="into the slot of an unknown card"),
    ],
)
def test_a_card_of_another_driver_gets_the_place(
    host: Host, before: list[dict[int, str]], after: dict[int, str]
) -> None:
    """Drivers give their deployables the same names: of the host and the address."""
    host.drivers["x"] = DRIVERS[1]
    uuids: dict[str, str] = {}
    for slots in before:
        booted = host.boot({SLOTS[slot]: serial for slot, serial in slots.items()})
        uuids |= {slots[SLOTS.index(slot)]: uuid for slot, uuid in booted.items()}
    moved = host.boot({SLOTS[slot]: serial for slot, serial in after.items()})
    assert {SLOTS[slot] for slot in after} == moved.keys()
    for slot, serial in after.items():
        assert uuids.get(serial, moved[SLOTS[slot]]) == moved[SLOTS[slot]]
    for serial in uuids.keys() - after.values():
        assert host.card(uuids[serial])["address"] is None
        assert uuids[serial] not in moved.values()


def test_a_driver_takes_over_the_card_of_a_driver_that_fails(host: Host) -> None:
    uuids = host.boot({SLOTS[0]: "a"})
    host.drivers["a"] = DRIVERS[1]
    for slot in SLOTS[:2]:
        moved = host.boot({slot: "a"}, failed=DRIVERS[:1])
        assert moved == {slot: uuids[SLOTS[0]]}
    # Its driver sees the card again, and the other one does not.
    del host.drivers["a"]
    assert host.boot({SLOTS[1]: "a"}) == moved


def test_units_that_a_moved_card_does_not_show_tell_no_address(
    host: Host, bound: Callable[..., str], nova: Client
) -> None:
    """Another card has their addresses now, and its units have other guests."""
    host.units |= {"prepared": 2, "new": 4}
    host.parts |= {"prepared": ("", "-b"), "new": ("", "-b")}
    host.boot({SLOTS[0]: "prepared"})
    instances = [bound(SLOTS[0], 2), bound(f"{SLOTS[0]}-b", 2)]
    host.units["prepared"] = 3
    host.parts["prepared"] = ("",)
    host.boot({SLOTS[0]: "new", SLOTS[1]: "prepared"})
    for instance in instances:
        assert [arq["attach_handle_info"] for arq in of_instance(nova, instance)] == [{}, {}]
    units = [unit for unit in host.prepared() if not unit[2].startswith(SLOTS[1][:-1])]
    assert len(units) == 4
    for device, deployable, handle in units:
        assert device == SLOTS[1]
        assert not deployable.startswith(f"{host.name}_{SLOTS[0]}")
        assert not handle.startswith(SLOTS[0][:-1])


def test_units_of_a_replaced_card_have_no_name_of_the_new_card(
    host: Host, bound: Callable[..., str]
) -> None:
    """Their release must not reach a guest of the new card."""
    host.boot({SLOTS[0]: "prepared"})
    bound(SLOTS[0])
    host.boot({SLOTS[0]: "prepared too"})
    new = (SLOTS[0], f"{host.name}_{SLOTS[0]}", SLOTS[0])
    (old,) = set(host.prepared()) - {new}
    assert set(old).isdisjoint(new)


def test_the_name_of_a_new_card_fits_into_placement(
    stack: Stack, operator: Client, host: Host
) -> None:
    client = reach(AnyHost(stack.bus(), timeout=PATIENCE))
    long = Host(client, operator, name=f"{host.name}.{'x' * 180}"[:186])
    long.boot({SLOTS[0]: "old"})
    long.boot({SLOTS[0]: "new"})
    names = [provider.name for provider in long.desired().tree.providers]
    client.close()
    assert (len(set(names)), max(map(len, names))) == (2, 200)


@pytest.mark.parametrize("seed", range(4))
def test_no_sequence_of_moves_mixes_cards_up(
    host: Host, bound: Callable[..., str], nova: Client, seed: int
) -> None:
    dice = Random(seed)
    serials = [*"abcdef"]
    host.drivers |= {serial: dice.choice(DRIVERS) for serial in serials}
    uuids: dict[str, str] = {}
    holders: dict[str, str] = {}
    for _ in range(6):
        host.units |= {serial: dice.randint(1, 2) for serial in serials if dice.random() < 0.3}
        present = dice.sample(serials, dice.randint(0, len(SLOTS)))
        slots = dict(zip(dice.sample(SLOTS, len(present)), present, strict=True))
        booted = host.boot(slots)
        assert booted.keys() == slots.keys()
        for slot, serial in slots.items():
            assert uuids.setdefault(serial, booted[slot]) == booted[slot]
        places = {uuid: slot for slot, uuid in booted.items()}
        for instance, uuid in holders.items():
            (arq,) = of_instance(nova, instance)
            info = arq["attach_handle_info"]
            if info and uuid in places:
                assert info["bus"] == PciAddress.parse(places[uuid]).info()["bus"]
            elif info:
                assert info["bus"] not in {PciAddress.parse(slot).info()["bus"] for slot in slots}
        for card in host.cards():
            (*_, part) = sorted(
                card["providers"], key=lambda part: part["total"] - part["reserved"]
            )
            if card["units"]["free"] and dice.random() < 0.5:
                holders[bound(part["uuid"])] = card["uuid"]
