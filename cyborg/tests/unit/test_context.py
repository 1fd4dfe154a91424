# SPDX-License-Identifier: Apache-2.0
"""For which request a thread works, and who is told."""

import threading
from collections.abc import Iterator

import pytest
from oslo_context.context import get_current

from cyborg import context
from cyborg.context import carried, ids, working_for

ASKED = {"request_id": "req-1", "global_request_id": "req-0", "sender": "agent@compute"}


@pytest.fixture(autouse=True)
def idle() -> Iterator[None]:
    """This thread works for nobody, whatever a test before has left."""
    before = get_current()
    context.RequestContext.update_store(None)  # type: ignore[arg-type]
    yield
    context.RequestContext.update_store(before)  # type: ignore[arg-type]


def test_a_thread_works_for_a_request_and_then_for_what_it_worked_for_before():
    with working_for({"request_id": "req-2"}):
        with working_for(ASKED):
            assert ids() == {"request_id": "req-1", "global_request_id": "req-0"}
        assert ids() == {"request_id": "req-2"}
    assert get_current() is None
    assert (ids(), context.headers()) == ({}, {})


def test_other_services_are_told_the_id_of_who_asked_first():
    with working_for(ASKED):
        assert context.headers() == {"X-OpenStack-Request-ID": "req-0"}
    with working_for({"request_id": "req-1"}):
        assert context.headers() == {"X-OpenStack-Request-ID": "req-1"}


def test_work_for_nobody_has_an_id_of_its_own():
    found = []
    for empty in ({}, {"request_id": ""}, {"request_id": None}):
        with working_for(empty):
            found.append(ids()["request_id"])
    assert len(set(found)) == 3
    assert all(one.startswith("req-") for one in found)


def test_a_call_carries_its_request_into_another_thread():
    seen = []
    with working_for(ASKED):
        call = carried(lambda: seen.append(ids()))
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert seen == [{"request_id": "req-1", "global_request_id": "req-0"}]


def test_no_token_is_handed_on():
    one = context.RequestContext(auth_token="secret", user_id="u", request_id="req-1")
    assert ids() == {"request_id": "req-1"}
    assert one.auth_token == "secret"
