# SPDX-License-Identifier: Apache-2.0
"""Clouds for the scenarios, which the service itself builds at first use."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from cyborg.db import schema
from cyborg.model.device_profile import DeviceProfile
from cyborg.model.process import CONDUCTOR
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import CreateArqs, CreateDeviceProfile, PatchArqs
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.single_step_processes import Environment
from cyborg.tests.functional.crash.cloud import NOVA, SimulatedCloud
from cyborg.tests.functional.crash.runs import Plan, Run
from cyborg.tests.functional.crash.scenarios import attach
from cyborg.tests.functional.life.cards import Traits
from cyborg.tests.functional.schema.databases import empty_database


@pytest.fixture(scope="package")
def glance() -> Iterator[SimulatedGlance]:
    with SimulatedGlance() as service:
        yield service


@pytest.fixture(scope="package")
def environment(
    tmp_path_factory: pytest.TempPathFactory,
    placement: PlacementService,
    nova_api: SimulatedNova,
    glance: SimulatedGlance,
) -> Iterator[Environment]:
    """A database without background processes."""
    with empty_database(tmp_path_factory.mktemp("crash")) as db:
        schema.upgrade(db)
        made = Environment(
            database_url=db.engine.url.render_as_string(hide_password=False),
            state_path=Path(tmp_path_factory.mktemp("state")),
            placement=placement.adapter(),
            nova=nova_api.adapter(),
            glance=glance.adapter(),
        )
        yield made
        made.close()


@pytest.fixture(scope="package")
def clouds(
    environment: Environment,
    placement: PlacementService,
    nova_api: SimulatedNova,
    glance: SimulatedGlance,
) -> Callable[[str], SimulatedCloud]:
    """Return the cloud of a name, in the state in which its scenarios start."""
    made: dict[str, SimulatedCloud] = {}

    def cloud(name: str) -> SimulatedCloud:
        if name not in made:
            traits = Traits(
                f"CUSTOM_CARD_{uuid4().hex[:12].upper()}",
                prepare="prepared" in name,
                programmable="programmable" in name,
            )
            made[name] = SimulatedCloud(
                environment, placement, nova_api, traits, bare="bare" in name
            )
            if "attach" in name:
                made[name].units = 1
            made[name].image = glance.add(b"bitstream")
            made[name].imaged = "imaged" in name
            _build(made[name], name)
            made[name].keep()
        return made[name]

    return cloud


def _build(cloud: SimulatedCloud, name: str) -> None:
    """Bring a cloud into the state that its name says."""
    run = Run(cloud, Plan(CONDUCTOR), agent=True, agent_runs=True)
    try:
        if name != "new":
            run.settle()
        if name.startswith(("requested", "bound")):
            run.ask(lambda client, request_key: _request(cloud, client, request_key))
            cloud.allocate()
        if name.startswith("bound"):
            run.ask(lambda client, one: client.write(PatchArqs(NOVA, one, cloud.bindings, [])))
            run.settle()
        if "attached" in name:
            attach(run)
            run.settle()
    finally:
        run.cleanup()


def _request(cloud: SimulatedCloud, client: ConductorClient, request_key: str) -> None:
    group = {f"resources:{cloud.traits.resource_class}": str(cloud.units)}
    if cloud.imaged:
        group["accel:bitstream_id"] = cloud.image
    profile = DeviceProfile(str(uuid4()), cloud.profile, (group,))
    client.write(CreateDeviceProfile(NOVA, request_key, profile))
    made = client.write(CreateArqs(NOVA, str(uuid4()), cloud.profile))
    cloud.arqs = tuple(one.uuid for one in made)
