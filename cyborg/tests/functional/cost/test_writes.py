# SPDX-License-Identifier: Apache-2.0
"""Every change is one RPC call and one commit, and its statements do not grow with its objects."""

from datetime import datetime
from uuid import uuid4

import pytest

from cyborg.conductor.arqs import release
from cyborg.tests.fixtures.costs import CREATE, DELETE_BY_INSTANCE, Scenarios, bind_allowance
from cyborg.tests.fixtures.counted_service import CountedService
from cyborg.tests.fixtures.unrelated_rows import add_unbound


#: Units asked for, and providers that they are spread over.
@pytest.mark.parametrize(("units", "providers"), [(1, 1), (3, 2), (8, 1), (8, 2)])
def test_cost_of_create_bind_and_delete(
    counted_service: CountedService, scenarios: Scenarios, units: int, providers: int
):
    """The first bind of an instance and a later one; its event is sent after the response."""
    tally, arqs = scenarios.create(scenarios.profile(units))
    assert len(arqs) == units
    assert CREATE.covers(tally), tally
    instance = str(uuid4())
    for known in (False, True):
        counted_service.forget_work()
        tally = scenarios.bind(scenarios.bindable(units, providers, instance))
        assert bind_allowance(providers, known=known).covers(tally), tally
        assert tally.http == []
        tally = counted_service.deliver()
        assert tally.http == ["POST /os-server-external-events"]
        assert (tally.sql, tally.commits) == (5, 2), tally
        tally = scenarios.delete(instance)
        assert DELETE_BY_INSTANCE.covers(tally), tally
        path = f"/accelerator_requests?instance={instance}"
        assert counted_service.send("GET", path)["arqs"] == []
    # There is nothing left to be deleted.
    tally = scenarios.delete(instance)
    assert DELETE_BY_INSTANCE.covers(tally), tally


@pytest.mark.parametrize("units", [1, 8])
def test_cost_of_delete_by_instance_during_preparation(counted_service: CountedService, units: int):
    scenarios = Scenarios(counted_service, prepare=True)
    wanted = scenarios.bindable(units, 1)
    scenarios.bind(wanted)
    tally = scenarios.delete(wanted.instance)
    assert DELETE_BY_INSTANCE.covers(tally), tally


@pytest.mark.parametrize(("count", "statements"), [(0, 1), (1, 3), (1000, 3)])
def test_cost_of_the_expiry_of_unbound_arqs(
    counted_service: CountedService, scenarios: Scenarios, count: int, statements: int
):
    """Three statements per thousand: choose and lock, delete, add to the history."""
    future = datetime(2999, 1, 1)
    release.expire(counted_service.db, future, 1000)
    _, (pattern,) = scenarios.create(scenarios.profile(1))
    add_unbound(counted_service.db, pattern["uuid"], count - 1)
    if not count:
        release.expire(counted_service.db, future, 1)
    with counted_service.meter.tally() as tally:
        deleted = release.expire(counted_service.db, future, 1000)
    assert deleted == count
    assert (tally.sql, tally.commits) == (statements, 1)
    path = "/accelerator_requests?state=Initial"
    assert counted_service.send("GET", path)["arqs"] == []
