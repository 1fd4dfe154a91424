# SPDX-License-Identifier: Apache-2.0
"""The life of an accelerator request: every event in every state."""

from itertools import product
from uuid import UUID, uuid4

import pytest

from cyborg.model.arq import MOVES, RESOLVED, Event, State, arq_uuids

#: Where each event leads; what is not here cannot happen.
LEADS = {
    (State.INITIAL, Event.BIND): State.BOUND,
    (State.UNBOUND, Event.BIND): State.BOUND,
    (State.INITIAL, Event.START): State.BIND_STARTED,
    (State.UNBOUND, Event.START): State.BIND_STARTED,
    (State.BIND_STARTED, Event.FINISH): State.BOUND,
    (State.BIND_STARTED, Event.FAIL): State.BIND_FAILED,
    (State.INITIAL, Event.UNBIND): State.UNBOUND,
    (State.BIND_STARTED, Event.UNBIND): State.UNBOUND,
    (State.BOUND, Event.UNBIND): State.UNBOUND,
    (State.BIND_FAILED, Event.UNBIND): State.UNBOUND,
    (State.UNBIND_FAILED, Event.UNBIND): State.UNBOUND,
    (State.UNBOUND, Event.UNBIND): State.UNBOUND,
}


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_every_state_and_event_pair_has_the_listed_target(state: State, event: Event) -> None:
    move = MOVES[event]
    leads = move.target if state in move.sources else None
    assert leads is LEADS.get((state, event))


def test_state_words_are_those_of_the_api() -> None:
    assert [state.value for state in State] == [
        "Initial",
        "BindStarted",
        "Bound",
        "Unbound",
        "BindFailed",
        "UnbindFailed",
        "Deleting",
    ]
    assert {state.value for state in RESOLVED} == {"Bound", "BindFailed", "Deleting"}


def test_arq_uuids_follow_from_the_request_key() -> None:
    request_key = str(uuid4())
    made = arq_uuids(request_key, 5)
    assert made == arq_uuids(request_key, 5)
    assert made[:3] == arq_uuids(request_key, 3)
    assert len({str(UUID(one)) for one in made}) == 5
    assert set(made).isdisjoint(arq_uuids(str(uuid4()), 5))
