# SPDX-License-Identifier: Apache-2.0
"""Stages for the scenarios, made by the service itself when they are first asked for."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from cyborg.db import schema
from cyborg.model.device_profile import DeviceProfile
from cyborg.model.names import CONDUCTOR
from cyborg.rpc.conductor import ConductorClient
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.single_step_processes import Ground
from cyborg.tests.functional.crash.lives import Life, Plan
from cyborg.tests.functional.crash.scenarios import attach
from cyborg.tests.functional.crash.stage import NOVA, Stage
from cyborg.tests.functional.life.cards import Traits
from cyborg.tests.functional.schema.databases import empty_database


@pytest.fixture(scope="package")
def glance() -> Iterator[SimulatedGlance]:
    with SimulatedGlance() as service:
        yield service


@pytest.fixture(scope="package")
def ground(
    tmp_path_factory: pytest.TempPathFactory,
    placement: PlacementService,
    nova_api: SimulatedNova,
    glance: SimulatedGlance,
) -> Iterator[Ground]:
    """A database on which nothing works but what a test has work."""
    with empty_database(tmp_path_factory.mktemp("crash")) as db:
        schema.upgrade(db)
        made = Ground(
            database_url=db.engine.url.render_as_string(hide_password=False),
            state_path=Path(tmp_path_factory.mktemp("state")),
            placement=placement.adapter(),
            nova=nova_api.adapter(),
            glance=glance.adapter(),
        )
        yield made
        made.close()


@pytest.fixture(scope="package")
def stages(
    ground: Ground, placement: PlacementService, nova_api: SimulatedNova, glance: SimulatedGlance
) -> Callable[[str], Stage]:
    """The stage of a name, as its scenarios find it."""
    made: dict[str, Stage] = {}

    def stage(name: str) -> Stage:
        if name not in made:
            traits = Traits(
                f"CUSTOM_CARD_{uuid4().hex[:12].upper()}",
                prepare="prepared" in name,
                programmable="programmable" in name,
            )
            made[name] = Stage(ground, placement, nova_api, traits, bare="bare" in name)
            if "attach" in name:
                made[name].units = 1
            made[name].image = glance.add(b"bitstream")
            made[name].imaged = "imaged" in name
            _build(made[name], name)
            made[name].keep()
        return made[name]

    return stage


def _build(stage: Stage, name: str) -> None:
    """Bring a stage from nothing to what its name says."""
    life = Life(stage, Plan(CONDUCTOR), agent=True, beats=True)
    try:
        if name != "new":
            life.settle()
        if name.startswith(("requested", "bound")):
            life.ask(lambda client, request_key: _request(stage, client, request_key))
            stage.allocate()
        if name.startswith("bound"):
            life.ask(lambda client, one: client.patch_arqs(NOVA, one, stage.bindings, []))
            life.settle()
        if "attached" in name:
            attach(life)
            life.settle()
    finally:
        life.bury()


def _request(stage: Stage, client: ConductorClient, request_key: str) -> None:
    group = {f"resources:{stage.traits.resource_class}": str(stage.units)}
    if stage.imaged:
        group["accel:bitstream_id"] = stage.image
    profile = DeviceProfile(str(uuid4()), stage.profile, (group,))
    client.create_device_profile(NOVA, request_key, profile)
    made = client.create_arqs(NOVA, str(uuid4()), stage.profile)
    stage.arqs = tuple(one.uuid for one in made)
