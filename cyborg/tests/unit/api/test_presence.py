# SPDX-License-Identifier: Apache-2.0
"""API processes say that they are there: from their first request on, and never in its way."""

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import webtest

from cyborg import exception, version
from cyborg.api.middleware.heartbeat import Heartbeat
from cyborg.rpc.verbs import ApiHeartbeat
from cyborg.service import wait_until
from cyborg.tests.fixtures.waiting import Gate, Meeting, eventually, joined


class Listener:
    """A conductor that receives heartbeats; ``open`` lets it answer."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, str]] = []
        self.open = Gate()
        self.open.set()
        self.fault: Exception | None = None

    def request(self, command: ApiHeartbeat) -> None:
        self.heard.append((command.host, command.version, command.endpoint))
        self.open.hold()
        if self.fault is not None:
            raise self.fault


class FakeClock:
    """One that is set without a database."""

    def __init__(self) -> None:
        self.times = 0

    def set(self) -> None:
        self.times += 1


def present(
    conductor: Listener, *, endpoint: str | None = None, clock: FakeClock | None = None
) -> Heartbeat:
    """Presence around an application that says hello."""
    parts: Any = {"conductor": conductor, "clock": clock or FakeClock()}
    return Heartbeat(heartbeat, host="api-1", endpoint=endpoint, **parts)


def heartbeat(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"heartbeat"]


@pytest.fixture
def conductor() -> Listener:
    return Listener()


@pytest.fixture
def presence(conductor: Listener) -> Heartbeat:
    return present(conductor)


def ask(presence: Heartbeat) -> str:
    return str(webtest.TestApp(presence).get("/").text)


def test_no_heartbeat_before_the_first_request(presence: Heartbeat, conductor: Listener) -> None:
    assert not wait_until(lambda: bool(conductor.heard), timeout=0.1)
    assert ask(presence) == "heartbeat"
    eventually(lambda: conductor.heard)
    assert conductor.heard == [("api-1", version.installed(), "cyborg-api@api-1")]


def test_heartbeat_has_endpoint_of_the_operator_and_sets_the_cached_clock(
    conductor: Listener,
) -> None:
    url, clock = "https://cloud.test/accelerator", FakeClock()
    presence = present(conductor, endpoint=url, clock=clock)
    assert clock.times == 0
    ask(presence)
    eventually(lambda: conductor.heard)
    assert (conductor.heard[0][2], clock.times) == (url, 1)


def test_request_does_not_wait_for_the_heartbeat(presence: Heartbeat, conductor: Listener) -> None:
    conductor.open.clear()
    assert ask(presence) == "heartbeat"
    eventually(lambda: conductor.heard)
    assert [ask(presence) for _ in range(3)] == ["heartbeat"] * 3
    conductor.open.set()


def test_concurrent_requests_start_one_heartbeat(presence: Heartbeat, conductor: Listener) -> None:
    together = Meeting(8)

    def one() -> None:
        together.meet()
        ask(presence)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    joined(*threads)
    eventually(lambda: conductor.heard)
    assert not wait_until(lambda: len(conductor.heard) > 1, timeout=0.1)


def test_forked_worker_sends_its_own_heartbeat(presence: Heartbeat, conductor: Listener) -> None:
    ask(presence)
    eventually(lambda: len(conductor.heard) == 1)
    child = os.fork()
    if child == 0:
        # Nothing of pytest may run here: the exit status is the verdict.
        status = 1
        try:
            quiet = len(conductor.heard) == 1
            ask(presence)
            eventually(lambda: len(conductor.heard) == 2)
            status = 0 if quiet else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_missing_conductor_is_logged_once(
    presence: Heartbeat, conductor: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    conductor.fault = exception.Unavailable(peer="conductor", reason="no answer")
    assert ask(presence) == "heartbeat"
    eventually(lambda: "heartbeat failed: " in caplog.text)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
