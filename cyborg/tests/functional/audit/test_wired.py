# SPDX-License-Identifier: Apache-2.0
"""The running service repairs itself: a conductor finds what was damaged, an agent publishes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.clients.placement import Placement
from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle
from cyborg.model.audit_findings import Ages
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.cards import CARD, Rack, Traits
from cyborg.tests.functional.life.steps import eventually, eventually_offered, handle_states


@pytest.fixture
def auditing(stack: Stack, quiet_url: str) -> Iterator[Stack]:
    """A service of its own whose conductor audits all the time."""
    own = replace(
        stack,
        database_url=quiet_url,
        times=replace(stack.times, audit=0.5, ages=Ages(settle=-1)),
        exchange=f"cyborg-{uuid4().hex[:12]}",
        _endings=[],
    )
    own.start_conductor("auditing")
    yield own
    own.stop()


def test_conductor_repairs_findings_by_itself(
    auditing: Stack, quiet: Database, placement: PlacementService, tmp_path: Path
) -> None:
    compute = fresh_host("audited")
    placement.make_compute(compute)
    resource_class = f"CUSTOM_CARD_{uuid4().hex[:12].upper()}"
    rack = Rack.build(compute, Traits(resource_class), {CARD: 2})
    auditing.start_agent(compute, machine=rack.machine, drivers=[rack.loaded], state_path=tmp_path)
    eventually_offered(placement, rack.provider(), 2)
    client = Placement(placement.adapter())
    with quiet.writer() as tx:
        tx.execute(sa.update(AttachHandle).values(state="held"))
    placement.call("DELETE", f"/resource_providers/{rack.provider()}/traits")
    eventually(lambda: set(handle_states(quiet).values()) == {"free"})
    eventually(lambda: "CUSTOM_CARD" in client.traits(rack.provider())[1])
    eventually(lambda: auditing.auditor().look().findings == ())
