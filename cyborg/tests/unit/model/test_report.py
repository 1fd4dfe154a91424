# SPDX-License-Identifier: Apache-2.0
"""Reports: equal facts, equal digests; and devices that nobody could keep."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Attribute,
    Backend,
    Confidence,
    Deployable,
    Device,
    DeviceType,
    Identity,
    IdentityKind,
    Topology,
    merge_identity,
)
from cyborg.model.report import MOST, DriverOption, DriverReport, DriverState, Report, cut
from cyborg.tests.fixtures.properties import given, st

SERIAL = Identity(IdentityKind.VENDOR, "S1", Confidence.UNIQUE)
BOARD = Identity(IdentityKind.DSN, "00-1b", Confidence.BOARD)
SLOT = Identity(IdentityKind.SLOT, "4", Confidence.PLACE)
ADDRESS = Identity(IdentityKind.ADDRESS, "0000:01:00.0", Confidence.PLACE)


def handle(key: str) -> AttachHandle:
    return AttachHandle(key, AttachType.PCI, {"domain": "0000", "bus": key})


def device(key: str) -> Device:
    units = tuple(
        Deployable(
            name=f"{key}-{unit}",
            resource_class="FPGA",
            driver_name="card",
            handles=(handle("1"), handle("2")),
            traits=("CUSTOM_A", "CUSTOM_B"),
            attributes=(Attribute("rc", "FPGA"), Attribute("trait0", "CUSTOM_A")),
        )
        for unit in (1, 2)
    )
    return Device(
        key, DeviceType.FPGA, "1d22", "card", {"domain": "0000"}, units, {"b": "2", "a": None}
    )


PLACE = Topology("0000:00:01.0", None, ("0000:01:00.1", "0000:01:00.2"))
REPORT = Report(
    (
        DriverReport(
            "one",
            DriverState.READY,
            (device("a"), replace(device("b"), identity=(SERIAL, ADDRESS), topology=PLACE)),
        ),
        DriverReport("two", DriverState.READY, (device("c"),)),
        DriverReport("three", DriverState.FAILED, error="not there"),
    )
)


def shuffled(report: Report, rng: random.Random) -> Report:
    """The same facts in another order, on every level."""

    def mixed(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(rng.sample(items, len(items)))

    def deployable(one: Deployable) -> Deployable:
        return replace(
            one,
            handles=mixed(one.handles),
            traits=mixed(one.traits),
            attributes=mixed(one.attributes),
        )

    def turned(one: Device) -> Device:
        board = dict(reversed(one.std_board_info.items()))
        units = mixed(tuple(map(deployable, one.deployables)))
        place = replace(PLACE, siblings=mixed(PLACE.siblings))
        return replace(
            one,
            deployables=units,
            std_board_info=board,
            identity=mixed(one.identity),
            topology=place if one.topology else None,
        )

    drivers = [
        replace(one, devices=mixed(tuple(map(turned, one.devices)))) for one in report.drivers
    ]
    return Report(mixed(tuple(drivers)))


@given(seed=st.integers())
def test_digest_is_independent_of_order(seed: int) -> None:
    assert shuffled(REPORT, random.Random(seed)).digest() == REPORT.digest()


@dataclass(frozen=True)
class NextDevice(Device):
    """A device of a later release, with one more field."""

    colours: Mapping[str, int] = field(default_factory=dict)


def test_field_of_a_later_release_counts_unless_it_has_its_default() -> None:
    """A conductor and an agent of two releases must agree that nothing has changed."""

    def digest(one: Device) -> str:
        return Report((DriverReport("one", DriverState.READY, (one,)),)).digest()

    now = device("a")
    later = NextDevice(**vars(now))
    assert digest(later) == digest(now)
    assert digest(replace(later, colours={"red": 1})) != digest(now)


def test_digest_depends_on_every_field() -> None:
    (first, second, third) = REPORT.drivers
    (one, two) = first.devices
    (unit, other) = one.deployables
    changed = [
        replace(unit, handles=(handle("1"),)),
        replace(unit, handles=(handle("1"), handle("3"))),
        replace(unit, traits=("CUSTOM_A",)),
        replace(unit, attributes=()),
        replace(unit, prepare=True),
        replace(unit, name="x"),
    ]
    devices = [replace(one, deployables=(new, other)) for new in changed]
    devices += [
        replace(one, key="x"),
        replace(one, model="x"),
        replace(one, numa_node=1),
        replace(one, identity=(SERIAL,)),
        replace(one, identity=(replace(SERIAL, kind=IdentityKind.VPD),)),
        replace(one, topology=Topology()),
        replace(one, topology=Topology(siblings=("0000:01:00.1",))),
        replace(one, std_board_info={"b": "2", "a": ""}),
        replace(one, pools={"memory": 8}),
        replace(one, deployables=(replace(unit, cost={"memory": 4}), other)),
        replace(one, deployables=(replace(unit, group_size=2), other)),
    ]
    reports = [Report((replace(first, devices=(new, two)), second, third)) for new in devices]
    reports += [
        Report((first, second)),
        Report((first, second, replace(third, error="still not there"))),
        Report((first, second, replace(third, state=DriverState.READY))),
        Report((first, second, replace(third, accepts=(DriverOption("speed", "g", "integer"),)))),
        Report(
            (replace(first, devices=(one,)), replace(second, devices=(two, device("c"))), third)
        ),
    ]
    digests = {one.digest() for one in [REPORT, *reports]}
    assert len(digests) == len(reports) + 1


@pytest.mark.parametrize(
    ("of_unit", "changes", "says"),
    [
        (False, {"key": ""}, "its key"),
        (False, {"vendor": "x" * 256}, "its vendor"),
        (False, {"model": "a\0b"}, "its model"),
        (False, {"model": "a\x1b[2K"}, "its model"),
        (False, {"vendor": "a\u202e"}, "its vendor"),
        (True, {"name": "a-1\x07"}, "a-1"),
        (False, {"control_path": {"a": "x" * 255}}, "control path"),
        (False, {"vendor_board_info": "\udfff"}, "board information"),
        (False, {"numa_node": -(2**31)}, "NUMA"),
        (False, {"identity": (SERIAL, SERIAL)}, "two identities of one kind"),
        (False, {"identity": (replace(SERIAL, value="x" * 256),)}, "its identity vendor"),
        (False, {"identity": (replace(SERIAL, value="\0"),)}, "its identity vendor"),
        (False, {"topology": Topology(switch="x" * 256)}, "its topology"),
        (False, {"topology": Topology(siblings=("",))}, "its topology"),
        (False, {"deployables": device("a").deployables * 2}, "one name"),
        (True, {"name": ""}, "name of a deployable"),
        (True, {"name": "x" * 256}, "name of a deployable"),
        (True, {"resource_class": "x" * 256}, "resource class"),
        (True, {"driver_name": "x" * 101}, "driver name"),
        (True, {"handles": (handle("1"), handle("1"))}, "one key"),
        (True, {"handles": (handle("x" * 256),)}, "key of a handle"),
        (True, {"handles": (replace(handle("1"), info={"a": "x" * 255}),)}, "handle 1"),
        (True, {"group_size": 0}, "the group_size of a-1 is 0 and not 1 to"),
        (True, {"group_size": 3}, "a-1 has 2 attach handles, no multiple of 3"),
        (True, {"group_size": 4}, "a-1 has 2 attach handles, no multiple of 4"),
        (True, {"attributes": (Attribute("", "x"),)}, "attribute"),
        (True, {"attributes": (Attribute("k", "\0"),)}, "k of a-1"),
    ],
)
def test_invalid_device_names_its_flaw(of_unit: bool, changes: dict[str, Any], says: str) -> None:
    good = device("a")
    assert replace(good, vendor_board_info="x" * 5000, numa_node=0).validate() is None
    unit, other = good.deployables
    if of_unit:
        changes = {"deployables": (replace(unit, **changes), other)}
    assert says in str(replace(good, **changes).validate())


def test_kind_that_is_not_reported_keeps_its_stored_value() -> None:
    """No driver shows the serial number of a disk that a guest has."""
    stored = (SERIAL, BOARD, ADDRESS)
    assert merge_identity(stored, (BOARD, ADDRESS)) == stored
    assert merge_identity(stored, (ADDRESS,)) == stored
    assert merge_identity(stored, stored) == stored
    assert merge_identity((), (ADDRESS,)) == (ADDRESS,)


def test_other_value_of_one_kind_means_another_device() -> None:
    other = replace(BOARD, value="00-2c")
    assert merge_identity((SERIAL, BOARD, ADDRESS), (other, ADDRESS)) == (other, ADDRESS)


def test_place_that_is_not_reported_is_dropped() -> None:
    assert merge_identity((SERIAL, SLOT, ADDRESS), (ADDRESS,)) == (SERIAL, ADDRESS)


def test_number_stays_at_another_place() -> None:
    """A card that has moved, and a place whose next card shows its number later only."""
    elsewhere = replace(ADDRESS, value="0000:ff:00.0")
    assert merge_identity((SERIAL, BOARD, ADDRESS), (BOARD, elsewhere)) == (
        SERIAL,
        BOARD,
        elsewhere,
    )
    other = replace(SLOT, value="another card")
    assert merge_identity((SERIAL, SLOT, ADDRESS), (other, ADDRESS)) == (SERIAL, other, ADDRESS)


@pytest.mark.parametrize(
    ("what", "more"),
    [
        ("devices", {"devices": (device("a"),) * (MOST["devices"] + 1)}),
        ("entries of hardware", {"hardware": (None,) * (MOST["entries of hardware"] + 1)}),
        ("backends", {"backends": (Backend("b", "READY"),) * (MOST["backends"] + 1)}),
        (
            "attach handles",
            {
                "devices": (
                    replace(
                        device("a"),
                        deployables=(
                            replace(
                                device("a").deployables[0],
                                handles=(handle("1"),) * (MOST["attach handles"] + 1),
                            ),
                        ),
                    ),
                )
            },
        ),
    ],
)
def test_report_with_more_than_any_host_needs_is_invalid(what: str, more: Any) -> None:
    report = Report((*REPORT.drivers, replace(REPORT.drivers[0], driver="more", **more)))
    assert REPORT.validate() is None
    flaw = report.validate()
    assert flaw is not None
    assert f"{what}, and at most {MOST[what]} are stored" in flaw


@pytest.mark.parametrize(
    "change",
    [
        {"vendor_board_info": "x" * 16_001},
        {"std_board_info": {"x": "y" * 16_000}},
        {
            "deployables": (
                replace(device("a").deployables[0], attributes=(Attribute("a", "x" * 16_001),)),
            )
        },
    ],
)
def test_device_with_too_long_a_text_is_invalid(change: Any) -> None:
    flaw = replace(device("a"), **change).validate()
    assert flaw is not None
    assert "not 1 to 16000" in flaw


def test_error_text_is_cut_with_a_mark() -> None:
    assert cut("short") == "short"
    assert cut("x" * 4000) == "x" * 4000
    assert cut("x" * 4321) == "x" * 4000 + " ... (321 more characters)"
