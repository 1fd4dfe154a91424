# SPDX-License-Identifier: Apache-2.0
"""The health of a device over time: probation, flapping, and the words of operators."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg.model.health import Condition, DeviceHealth, offered
from cyborg.model.probation import Rules, State

HOUR = 3_600_000
RULES = Rules(probation=600_000, faults=3, window=24 * HOUR)
OK = DeviceHealth("k", Condition.OK)
DRAIN = DeviceHealth("k", Condition.DRAIN, ("hot",))
DEAD = DeviceHealth("k", Condition.DEAD, ("gone",))
UNKNOWN = DeviceHealth("k")


def after(*reports: tuple[int, DeviceHealth], rules: Rules = RULES) -> State:
    state = State()
    for now, report in reports:
        state = state.after_report(report, now, rules)
    return state


@pytest.mark.parametrize("condition", [Condition.OK, Condition.DEGRADED, None])
def test_devices_in_service_have_the_reported_health(condition: Condition | None) -> None:
    state = after((0, DeviceHealth("k", condition, ("slow",))))
    assert (state.health, state.reasons) == (condition, ("slow",))
    assert (state.until, state.faults) == (None, ())


@pytest.mark.parametrize("cause", [DRAIN, DEAD])
def test_a_device_whose_fault_is_gone_is_in_probation_and_returns(cause: DeviceHealth) -> None:
    state = after((0, OK), (1000, cause))
    assert (state.health, state.reasons) == (cause.condition, cause.reasons)
    state = state.after_report(OK, 2000, RULES)
    assert (state.health, state.until) == ("probation", 602_000)
    assert state.reasons == (
        "The fault is gone. The units are offered again at 1970-01-01T00:10:02+00:00.",
        *cause.reasons,
    )
    assert state.after_report(UNKNOWN, 5000, RULES).health == "probation"
    assert state.settled(601_999, RULES) == state
    back = state.settled(602_000, RULES)
    assert (back.health, back.reasons, back.until) == ("ok", (), None)


def test_a_fault_in_probation_takes_the_device_out_of_service_again() -> None:
    state = after((0, DRAIN), (1, OK), (2, DEAD))
    assert (state.health, state.until, state.faults) == ("dead", None, (0, 2))


def test_a_worse_fault_is_the_same_fault() -> None:
    assert after((0, DRAIN), (1, DEAD), (2, DRAIN)).faults == (0,)


def test_without_probation_the_device_returns_at_once() -> None:
    assert after((0, DRAIN), (1, OK), rules=Rules()).health == "ok"
    assert after(*[(n, DRAIN if n % 2 else OK) for n in range(20)], rules=Rules()).health == "drain"


def test_a_device_that_flaps_is_parked_until_an_operator_releases_it() -> None:
    state = after((0, DRAIN), (1, OK), (2, DRAIN), (3, OK), (4, DRAIN))
    assert state.health == "parked"
    assert state.reasons == (
        (
            "The device was taken out of service 3 times within 24 h. Repair or replace it, "
            "then release it with 'cyborg accelerator-update --health auto'."
        ),
        "hot",
    )
    later = state.after_report(OK, 1000 * HOUR, RULES)
    assert (later.health, later.reasons) == ("parked", state.reasons)
    released = later.released(1000 * HOUR, RULES)
    assert (released.health, released.faults) == ("ok", ())


def test_a_parked_device_that_is_still_faulty_is_released_to_its_fault() -> None:
    state = after((0, DRAIN), (1, OK), (2, DRAIN), (3, OK), (4, DRAIN)).released(9, RULES)
    assert (state.health, state.faults) == ("drain", (9,))


def test_old_faults_do_not_count() -> None:
    state = after((0, DRAIN), (1, OK), (2, DRAIN), (3, OK), (24 * HOUR + 1, DRAIN))
    assert (state.health, state.faults) == ("drain", (2, 24 * HOUR + 1))


def test_an_operator_has_faults_ignored_for_a_time() -> None:
    state = after((0, DRAIN)).ignored(5000)
    text = "An operator has faults of the device ignored until 1970-01-01T00:00:05+00:00."
    assert (state.health, state.reasons) == ("ignored", (text, "hot"))
    state = state.after_report(DEAD, 1000, RULES)
    assert (state.health, state.reasons) == ("ignored", (text, "gone"))
    assert state.settled(5000, RULES).health == "dead"
    healthy = state.after_report(OK, 2000, RULES)
    assert (healthy.health, healthy.settled(5000, RULES).health) == ("ignored", "ok")


def test_an_operator_ends_a_probation() -> None:
    assert after((0, DRAIN), (1, OK)).released(2, RULES).health == "ok"


@given(
    steps=st.lists(
        st.tuples(
            st.integers(1, 12 * HOUR),
            st.sampled_from([OK, DRAIN, DEAD, UNKNOWN, "time", "ignore", "auto"]),
        ),
        max_size=30,
    )
)
def test_a_faulty_device_is_only_offered_if_an_operator_says_so(
    steps: list[tuple[int, DeviceHealth | str]],
) -> None:
    state, now = State(), 0
    for pause, step in steps:
        now += pause
        if isinstance(step, DeviceHealth):
            state = state.after_report(step, now, RULES)
        elif step == "time":
            state = state.settled(now, RULES)
        elif step == "ignore":
            state = state.ignored(now + HOUR)
        else:
            state = state.released(now, RULES)
        assert state.settled(now, RULES) == state
        faulty = state.reported in ("drain", "dead")
        if faulty and offered(state.health):
            assert state.health == "ignored"
            assert state.until is not None
            assert now < state.until
