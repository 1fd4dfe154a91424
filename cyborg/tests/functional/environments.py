# SPDX-License-Identifier: Apache-2.0
"""Environments for processes on the in-process bus: a database and peers."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cyborg.db.engine import Settings
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.single_step import MOVED, Clock, Environment
from cyborg.tests.functional.schema.databases import upgraded_database


@contextmanager
def new_environment(
    files: Path, placement: PlacementService, clock: Clock | None = None
) -> Iterator[tuple[Environment, SimulatedNova, SimulatedGlance]]:
    """Yield an environment with its Nova and Glance; ``files`` is the directory for its files.

    ``clock`` is one that a test moves, by default a new one.
    """
    with upgraded_database(files) as db, SimulatedNova() as nova, SimulatedGlance() as glance:
        environment = Environment(
            database_url=db.engine.url.render_as_string(hide_password=False),
            state_path=files / "state",
            placement=placement.adapter(),
            nova=nova.adapter(),
            glance=glance.adapter(),
            clock=clock or Clock(),
            engine=Settings(sqlite_synchronous=False, sqlite_busy_timeout=2.0),
            settings=MOVED,
        )
        with closing(environment):
            yield environment, nova, glance
