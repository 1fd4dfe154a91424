# SPDX-License-Identifier: Apache-2.0
"""Traits by rule, from a file of the host to the real Placement and to the API."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg.clients.placement import Placement
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.pci import PciDriver
from cyborg.testing import servers
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.placement import PlacementService, requested, suffix
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import bind, create, eventually_published
from cyborg.tests.unit.drivers.configured import written

H100, H200, T4 = (f"0000:{bus}:00.0" for bus in ("81", "82", "83"))
TRAIT = "CUSTOM_GPU_MEMORY_80G"
RULE = f"""\
- trait: {TRAIT}
  when:
    device_type: GPU
    memory: {{min: 80 GiB}}
"""
PROFILE = {"resources:CUSTOM_PCI": "1", f"trait:{TRAIT}": "required"}


@pytest.fixture
def rules(conf: cfg.ConfigOpts, tmp_path: Path) -> Iterator[Path]:
    """The file of the operator with rules; it is empty."""
    file = tmp_path / "devices.d" / "rules.yaml"
    file.parent.mkdir()
    file.touch()
    conf.set_override("devices_dir", str(file.parent), group="generic_driver")
    yield file
    conf.clear_override("devices_dir", group="generic_driver")


@pytest.fixture
def gpus(beside: Callable[..., Stack], rules: Path, tmp_path: Path) -> ComputeHost:
    """A compute with two models that have 80 GiB or more, and one that has less; not started."""
    machine = servers.bare()
    for address, product in ((H100, "2331"), (H200, "2335"), (T4, "1eb8")):
        servers.add_function(machine, address, f"10de:{product}:030200", driver="vfio-pci")
    host = compute_host(beside(agent_heartbeat=0.2, scan=0.2), tmp_path / "state", machine)
    options = '[pci]\npassthrough_whitelist = {"vendor_id": "10de"}\n'
    driver = PciDriver(machine, written(tmp_path / "conf", options, host=host.compute))
    host.drivers = [LoadResult(driver.name, driver)]
    return host


def having(placement: PlacementService, host: ComputeHost) -> set[str]:
    """The cards whose providers have the trait in Placement."""
    client = Placement(placement.adapter())
    return {
        address for address in (H100, H200, T4) if TRAIT in client.traits(host.provider(address))[1]
    }


def test_one_trait_matches_two_models_until_its_rule_goes(
    gpus: ComputeHost,
    rules: Path,
    placement: PlacementService,
    operator: Client,
    nova: Client,
    profile: Callable[..., str],
) -> None:
    rules.write_text(RULE)
    gpus.start()
    eventually_published(operator)
    name = profile(PROFILE)
    candidates = placement.candidates(requested([PROFILE]), gpus.root)
    offers = {one.mappings[suffix(0)][0] for one in candidates}
    assert offers == {gpus.provider(H100), gpus.provider(H200)}
    assert having(placement, gpus) == {H100, H200}
    explained = operator.get(f"/device_profiles/{name}/explain")["explanation"]
    assert explained["fits"]
    steps = {step["subject"]: step["units"] for step in explained["steps"]}
    assert steps[f"{TRAIT}=required"] == 2
    bind(nova, create(nova, name), gpus.provider(H200), host=gpus.compute)

    rules.write_text("")
    gpus.restart()
    eventually(lambda: not having(placement, gpus))
    eventually_published(operator)
    explained = operator.get(f"/device_profiles/{name}/explain")["explanation"]
    assert (explained["fits"], explained["satisfiable"]) == (False, "never")
    (reason,) = {step["reason"] for step in explained["steps"] if step["step"] == "trait"}
    assert reason.startswith("No resource provider has it"), reason

    # A misspelled trait has the nearest one of the rules.
    rules.write_text(RULE.replace("80G\n", "80GIB\n"))
    gpus.restart()
    eventually_published(operator)

    def nearest() -> bool:
        answer = operator.get(f"/device_profiles/{name}/explain")["explanation"]
        return any(f"is {TRAIT}IB." in str(step["reason"]) for step in answer["steps"])

    eventually(nearest)
