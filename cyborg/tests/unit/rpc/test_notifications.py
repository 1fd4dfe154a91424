# SPDX-License-Identifier: Apache-2.0
"""Sending notifications to a bus that hangs: limited in time, in order, and ended by close."""

import logging
from collections.abc import Iterator
from functools import partial

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.model.notification import Notification
from cyborg.rpc import notifications
from cyborg.rpc.notifications import GROUP, Notifier
from cyborg.rpc.threads import in_thread
from cyborg.tests.fixtures.waiting import Gate, eventually, result

#: oslo.messaging's driver ``log`` sends to the logger of this name and the type of the event.
LOGGER = "oslo.messaging.notification"


class Bus(logging.Handler):
    """What the driver ``log`` sends to; it takes no message while its gate is closed."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.gate = Gate()
        self.taken: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.taken.append(record.name.removeprefix(f"{LOGGER}."))
        self.gate.hold()


@pytest.fixture
def bus() -> Iterator[Bus]:
    bus, logger = Bus(), logging.getLogger(LOGGER)
    before = logger.level
    logger.addHandler(bus)
    logger.setLevel(logging.INFO)
    yield bus
    bus.gate.set()
    logger.removeHandler(bus)
    logger.setLevel(before)


@pytest.fixture
def notifier() -> Notifier:
    conf = cfg.ConfigOpts()
    conf([])
    notifications.enabled(conf)
    conf.set_override("driver", ["log"], GROUP)
    return Notifier(conf, "publisher", url="fake://")


def of(*events: str) -> list[Notification]:
    return [Notification(event, {}) for event in events]


def test_bus_that_takes_no_message_is_given_up(bus: Bus, notifier: Notifier) -> None:
    for event in ("first", "second"):
        sending = in_thread(partial(notifier.send, of(event, "more"), within=0.05))
        with pytest.raises(exception.Unavailable, match="it takes no message"):
            result(sending)
        eventually(lambda: bus.taken == ["first"], "the first message")
    bus.gate.set()
    # What was under way is sent before the next one, and what was refused never.
    result(in_thread(lambda: notifier.send(of("third"))))
    assert bus.taken == ["first", "more", "third"]


def test_close_ends_a_call_without_a_limit(bus: Bus, notifier: Notifier) -> None:
    sending = in_thread(lambda: notifier.send(of("first")))
    eventually(lambda: bus.taken == ["first"], "the first message")
    notifier.close()
    with pytest.raises(exception.Unavailable, match="this process is ending"):
        result(sending)
