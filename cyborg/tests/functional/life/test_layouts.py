# SPDX-License-Identifier: Apache-2.0
"""Cards that the agent divides as the configuration requests, with guests on their parts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.loader import LoadResult
from cyborg.testing.kernel.guest import guest
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    bind,
    create,
    delete_arqs,
    eventually_bound,
    eventually_offered,
    of_instance,
)
from cyborg.tests.unit.drivers.configured import written

CARD = "0000:01:00.0"
FUNCTIONS = tuple(f"0000:01:00.{number}" for number in range(1, 5))
#: No function has the driver nvme, without which none can be erased.
OPTIONS = """\
[generic_driver]
backends = ports
[generic_driver:ports]
addresses = {card}
resource_class = {resource_class}
layout = vfs={vfs}
clean = reset
"""


class Site:
    """A compute host with one card, and the number of functions that its configuration requests."""

    def __init__(self, host: ComputeHost, path: Path, resource_class: str) -> None:
        self.host = host
        self._file = path / "cyborg.conf"
        self._resource_class = resource_class

    def boot(self, vfs: int) -> None:
        """Start an agent whose configuration requests this number of virtual functions."""
        text = OPTIONS.format(card=CARD, resource_class=self._resource_class, vfs=vfs)
        conf = written(self._file, text, host=self.host.compute)
        self.host.start(LoadResult("generic_driver", GenericDriver(self.host.machine, conf)))

    def vfs(self) -> int:
        """Return how many virtual functions the card has."""
        return int(self.host.machine.read_text(f"/sys/bus/pci/devices/{CARD}/sriov_numvfs"))

    def remove_vfs(self) -> None:
        """Remove the virtual functions, as a reboot of the host or an operator does."""
        self.host.machine.write_text(f"/sys/bus/pci/devices/{CARD}/sriov_numvfs", "0")


@pytest.fixture
def site(beside: Callable[..., Stack], resource_class: str, tmp_path: Path) -> Site:
    own = beside(agent_heartbeat=0.2, scan=0.2, full_check=0.5)
    return Site(compute_host(own, tmp_path / "state", guest()), tmp_path, resource_class)


@pytest.fixture
def arqs(
    nova: Client, profile: Callable[..., str], resource_class: str
) -> Callable[[], list[dict[str, Any]]]:
    """New ARQs for one function."""
    name = profile({f"resources:{resource_class}": "1"})
    return lambda: create(nova, name)


@pytest.mark.proves("generic_driver", "partition", "bind", by="simulated")
def test_parts_come_back_after_a_reboot_and_stay_while_a_guest_has_one(
    site: Site,
    nova: Client,
    arqs: Callable[[], list[dict[str, Any]]],
    operator: Client,
    placement: PlacementService,
    *,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def statuses() -> dict[str, str]:
        devices = operator.get("/devices", hostname=site.host.compute)["devices"]
        return {device["uuid"]: device["status"] for device in devices}

    first, *_ = providers = [site.host.provider(key) for key in FUNCTIONS]
    site.boot(2)
    for provider in providers[:2]:
        eventually_offered(placement, provider, 1)
    enabled = statuses()
    assert len(enabled) == 2, "the card itself is no device"
    instance = bind(nova, arqs(), first, host=site.host.compute)
    eventually_bound(nova, instance)
    site.remove_vfs()
    eventually(lambda: site.vfs() == 2)
    eventually(lambda: statuses() == enabled)
    [arq] = of_instance(nova, instance)
    assert (arq["state"], arq["attach_handle_info"]["function"]) == ("Bound", "1")
    # Another layout would take the function from its guest.
    site.host.stop()
    site.boot(4)
    eventually(lambda: "keeps layout vfs=2 instead of vfs=4" in caplog.text)
    assert site.vfs() == 2
    assert statuses() == enabled
    delete_arqs(nova, instance)
    site.remove_vfs()
    for provider in providers:
        eventually_offered(placement, provider, 1)
    assert site.vfs() == 4
    assert enabled.items() <= statuses().items()
    # The host had a guest: what is new on it may have its data.
    for uuid in statuses().keys() - enabled.keys():
        (unit,) = operator.get(f"/devices/{uuid}")["cleaning"]
        assert (unit["result"], unit["level"]) == ("cleaned", "reset")
    site.host.stop()
