# SPDX-License-Identifier: Apache-2.0
"""A compute on a database of its own, and how much is done to it.

A run does 30 damages; 100 if all cases are tried, and 500 in a full run.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cyborg.tests.fixtures.choice import ALL, FULL
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.drift.site import Site, site
from cyborg.tests.functional.schema.databases import upgraded_database

DAMAGES = 500 if FULL else 100 if ALL else 30


@pytest.fixture
def compute_site(tmp_path: Path, placement: PlacementService) -> Iterator[Site]:
    """Twenty cards in service, four of them with a guest."""
    with upgraded_database(tmp_path) as db, SimulatedNova() as nova:
        url = db.engine.url.render_as_string(hide_password=False)
        state = tmp_path / "agent"
        state.mkdir()
        with site(url, placement, nova, state) as made:
            assert made.found() == set()
            yield made
