# SPDX-License-Identifier: Apache-2.0
"""Every change is one RPC call and one commit, and its statements do not grow with its objects."""

from uuid import uuid4

import pytest

from cyborg.tests.fixtures.costs import CREATE, DELETE_BY_INSTANCE, Scenes, bind_allowance
from cyborg.tests.fixtures.counted import CountedService

#: Units asked for, and providers that they are spread over.
SPREADS = [(1, 1), (3, 1), (3, 2), (8, 1), (8, 2)]


@pytest.mark.parametrize("units", [1, 3, 8])
def test_cost_of_create(scenes: Scenes, units: int):
    profile = scenes.profile(units)
    tally, arqs = scenes.create(profile)
    assert len(arqs) == units
    assert CREATE.covers(tally), tally


@pytest.mark.parametrize(("units", "providers"), SPREADS)
def test_cost_of_first_bind_of_an_instance(scenes: Scenes, units: int, providers: int):
    tally = scenes.bind(scenes.bindable(units, providers))
    assert bind_allowance(providers).covers(tally), tally


@pytest.mark.parametrize(("units", "providers"), SPREADS)
def test_cost_of_later_bind_of_an_instance(scenes: Scenes, units: int, providers: int):
    instance = str(uuid4())
    scenes.bind(scenes.bindable(units, providers, instance))
    scenes.delete(instance)
    tally = scenes.bind(scenes.bindable(units, providers, instance))
    assert bind_allowance(providers).covers(tally), tally


@pytest.mark.parametrize(("units", "providers"), SPREADS)
def test_cost_of_delete_by_instance(
    house: CountedService, scenes: Scenes, units: int, providers: int
):
    wanted = scenes.bindable(units, providers)
    scenes.bind(wanted)
    tally = scenes.delete(wanted.instance)
    assert DELETE_BY_INSTANCE.covers(tally), tally
    assert house.send("GET", f"/accelerator_requests?instance={wanted.instance}")["arqs"] == []


@pytest.mark.parametrize("units", [1, 8])
def test_cost_of_delete_by_instance_during_preparation(house: CountedService, units: int):
    scenes = Scenes(house, prepare=True)
    wanted = scenes.bindable(units, 1)
    scenes.bind(wanted)
    tally = scenes.delete(wanted.instance)
    assert DELETE_BY_INSTANCE.covers(tally), tally


def test_cost_of_delete_by_instance_without_arqs(scenes: Scenes):
    tally = scenes.delete(str(uuid4()))
    assert DELETE_BY_INSTANCE.covers(tally), tally


@pytest.mark.parametrize("units", [1, 8])
def test_event_request_is_sent_after_the_response(
    house: CountedService, scenes: Scenes, units: int
):
    house.forget_work()
    wanted = scenes.bindable(units, 1)
    assert scenes.bind(wanted).http == []
    tally = house.deliver()
    assert tally.http == ["POST /os-server-external-events"]
    assert (tally.sql, tally.commits) == (5, 2), tally
