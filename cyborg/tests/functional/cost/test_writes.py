# SPDX-License-Identifier: Apache-2.0
"""Every change is one RPC call and one commit, and its statements do not grow with its objects."""

from uuid import uuid4

import pytest

from cyborg.tests.fixtures.costs import CREATE, DELETE_BY_INSTANCE, Scenarios, bind_allowance
from cyborg.tests.fixtures.counted_service import CountedService

#: Units asked for, and providers that they are spread over.
SPREADS = [(1, 1), (3, 1), (3, 2), (8, 1), (8, 2)]


@pytest.mark.parametrize("units", [1, 3, 8])
def test_cost_of_create(scenarios: Scenarios, units: int):
    profile = scenarios.profile(units)
    tally, arqs = scenarios.create(profile)
    assert len(arqs) == units
    assert CREATE.covers(tally), tally


@pytest.mark.parametrize(("units", "providers"), SPREADS)
def test_cost_of_first_bind_of_an_instance(scenarios: Scenarios, units: int, providers: int):
    tally = scenarios.bind(scenarios.bindable(units, providers))
    assert bind_allowance(providers).covers(tally), tally


@pytest.mark.parametrize(("units", "providers"), SPREADS)
def test_cost_of_later_bind_of_an_instance(scenarios: Scenarios, units: int, providers: int):
    instance = str(uuid4())
    scenarios.bind(scenarios.bindable(units, providers, instance))
    scenarios.delete(instance)
    tally = scenarios.bind(scenarios.bindable(units, providers, instance))
    assert bind_allowance(providers).covers(tally), tally


@pytest.mark.parametrize(("units", "providers"), SPREADS)
def test_cost_of_delete_by_instance(
    counted_service: CountedService, scenarios: Scenarios, units: int, providers: int
):
    wanted = scenarios.bindable(units, providers)
    scenarios.bind(wanted)
    tally = scenarios.delete(wanted.instance)
    assert DELETE_BY_INSTANCE.covers(tally), tally
    assert (
        counted_service.send("GET", f"/accelerator_requests?instance={wanted.instance}")["arqs"]
        == []
    )


@pytest.mark.parametrize("units", [1, 8])
def test_cost_of_delete_by_instance_during_preparation(counted_service: CountedService, units: int):
    scenarios = Scenarios(counted_service, prepare=True)
    wanted = scenarios.bindable(units, 1)
    scenarios.bind(wanted)
    tally = scenarios.delete(wanted.instance)
    assert DELETE_BY_INSTANCE.covers(tally), tally


def test_cost_of_delete_by_instance_without_arqs(scenarios: Scenarios):
    tally = scenarios.delete(str(uuid4()))
    assert DELETE_BY_INSTANCE.covers(tally), tally


@pytest.mark.parametrize("units", [1, 8])
def test_event_request_is_sent_after_the_response(
    counted_service: CountedService, scenarios: Scenarios, units: int
):
    counted_service.forget_work()
    wanted = scenarios.bindable(units, 1)
    assert scenarios.bind(wanted).http == []
    tally = counted_service.deliver()
    assert tally.http == ["POST /os-server-external-events"]
    assert (tally.sql, tally.commits) == (5, 2), tally
