# SPDX-License-Identifier: Apache-2.0
"""Accelerators of the generic_driver, from a section of the configuration to a guest and back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Deployable
from cyborg.drivers.command import Completed
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.pci import PciDriver
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    bind,
    create,
    delete_arqs,
    eventually,
    eventually_bound,
    eventually_idle,
    eventually_offered,
    handle_states,
    of_instance,
)
from cyborg.tests.unit.drivers.configured import written

OPTIONS = """\
[pci]
passthrough_whitelist = {{"vendor_id": "10de"}}
[generic_driver]
backends = gpus, demo
[generic_driver:gpus]
pci_ids = 10de:*
resource_class = {resource_class}
traits = CUSTOM_FAST
device_type = GPU
prepare_command = /usr/sbin/card give {{handle}}
release_command = /usr/sbin/card take {{handle}}
reset_command = /usr/sbin/card wipe {{handle}}
prepared_file = /run/card/{{handle}}
[generic_driver:demo]
devices = 0000:0a:00.0
attach_type = TEST_PCI
units = 3
resource_class = {resource_class}
"""


def card(host: FakeHost, argv: tuple[str, ...]) -> Completed:
    """The operator's program."""
    if argv[1] == "give":
        host.add_file(f"/run/card/{argv[2]}", "")
    if argv[1] == "take":
        host.remove(f"/run/card/{argv[2]}")
    stuck = argv[1] == "wipe" and host.exists("/run/stuck")
    return Completed(int(stuck), "", "the card does not answer" if stuck else "")


@pytest.fixture
def site(
    beside: Callable[..., Stack], resource_class: str, tmp_path: Path
) -> Callable[..., ComputeHost]:
    """Start a compute with these drivers, in this order."""
    own = beside(agent_heartbeat=0.2, scan=0.2, full_check=0.2)

    def start(*kinds: type[GenericDriver | PciDriver]) -> ComputeHost:
        host = compute_host(own, tmp_path / "state", servers.server())
        host.machine.programs["/usr/sbin/card"] = card
        options = OPTIONS.format(resource_class=resource_class)
        conf = written(tmp_path / "cyborg.conf", options, host=host.compute)
        host.start(*(LoadResult(kind.name, kind(host.machine, conf)) for kind in kinds))
        return host

    return start


@pytest.fixture
def arqs(
    nova: Client, profile: Callable[..., str], resource_class: str
) -> Callable[[], list[dict[str, Any]]]:
    """New ARQs, one at a time, for a fast card."""
    name = profile({f"resources:{resource_class}": "1", "trait:CUSTOM_FAST": "required"})
    return lambda: create(nova, name)


def test_backends_are_offered_as_configured(
    site: Callable[..., ComputeHost],
    placement: PlacementService,
    resource_class: str,
    admin: Client,
) -> None:
    host = site(GenericDriver)
    eventually_offered(placement, host.provider("0000:0a:00.0"), 3)
    eventually_offered(placement, host.provider(servers.GPU), 1)
    eventually_offered(placement, host.provider(servers.GPU_ON_VFIO), 1)
    group = {f"resources:{resource_class}": "1", "trait:CUSTOM_FAST": "required"}
    found = {
        one
        for candidate in placement.candidates({"device_profile_0": group})
        for one in candidate.mappings["device_profile_0"]
    }
    assert found == {host.provider(servers.GPU), host.provider(servers.GPU_ON_VFIO)}
    devices = admin.get("/devices", hostname=host.compute)["devices"]
    assert {(one["type"], one["vendor"], one["model"]) for one in devices} == {
        ("GPU", "10de", "GA100 [A100 PCIe 80GB]"),
        ("GPU", "10de", "GA100 [A100 PCIe 40GB]"),
        ("PCI", "generic", "demo"),
    }


def test_device_is_bound_released_and_cleaned(
    site: Callable[..., ComputeHost],
    arqs: Callable[[], list[dict[str, Any]]],
    nova: Client,
    placement: PlacementService,
    database: Database,
) -> None:
    host = site(GenericDriver)
    eventually_offered(placement, host.provider(servers.GPU), 1)
    instance = bind(nova, arqs(), host.provider(servers.GPU))
    eventually_bound(nova, instance)
    (bound,) = of_instance(nova, instance)
    assert bound["attach_handle_type"] == "PCI"
    assert bound["attach_handle_info"] == {
        "domain": "0000",
        "bus": "3b",
        "device": "00",
        "function": "0",
    }
    host.machine.remove("/run")
    # The host was booted: what a guest has is prepared again.
    eventually(lambda: host.ran("give") == ["give", "give"])
    delete_arqs(nova, instance)
    eventually_idle(database)
    assert set(handle_states(database).values()) == {"free"}
    assert host.ran("take", "wipe") == ["take", "wipe"]


def test_device_is_not_bound_before_it_is_clean(
    site: Callable[..., ComputeHost],
    arqs: Callable[[], list[dict[str, Any]]],
    nova: Client,
    placement: PlacementService,
    database: Database,
) -> None:
    host = site(GenericDriver)
    eventually_offered(placement, host.provider(servers.GPU), 1)
    instance = bind(nova, arqs(), host.provider(servers.GPU))
    eventually_bound(nova, instance)
    host.machine.add_file("/run/stuck", "")
    delete_arqs(nova, instance)
    eventually(lambda: len(host.ran("wipe")) > 1)
    assert handle_states(database)[servers.GPU] == "releasing"
    host.machine.remove("/run/stuck")
    eventually(lambda: handle_states(database)[servers.GPU] == "free")


@pytest.mark.parametrize("first_is_generic", [True, False])
def test_function_of_two_drivers_is_offered_once(
    site: Callable[..., ComputeHost],
    placement: PlacementService,
    database: Database,
    first_is_generic: bool,
) -> None:
    kinds = (GenericDriver, PciDriver) if first_is_generic else (PciDriver, GenericDriver)
    host = site(*kinds)
    eventually_offered(placement, host.provider("0000:0a:00.0"), 3)
    eventually_offered(placement, host.provider(servers.GPU), 1)
    with database.reader() as tx:
        names = list(tx.execute(sa.select(Deployable.name)).scalars())
    assert sorted(names) == sorted(
        f"{host.compute}_{address}"
        for address in ("0000:0a:00.0", servers.GPU, servers.GPU_ON_VFIO)
    )
