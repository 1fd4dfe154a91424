# SPDX-License-Identifier: Apache-2.0
"""Why the bus cannot be used, in a sentence; and a server that starts when the broker lets it."""

import logging
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, cast

import oslo_messaging
import pytest
from amqp import exceptions as amqp
from kombu.exceptions import OperationalError

from cyborg.model.process import BusFault
from cyborg.rpc.rabbit import SENDER, SERVER, BrokerFailure, Troubles, explain, server_part
from cyborg.rpc.transport import Receiver
from cyborg.tests.fixtures.waiting import eventually, joined

ADDRESS = "192.0.2.1:5672"
CERTIFICATE = ssl.SSLCertVerificationError(1, "certificate verify failed: certificate has expired")
CERTIFICATE.reason = "CERTIFICATE_VERIFY_FAILED"


def wrapped(cause: Exception) -> Exception:
    """The error as kombu raises it."""
    try:
        raise OperationalError(str(cause)) from cause
    except OperationalError as error:
        return error


LOGIN = "403 ACCESS_REFUSED - Login was refused"
VHOST = "530 NOT_ALLOWED - vhost x not found"
QUEUE = "403 ACCESS_REFUSED - access to queue 'q'"
EXPIRED = "certificate verify failed: certificate has expired"
THE_BUS = f"the message bus at {ADDRESS}"
FAILURES: list[tuple[Exception, str, bool]] = [
    (
        amqp.AccessRefused(LOGIN[4:], reply_code=403),
        f"{THE_BUS} refuses the connection: {LOGIN}",
        True,
    ),
    (
        amqp.NotAllowed(VHOST[4:], (10, 40), reply_code=530),
        f"{THE_BUS} refuses the connection: {VHOST}",
        True,
    ),
    (
        amqp.AccessRefused(QUEUE[4:], (50, 10), reply_code=403),
        f"{THE_BUS} refuses a request: {QUEUE}",
        True,
    ),
    *(
        (wrapped(cause), f"{THE_BUS} cannot be reached: {words}", False)
        for cause, words in (
            (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
            (socket.gaierror(-2, "Name or service not known"), "name or service not known"),
            (TimeoutError("timed out"), "timed out"),
        )
    ),
    (wrapped(CERTIFICATE), f"the TLS connection to {THE_BUS} fails: {EXPIRED}", True),
    (oslo_messaging.MessagingTimeout(), "no answer over the message bus", False),
    (ValueError(), f"{THE_BUS} cannot be used: ValueError", False),
]


@pytest.mark.parametrize(("error", "sentence", "refused"), FAILURES)
def test_failure_is_explained_with_text_of_the_broker(
    error: Exception, sentence: str, refused: bool
) -> None:
    assert explain(error, ADDRESS) == (sentence, refused)


def test_each_reason_and_recovery_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    troubles = Troubles()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            troubles.failed(SERVER, BrokerFailure("it refuses", refused=True))
            troubles.failed(SENDER, BrokerFailure("it refuses", refused=True))
        began = troubles.of(SERVER)
        troubles.failed(SERVER, BrokerFailure("it is away", refused=False))
        ended = troubles.of(SERVER)
        troubles.works(SENDER)
        troubles.works(SERVER)
        troubles.works(SERVER)
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "RPC server does not work: it refuses"),
        ("WARNING", "RPC server does not work: it is away"),
        ("INFO", "The message bus works again (RPC server)"),
    ]
    assert began is not None
    assert ended is not None
    assert (began.since, began.refused, ended.refused) == (ended.since, True, False)


class Server:
    """A server of the messaging library that a broker refuses at first."""

    def __init__(self, notes: list[str], refusals: list[Exception]) -> None:
        self._notes = notes
        self._refusals = refusals

    def start(self) -> None:
        if self._refusals:
            self._notes.append("refused")
            raise self._refusals.pop()
        self._notes.append("started")

    def stop(self) -> None:
        self._notes.append("stopped")

    def wait(self) -> None:
        self._notes.append("done")


def receiver(
    notes: list[str], refusals: list[Exception], before: Callable[[], object] = lambda: None
) -> Receiver:
    """Return a receiver that calls ``before`` before each attempt."""

    def make() -> Server:
        before()
        return Server(notes, refusals)

    return Receiver(cast(Any, make), Troubles(), part=SERVER)


def test_refused_server_starts_when_broker_accepts() -> None:
    notes: list[str] = []
    troubles: list[BusFault | None] = []
    made = receiver(
        notes,
        [BrokerFailure("it refuses", refused=True)],
        before=lambda: troubles.append(made.trouble),
    )
    made.start()
    assert troubles[1] is not None
    assert made.trouble is None
    made.stop()
    made.wait()
    assert notes == ["refused", "started", "stopped", "done"]


def test_server_that_never_started_can_be_stopped() -> None:
    notes: list[str] = []
    made = receiver(notes, [BrokerFailure("it refuses", refused=True)] * 1000)
    thread = threading.Thread(target=made.start)
    thread.start()
    eventually(lambda: made.trouble is not None)
    made.stop()
    joined(thread)
    assert set(notes) == {"refused"}


def test_failure_of_one_server_of_a_conductor_does_not_hide_in_the_other() -> None:
    """A conductor listens on two topics, and may be refused on one of them."""
    troubles = Troubles()
    refused = amqp.AccessRefused(QUEUE[4:], (50, 10), "Queue.declare", 403)
    of_agents = server_part("x.cyborg-conductor-agents.control-1")
    of_api = server_part("x.cyborg-conductor.control-1")
    troubles.failed(of_agents, refused)
    troubles.works(of_api)
    assert troubles.of(of_api) is None
    trouble = troubles.of(of_agents)
    assert trouble is not None
    assert trouble.refused
