# SPDX-License-Identifier: Apache-2.0
"""What identifies devices and where they are: reported, stored and shown (microversion 2.100)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Confidence,
    Deployable,
    Device,
    DeviceType,
    Identity,
    IdentityKind,
    Topology,
)
from cyborg.model.report import AgentHeartbeat, DriverReport, DriverState, Report
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import Heartbeat, SendReport
from cyborg.tests.fixtures.any_host import AnyHost
from cyborg.tests.fixtures.placement import fresh_host
from cyborg.tests.fixtures.stack import Stack, reach
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.life.cards import CARD
from cyborg.tests.functional.life.http import Client

SERIAL = Identity(IdentityKind.VENDOR, "Modèle S123", Confidence.UNIQUE)
DSN = Identity(IdentityKind.DSN, "00-1b-21-ff-ff-12-34-56", Confidence.BOARD)
ADDRESS = Identity(IdentityKind.ADDRESS, CARD, Confidence.PLACE)
PLACE = Topology("0000:80:01.0", "0000:80:02.0", ("0000:81:00.1", "0000:81:00.2"))


class Host:
    """A host with one device, which a test reports."""

    def __init__(self, conductor: ConductorClient, operator: Client) -> None:
        self.name = fresh_host("identified")
        self._conductor, self._operator = conductor, operator
        endpoint = f"cyborg-agent@{self.name}"
        beat = AgentHeartbeat(self.name, (self.name,), "0", endpoint, None)
        self._epoch = conductor.request(Heartbeat(beat)).epoch
        handle = AttachHandle(CARD, AttachType.PCI, {"domain": "0000"})
        unit = Deployable(f"unit-{uuid4()}", "CUSTOM_CARD", "card", (handle,))
        self._device = Device(CARD, DeviceType.FPGA, "1d22", "m", {"domain": "0000"}, (unit,))

    def report(self, *identity: Identity, topology: Topology | None = None) -> int:
        """Report the device; return the generation of the desired state."""
        device = replace(self._device, identity=identity, topology=topology)
        report = Report((DriverReport("card_driver", DriverState.READY, (device,)),))
        taken = self._conductor.request(SendReport(self.name, self._epoch, report))
        assert taken.refused == {}
        return taken.desired_generation

    def shown(self, version: str = "2.100") -> dict[str, Any]:
        """Return the device as the API shows it."""
        operator = replace(self._operator, version=version)
        (device,) = operator.get("/devices", hostname=self.name)["devices"]
        shown: dict[str, Any] = operator.get(f"/devices/{device['uuid']}")
        assert {name: shown[name] for name in device} == device
        return shown


@pytest.fixture
def host(stack: Stack, operator: Client) -> Iterator[Host]:
    client = reach(AnyHost(stack.bus(), timeout=PATIENCE))
    yield Host(client, operator)
    client.close()


def rendered(*identity: Identity) -> list[dict[str, str]]:
    return [{name: str(value) for name, value in vars(item).items()} for item in identity]


def test_identity_and_topology_are_shown_to_operators_from_2_100(host: Host) -> None:
    host.report(SERIAL, DSN, ADDRESS, topology=PLACE)
    shown = host.shown()
    assert shown["identity"] == rendered(SERIAL, DSN, ADDRESS)
    assert shown["topology"] == {
        "root_port": "0000:80:01.0",
        "switch": "0000:80:02.0",
        "siblings": ["0000:81:00.1", "0000:81:00.2"],
    }
    assert {"identity", "topology"}.isdisjoint(host.shown("2.3"))


def test_device_of_an_agent_that_does_not_report_them_has_none(host: Host) -> None:
    host.report()
    assert (host.shown()["identity"], host.shown()["topology"]) == ([], None)


def test_changed_topology_changes_the_device_without_an_event(host: Host) -> None:
    host.report(ADDRESS, topology=PLACE)
    before = host.shown()
    host.report(ADDRESS, topology=replace(PLACE, switch=None))
    after = host.shown()
    assert after["topology"]["switch"] is None
    assert after["uuid"] == before["uuid"]
    assert after["events"] == before["events"]


def test_equal_facts_change_nothing(host: Host) -> None:
    generation = host.report(SERIAL, ADDRESS, topology=PLACE)
    assert host.report(SERIAL, ADDRESS, topology=PLACE) == generation


def test_serial_number_stays_while_no_driver_shows_it(host: Host) -> None:
    host.report(SERIAL, DSN, ADDRESS, topology=PLACE)
    host.report(DSN, ADDRESS, topology=PLACE)
    assert host.shown()["identity"] == rendered(SERIAL, DSN, ADDRESS)
