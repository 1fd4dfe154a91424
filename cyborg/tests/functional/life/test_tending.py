# SPDX-License-Identifier: Apache-2.0
"""Prepared devices against bound ARQs: after a reboot, a leak, a crash, and against a new bind."""

import logging
from collections.abc import Callable

import pytest

from cyborg.db.engine import Database
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.cards import CARD, OTHER, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    Arqs,
    bind,
    create,
    delete_arqs,
    eventually,
    eventually_bound,
    eventually_idle,
    handle_states,
    work_left,
)


class Died(BaseException):
    """The process has ended here: nothing of it goes on."""


@pytest.fixture
def host(
    racked: Callable[..., RackedCompute], resource_class: str, beside: Callable[..., Stack]
) -> RackedCompute:
    """A compute whose agent prepares units for guests, and looks at everything all the time."""
    hurried = beside(agent_heartbeat=0.2, scan=0.2, full_check=0.2)
    return racked(Traits(resource_class, prepare=True), cards={CARD: 2, OTHER: 1}, on=hurried)


@pytest.fixture
def arqs(nova: Client, profile: Callable[..., str], resource_class: str) -> Callable[[], Arqs]:
    name = profile({f"resources:{resource_class}": "1", "accel:bitstream": "some"})
    return lambda: create(nova, name)


def bound(nova: Client, arqs: Callable[[], Arqs], host: RackedCompute, card: str = CARD) -> str:
    """A server with one unit of a card; the instance's uuid."""
    instance = bind(nova, arqs(), host.provider(card))
    eventually_bound(nova, instance)
    return instance


def looked_again(host: RackedCompute) -> None:
    """Wait until the agent has compared everything, from beginning to end, once more."""
    looks = host.driver.looks
    eventually(lambda: host.driver.looks > looks + 2)


def test_units_of_guests_are_prepared_after_a_reboot(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client
) -> None:
    for card in (CARD, OTHER):
        bound(nova, arqs, host, card)
    before = host.driver.ready
    assert len(before) == 2
    host.stop()
    host.boot()
    assert host.driver.ready == set()
    host.driver.specs.clear()
    host.start()
    eventually(lambda: host.driver.ready == before)
    # As the guest's profile wants it, as at the first time.
    assert host.driver.specs == [{"bitstream": "some"}] * 2


def test_unplugged_card_is_prepared_when_it_returns(
    racked: Callable[..., RackedCompute],
    resource_class: str,
    arqs: Callable[[], Arqs],
    nova: Client,
) -> None:
    # A full check is far away: the card itself is the news.
    host = racked(Traits(resource_class, prepare=True), cards={CARD: 1})
    bound(nova, arqs, host)
    before, looks = host.driver.ready, host.driver.looks
    host.pull(CARD)
    host.boot()
    eventually(lambda: host.driver.looks > looks)
    assert host.driver.ready == set()
    host.plug(CARD, 1)
    eventually(lambda: host.driver.ready == before)


def test_prepared_units_without_arq_are_released(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> None:
    bound(nova, arqs, host)
    held = host.driver.ready
    states = handle_states(database)
    for key in sorted(states.keys() - held):
        host.leak(key, OTHER if key.startswith("0000:82") else CARD)
    eventually(lambda: host.driver.ready == held)
    assert handle_states(database) == states
    assert work_left(database) == []


def test_unknown_prepared_units_are_kept_and_logged_once(
    host: RackedCompute, caplog: pytest.LogCaptureFixture
) -> None:
    host.leak("0000:99:00.1", "0000:99:00.0")
    looked_again(host)
    looked_again(host)
    assert host.driver.ready == {"0000:99:00.1"}
    said = [one for one in caplog.records if "left alone" in one.getMessage()]
    assert len(said) == 1


def test_failed_repair_does_not_stop_others(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client, caplog: pytest.LogCaptureFixture
) -> None:
    bound(nova, arqs, host, OTHER)
    host.driver.behaviour.fault = RuntimeError("out of memory")
    host.boot()
    host.leak("0000:81:00.1")
    eventually(lambda: host.driver.ready == set())
    eventually(lambda: "out of memory" in caplog.text)
    host.driver.behaviour.fault = None
    eventually(lambda: len(host.driver.ready) == 1)


def test_hanging_device_stops_no_other_repair_and_no_heartbeat(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client
) -> None:
    bound(nova, arqs, host)
    host.driver.behaviour.preparing.clear()
    host.boot()
    host.leak("0000:82:00.1", OTHER)
    eventually(lambda: host.driver.ready == set())
    looked_again(host)
    host.driver.behaviour.open()
    eventually(lambda: len(host.driver.ready) == 1)
    # However often it was found lacking while it hung.
    assert [verb for verb, _ in host.driver.calls].count("prepare") == 2


def test_units_with_conductor_work_are_not_touched(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> None:
    host.driver.behaviour.preparing.clear()
    instance = bind(nova, arqs(), host.provider(OTHER))
    looked_again(host)
    host.driver.behaviour.open()
    eventually_bound(nova, instance)
    host.driver.behaviour.releasing.clear()
    delete_arqs(nova, instance)
    looked_again(host)
    host.driver.behaviour.open()
    eventually_idle(database)
    looked_again(host)
    assert [verb for verb, _ in host.driver.calls] == ["prepare", "release"]


def test_constant_comparison_does_not_disturb_binds(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> None:
    for _ in range(8):
        instance = bound(nova, arqs, host)
        assert len(host.driver.ready) == 1
        delete_arqs(nova, instance)
        eventually_idle(database)
    looked_again(host)
    assert host.driver.ready == set()
    verbs = [verb for verb, _ in host.driver.calls]
    assert verbs.count("prepare") == verbs.count("release") == 8


def test_crash_during_preparation_is_repaired(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client, caplog: pytest.LogCaptureFixture
) -> None:
    bound(nova, arqs, host)
    before = host.driver.ready
    host.driver.behaviour.fault = Died()
    host.driver.behaviour.half_done = True
    calls = len(host.driver.calls)
    host.boot()
    # It is half made: it shows, but no guest could use it.
    eventually(lambda: host.driver.ready == before)
    host.stop()
    assert len(host.driver.calls) == calls
    host.driver.behaviour.fault = None
    with caplog.at_level(logging.WARNING):
        host.start()
    assert f"in the middle of prepare of {host.compute}_{CARD}" in caplog.text
    eventually(lambda: len(host.driver.calls) > calls)
    assert host.driver.calls[calls:] == [("prepare", *before)]
    assert host.driver.ready == before


def test_unit_half_prepared_for_a_deleted_arq_is_released(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> None:
    instance = bound(nova, arqs, host)
    host.driver.behaviour.fault = Died()
    host.driver.behaviour.half_done = True
    host.boot()
    eventually(lambda: host.driver.ready != set())
    host.stop()
    delete_arqs(nova, instance)
    host.driver.behaviour.fault = None
    host.start()
    eventually(lambda: host.driver.ready == set() and work_left(database) == [])
    assert set(handle_states(database).values()) == {"free"}
