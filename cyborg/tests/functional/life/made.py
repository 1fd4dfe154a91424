# SPDX-License-Identifier: Apache-2.0
"""A compute of the generic_driver on whose backends operators create accelerators."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from cyborg import exception, service
from cyborg.clients.placement import Placement
from cyborg.db.engine import Database
from cyborg.db.models import Deployable, Device, Service
from cyborg.drivers.command import Completed
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.loader import LoadResult
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import eventually
from cyborg.tests.unit.drivers.configured import written

DEVICES = "/devices"
DRIVER = GenericDriver.name
#: ``left`` and ``right`` have what is granted to them, ``cards`` whole functions, ``parts`` cards.
OPTIONS = """\
[generic_driver]
backends = {backends}
[generic_driver:left]
devices = 0000:0a:00.0
attach_type = TEST_PCI
resource_class = {resource_class}
[generic_driver:right]
devices = 0000:0b:00.0
attach_type = TEST_PCI
resource_class = {resource_class}
vendor = Right Inc.
prepare_command = /usr/sbin/card give {{handle}}
release_command = /usr/sbin/card take {{handle}}
reset_command = /usr/sbin/card wipe {{handle}}
prepared_file = /run/card/{{handle}}
ready_file = /run/ready
install_command = /usr/sbin/card ready
[generic_driver:cards]
pci_ids = 1af4:1000
resource_class = {resource_class}
[generic_driver:parts]
pci_ids = 1af4:1001
resource_class = {resource_class}
attach_type = MDEV
mdev_type = fpga-4
"""
ALL = ("left", "right", "cards", "parts")


def card(host: FakeHost, argv: tuple[str, ...]) -> Completed:
    """The operator's program."""
    if argv[1] == "give":
        host.add_file(f"/run/card/{argv[2]}", "")
    if argv[1] == "take":
        host.remove(f"/run/card/{argv[2]}")
    if argv[1] == "ready":
        host.add_file("/run/ready", "")
    return Completed(0, "", "")


@dataclass
class Bench:
    """One compute with its agent; ``stack`` runs it, ``path`` is a directory of its own."""

    name: str
    machine: FakeHost
    stack: Stack
    path: Path
    resource_class: str
    agent: service.Daemon | None = None

    def start(self, *backends: str) -> None:
        """Run an agent with these backends (by default all)."""
        options = OPTIONS.format(
            resource_class=self.resource_class, backends=", ".join(backends or ALL)
        )
        conf = written(self.path / "cyborg.conf", options, host=self.name)
        loaded = LoadResult(DRIVER, GenericDriver(self.machine, conf))
        self.agent = self.stack.start_agent(
            self.name, machine=self.machine, drivers=[loaded], state_path=self.path / "state"
        )

    def stop(self, database: Database) -> None:
        """End the agent so that everybody knows."""
        assert self.agent is not None
        self.agent.stop()
        with database.writer() as tx:
            mine = sa.update(Service).where(Service.host == self.name)
            tx.execute(mine.values(last_seen_ms=0))

    def wish(self, backend: str = "left", **more: Any) -> dict[str, Any]:
        """The body that creates an accelerator here."""
        return {
            "host": self.name,
            "driver": DRIVER,
            "backend": backend,
            "model": "soft",
            "type": "FPGA",
            "resource_class": self.resource_class,
            **more,
        }

    def ran(self, *verbs: str) -> list[str]:
        """The verbs that its program was called for, of these, in their order."""
        return [argv[1] for argv in list(self.machine.commands) if argv[1] in verbs]


def ended(operator: Client, begun: dict[str, Any]) -> dict[str, Any]:
    """An operation when it is over."""
    path = f"/operations/{begun['uuid']}"
    eventually(lambda: operator.get(path)["state"] != "running", timeout=60.0)
    over: dict[str, Any] = operator.get(path)
    return over


def make(operator: Client, body: dict[str, Any]) -> str:
    """Create an accelerator; its uuid."""
    over = ended(operator, operator.post(DEVICES, body, status=202))
    assert (over["verb"], over["state"]) == ("create_device", "succeeded"), over
    (result,) = over["results"]
    return str(result["result"]["device"])


def refused(operator: Client, body: dict[str, Any]) -> str:
    """Order an accelerator that the host cannot have; why."""
    over = ended(operator, operator.post(DEVICES, body, status=202))
    assert over["state"] == "failed"
    (result,) = over["results"]
    return str(result["error"])


def provider(database: Database, uuid: str) -> str:
    """The one resource provider of a device."""
    with database.reader() as tx:
        mine = sa.select(Deployable.rp_uuid).join(Device, Device.id == Deployable.device_id)
        return str(tx.execute(mine.where(Device.uuid == uuid)).scalar_one())


def shown(placement: PlacementService, uuid: str) -> tuple[int, set[str]] | None:
    """How many units Placement has of a provider, and its traits; None without provider."""
    client = Placement(placement.adapter())
    try:
        _, inventories = client.inventories(uuid)
        _, traits = client.traits(uuid)
    except exception.NotFound:
        return None
    return sum(int(one["total"]) for one in inventories.values()), set(traits)


def listed(operator: Client, **query: Any) -> list[str]:
    """The uuids of the devices that fit."""
    return [one["uuid"] for one in operator.get(DEVICES, **query)["devices"]]
