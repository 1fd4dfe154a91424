# SPDX-License-Identifier: Apache-2.0
"""Every test of the audit begins with an empty database and makes its own hosts."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Service
from cyborg.testing.placement import PlacementService
from cyborg.tests.functional.audit.cloud import ListingNova, SmallCloud


@pytest.fixture
def nova() -> Iterator[ListingNova]:
    with ListingNova() as service:
        yield service


@pytest.fixture
def cloud(
    clean: None, database: Database, placement: PlacementService, nova: ListingNova
) -> Iterator[SmallCloud]:
    made = SmallCloud(database, placement, nova)
    yield made
    # Its conductor lives no longer than it.
    made.execute(sa.delete(Service).where(Service.host == "control"))
