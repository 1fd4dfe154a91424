# SPDX-License-Identifier: Apache-2.0
"""For which request a thread works, and who is told."""

import threading
from collections.abc import Iterator

import pytest
from oslo_context.context import get_current

from cyborg import context
from cyborg.context import carried, ids, working_for
from cyborg.tests.fixtures.waiting import joined

ASKED = {"request_id": "req-1", "global_request_id": "req-0", "sender": "agent@compute"}


@pytest.fixture(autouse=True)
def idle() -> Iterator[None]:
    """This thread works for nobody, whatever a test before has left."""
    before = get_current()
    context.RequestContext.update_store(None)  # type: ignore[arg-type]
    yield
    context.RequestContext.update_store(before)  # type: ignore[arg-type]


def test_nested_context_is_restored():
    with working_for({"request_id": "req-2"}):
        with working_for(ASKED):
            assert ids() == {"request_id": "req-1", "global_request_id": "req-0"}
        assert ids() == {"request_id": "req-2"}
    assert get_current() is None
    assert (ids(), context.headers()) == ({}, {})


def test_headers_have_the_first_request_id():
    with working_for(ASKED):
        assert context.headers() == {"X-OpenStack-Request-ID": "req-0"}
    with working_for({"request_id": "req-1"}):
        assert context.headers() == {"X-OpenStack-Request-ID": "req-1"}


def test_work_without_request_gets_an_id():
    found = []
    for empty in ({}, {"request_id": ""}, {"request_id": None}):
        with working_for(empty):
            found.append(ids()["request_id"])
    assert len(set(found)) == 3
    assert all(one.startswith("req-") for one in found)


def test_call_carries_its_context_into_another_thread():
    seen = []
    with working_for(ASKED):
        call = carried(lambda: seen.append(ids()))
    thread = threading.Thread(target=call)
    thread.start()
    joined(thread)
    assert seen == [{"request_id": "req-1", "global_request_id": "req-0"}]


def test_token_is_not_forwarded():
    one = context.RequestContext(auth_token="secret", user_id="u", request_id="req-1")
    assert ids() == {"request_id": "req-1"}
    assert one.auth_token == "secret"
