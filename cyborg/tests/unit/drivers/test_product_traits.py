# SPDX-License-Identifier: Apache-2.0
"""The traits that name the product of what a driver offers, on each scenario host."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest

from cyborg.drivers.loader import NAMESPACE, load
from cyborg.testing import scenario_hosts
from cyborg.testing.driver_checks import look
from cyborg.testing.scenario_file import CyborgDriver
from cyborg.tests.unit.drivers.configured import written

INSTALLED = entry_points(group=NAMESPACE).names
CASES = [
    pytest.param(name, driver, id=f"{name}-{driver.name}")
    for name in scenario_hosts.names()
    for driver in scenario_hosts.read(name).drivers
    if driver.name in INSTALLED
]
#: A driver whose cards have only traits of their networks, and of whether guests get whole ports.
NAMELESS = {"intel_nic_driver"}
#: Traits that do not tell one product from another.
COMMON = {"OWNER_CYBORG", "STORAGE_DISK_SSD", "HW_NIC_OFFLOAD_RDMA", "CUSTOM_PF", "CUSTOM_VF"}


@pytest.mark.parametrize(("name", "driver"), CASES)
def test_driver_says_which_traits_name_the_product(
    name: str, driver: CyborgDriver, tmp_path: Path
) -> None:
    conf = written(tmp_path / "cyborg.conf", driver.options, host="compute-1")
    (loaded,) = load([driver.name], scenario_hosts.load(name), conf)
    assert loaded.driver is not None, loaded.error
    devices = look(loaded.driver).discover()
    assert devices
    products: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for device in devices:
        assert device.validate() is None
        for part in device.deployables:
            if driver.name == "generic_driver":
                # What its configuration lists, which may be nothing.
                assert set(part.product_traits) == set(part.traits) - {"OWNER_CYBORG"}
            else:
                assert bool(part.product_traits) is (driver.name not in NAMELESS)
            assert COMMON.isdisjoint(part.product_traits)
            products.setdefault((device.model, part.resource_class), set()).add(part.product_traits)
    if driver.name != "nvidia_gpu_driver":
        # Units of a GPU can have several types of vGPU.
        assert all(len(traits) == 1 for traits in products.values()), products
