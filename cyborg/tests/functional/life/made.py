# SPDX-License-Identifier: Apache-2.0
"""A compute of the generic_driver on whose backends operators create accelerators."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.placement import Placement
from cyborg.db.engine import Database
from cyborg.db.models import Deployable, Device
from cyborg.drivers.command import Completed
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.loader import LoadResult
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import ended
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
pci_ids = 1af4:1000, 10ee:5001
addresses = 0000:01:*.*
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


@dataclass(kw_only=True)
class Bench(ComputeHost):
    """A compute of the generic_driver; ``path`` is a directory of its own."""

    path: Path
    resource_class: str

    @classmethod
    def begin(cls, stack: Stack, path: Path, resource_class: str, *backends: str) -> "Bench":
        """Start one (see ``run``); each static backend has a device."""
        host = compute_host(stack, path / "state", servers.server())
        host.machine.programs["/usr/sbin/card"] = card
        bench = cls(**vars(host), path=path, resource_class=resource_class)
        bench.run(*backends)
        return bench

    def run(self, *backends: str) -> None:
        """Start an agent with these backends (by default all)."""
        options = OPTIONS.format(
            resource_class=self.resource_class, backends=", ".join(backends or ALL)
        )
        conf = written(self.path / "cyborg.conf", options, host=self.compute)
        self.start(LoadResult(DRIVER, GenericDriver(self.machine, conf)))

    def wish(self, backend: str = "left", **more: Any) -> dict[str, Any]:
        """The body that creates an accelerator here."""
        return {
            "host": self.compute,
            "driver": DRIVER,
            "backend": backend,
            "model": "soft",
            "type": "FPGA",
            "resource_class": self.resource_class,
            **more,
        }


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
