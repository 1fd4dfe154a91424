# SPDX-License-Identifier: Apache-2.0
"""Clouds for the scenarios, which the service itself builds at first use."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from cyborg.model.device_profile import DeviceProfile
from cyborg.model.process import CONDUCTOR
from cyborg.rpc.verbs import CreateArqs, CreateDeviceProfile, PatchArqs
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.crash.cloud import NOVA, SimulatedCloud
from cyborg.tests.functional.crash.gpus import PartitionCloud, VgpuCloud
from cyborg.tests.functional.crash.runs import Plan, Run, new_run
from cyborg.tests.functional.crash.scenarios import attach
from cyborg.tests.functional.environments import new_environment
from cyborg.tests.functional.life.cards import Traits


@pytest.fixture(scope="package")
def clouds(
    tmp_path_factory: pytest.TempPathFactory, placement: PlacementService
) -> Iterator[Callable[[str], SimulatedCloud]]:
    """Yield what returns the cloud of a name, in the state in which its scenarios start."""
    made: dict[str, SimulatedCloud] = {}

    def cloud(name: str) -> SimulatedCloud:
        if name not in made:
            traits = Traits(
                f"CUSTOM_CARD_{uuid4().hex[:12].upper()}",
                prepare="prepared" in name,
                programmable="programmable" in name,
            )
            kinds: dict[str, type[SimulatedCloud]]
            kinds = {"vgpus": VgpuCloud, "partitions": PartitionCloud}
            kind = next((kinds[word] for word in kinds if word in name), SimulatedCloud)
            made[name] = kind(environment, placement, nova, traits, bare="bare" in name)
            if "attach" in name:
                made[name].units = 1
            made[name].image = glance.add(b"bitstream")
            made[name].imaged = "imaged" in name
            _build(made[name], name)
            made[name].keep()
        return made[name]

    files = tmp_path_factory.mktemp("crash")
    with new_environment(files, placement) as (environment, nova, glance):
        yield cloud


def _build(cloud: SimulatedCloud, name: str) -> None:
    """Bring a cloud into the state that its name says."""
    run = new_run(cloud, Plan(CONDUCTOR), agent=True, agent_runs=True)
    try:
        if name != "new":
            run.settle()
        if name.startswith(("requested", "bound")):
            _request(run)
            cloud.allocate()
        if name.startswith("bound"):
            run.ask(lambda key: PatchArqs(NOVA, key, cloud.bindings, []))
            run.settle()
        if "attached" in name:
            attach(run)
            run.settle()
    finally:
        run.cleanup()


def _request(run: Run) -> None:
    cloud = run.cloud
    group = {f"resources:{cloud.traits.resource_class}": str(cloud.units)}
    if cloud.imaged:
        group["accel:bitstream_id"] = cloud.image
    profile = DeviceProfile(str(uuid4()), cloud.profile, (group,))
    run.ask(lambda key: CreateDeviceProfile(NOVA, key, profile))
    made = run.ask(lambda key: CreateArqs(NOVA, key, cloud.profile))
    cloud.arqs = tuple(one.uuid for one in made)
