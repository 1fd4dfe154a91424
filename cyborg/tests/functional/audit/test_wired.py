# SPDX-License-Identifier: Apache-2.0
"""The running service repairs itself: a conductor finds what was damaged, an agent publishes."""

from collections.abc import Callable

import sqlalchemy as sa

from cyborg.clients.placement import Placement
from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle
from cyborg.model.audit_findings import Ages
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.steps import handle_states


def test_conductor_repairs_findings_by_itself(
    running: Callable[..., Stack],
    racked: Callable[..., RackedCompute],
    quiet: Database,
    placement: PlacementService,
) -> None:
    auditing = running(audit=0.5, ages=Ages(settle=-1))
    rack = racked(on=auditing)
    client = Placement(placement.adapter())
    with quiet.writer() as tx:
        tx.execute(sa.update(AttachHandle).values(state="releasing"))
    placement.call("DELETE", f"/resource_providers/{rack.provider()}/traits")
    eventually(lambda: set(handle_states(quiet).values()) == {"free"})
    eventually(lambda: "CUSTOM_CARD" in client.traits(rack.provider())[1])
    eventually(lambda: auditing.auditor().look().findings == ())
