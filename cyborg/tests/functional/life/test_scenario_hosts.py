# SPDX-License-Identifier: Apache-2.0
"""A server on each scenario host: report, profile, claim, bind, handle, release, free again.

Each driver that a file names, and that is installed, has a host of its own: in a full run each host
that names it, else one that the commit decides. Vendors add a driver to the file, and it is tested
here.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from uuid import uuid4

import pytest

from cyborg.db.engine import Database
from cyborg.drivers.loader import NAMESPACE, load
from cyborg.model.device import AttachType, Deployable
from cyborg.model.provider import provider_uuid
from cyborg.testing import scenario_hosts
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.testing.scenario_file import CyborgDriver
from cyborg.tests.fixtures import choice
from cyborg.tests.fixtures.accelerators import AcceleratorClient
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import Candidate, PlacementService, requested, suffix
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import eventually_idle
from cyborg.tests.unit.drivers.configured import written

INSTALLED = entry_points(group=NAMESPACE).names
PAIRS = [
    (name, driver)
    for name in scenario_hosts.names()
    for driver in scenario_hosts.read(name).drivers
    if driver.name in INSTALLED
]
CASES = [
    pytest.param(*pair, id=f"{pair[0]}-{pair[1].name}")
    for name in sorted(INSTALLED)
    for pair in choice.chosen((pair for pair in PAIRS if pair[1].name == name), f"life of {name}")
]


class Site:
    """A compute with a scenario host and one driver."""

    def __init__(self, host: ComputeHost, machine: FakeHost, directory: Path) -> None:
        self.host = host
        self.machine = machine
        self._directory = directory

    def start(self, driver: CyborgDriver) -> list[Deployable]:
        """Start the agent; gives what the driver offers."""
        conf = written(self._directory / "cyborg.conf", driver.options, host=self.host.compute)
        (loaded,) = load([driver.name], self.machine, conf)
        assert loaded.driver is not None, loaded.error
        self.host.start(loaded)
        devices = look(loaded.driver).discover()
        assert len(devices) == driver.offers
        return [part for device in devices for part in device.deployables]


@pytest.fixture
def site(beside: Callable[..., Stack], tmp_path: Path, machine_name: str) -> Callable[[str], Site]:
    own = beside(agent_heartbeat=0.2)

    def make(name: str) -> Site:
        machine = scenario_hosts.load(name)
        return Site(compute_host(own, tmp_path / "state", machine), machine, tmp_path)

    return make


def test_every_scenario_host_has_a_driver() -> None:
    assert {name for name, _ in PAIRS} == set(scenario_hosts.names())


@pytest.mark.parametrize(("name", "driver"), CASES)
@pytest.mark.proves("amd_gpu_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("habana_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("huawei_ascend_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("inspur_fpga_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("inspur_nvme_ssd_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("intel_fpga_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("intel_gpu_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("intel_nic_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("intel_qat_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("mlx5_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("nvidia_gpu_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("nvme_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("pci_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("generic_driver", "discover", "bind", "cleaning", by="simulated")
@pytest.mark.proves("mdev_driver", "discover", "bind", by="simulated")
@pytest.mark.proves("xilinx_fpga_driver", "discover", "bind", by="simulated")
def test_server_gets_a_device_and_releases_it(
    site: Callable[[str], Site],
    url: str,
    admin: Client,
    member: Client,
    placement: PlacementService,
    nova_api: SimulatedNova,
    database: Database,
    name: str,
    driver: CyborgDriver,
) -> None:
    place = site(name)
    parts = place.start(driver)
    first = parts[0]
    providers = {provider_uuid(part.name): len(part.handles) for part in parts}
    eventually(lambda: {one: offered(placement, one) for one in providers} == providers)

    group = {f"resources:{first.resource_class}": str(first.group_size)}
    group |= {f"trait:{trait}": "required" for trait in first.traits}
    profile = admin.make_profile(group)
    nova = AcceleratorClient(url, f"member:{member.project}", "service")
    instance = str(uuid4())
    nova_api.own(instance, member.project)
    provider = provider_uuid(first.name)

    def candidates() -> list[Candidate]:
        """The ways to get the first device."""
        groups = requested(nova.groups(profile))
        found = placement.candidates(groups, place.host.root)
        return [one for one in found if one.mappings[suffix(0)] == [provider]]

    candidate = candidates()[0]
    placement.allocate(instance, candidate, member.project)
    arqs = [one["uuid"] for one in nova.create(profile)]
    nova.bind(instance, place.host.compute, dict.fromkeys(arqs, provider))
    told = nova_api.wait_for_events(arqs)
    assert set(told.values()) == {"completed"}

    bound = nova.arqs_of(instance)
    handles = [(one["attach_handle_type"], one["attach_handle_info"]) for one in bound]
    assert len(handles) == first.group_size
    addresses = []
    for kind, info in handles:
        known = [handle for handle in first.handles if handle.info == info]
        assert known, info
        assert kind == known[0].type.value
        assert {"domain", "bus", "device", "function"} <= info.keys()
        assert all(isinstance(value, str) for value in info.values())
        if known[0].type is AttachType.PCI:
            address = "{domain}:{bus}:{device}.{function}".format(**info)
            assert place.machine.exists(f"/sys/bus/pci/devices/{address}")
            addresses.append(address)
    if first.group_size == len(first.handles):
        assert not candidates()

    nova.delete_of(instance)
    placement.free(instance)
    eventually_idle(database)
    eventually(lambda: {one: offered(placement, one) for one in providers} == providers)
    eventually(lambda: bool(candidates()))
    assert member.get("/accelerator_requests", instance=instance)["arqs"] == []
    kernel = place.machine.kernel
    assert isinstance(kernel, SimulatedKernel)
    if first.clean is not None and bound[0]["attach_handle_type"] == AttachType.PCI.value:
        assert set(addresses) <= set(kernel.functions.resets)


def test_marks_name_the_drivers_of_the_hosts(tmp_path: Path) -> None:
    """A function of each driver that claims to clean is reset after its server."""
    marks = vars(test_server_gets_a_device_and_releases_it)["pytestmark"]
    claims = {mark.args[0]: set(mark.args[1:]) for mark in marks if mark.name == "proves"}
    expected: dict[str, set[str]] = {}
    for name, driver in PAIRS:
        if "cleaning" in expected.get(driver.name, ()):
            continue
        conf = written(tmp_path / "cyborg.conf", driver.options)
        (loaded,) = load([driver.name], scenario_hosts.load(name), conf)
        assert loaded.driver is not None
        part = look(loaded.driver).discover()[0].deployables[0]
        features = expected.setdefault(driver.name, {"discover", "bind"})
        if part.clean is not None and part.handles[0].type is AttachType.PCI:
            features.add("cleaning")
    assert claims == expected
