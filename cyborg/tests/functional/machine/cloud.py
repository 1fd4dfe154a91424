# SPDX-License-Identifier: Apache-2.0
"""What outlives every example: a database with its clock, and the services around ours."""

from dataclasses import dataclass, field

import webtest

from cyborg.db.engine import Database
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.single_step import Clock, Environment


@dataclass(frozen=True)
class Site:
    """``app`` is the API, for reading only: no conductor is behind it."""

    environment: Environment
    placement: PlacementService
    nova: SimulatedNova
    glance: SimulatedGlance
    app: webtest.TestApp
    #: The images that Glance has, by uuid.
    images: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for data in (b"one", b"another"):
            self.images[self.glance.add(data)] = data

    @property
    def database(self) -> Database:
        return self.environment.watch

    @property
    def clock(self) -> Clock:
        return self.environment.clock
