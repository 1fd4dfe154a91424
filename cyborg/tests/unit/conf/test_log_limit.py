# SPDX-License-Identifier: Apache-2.0
"""Log lines that repeat are dropped and counted; others are written as they are."""

import logging
import sys

import pytest

from cyborg.conf.log_limit import Limit


class Log:
    """A filter with a clock that stands still, and the lines that it lets through."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self._limit = Limit(lambda: self.now)

    def write(
        self,
        logger: str,
        text: str,
        *args: object,
        level: int = logging.WARNING,
        error: Exception | None = None,
    ) -> None:
        """One record, always of the same place."""
        details = None if error is None else (type(error), error, error.__traceback__)
        record = logging.LogRecord(logger, level, "place.py", 7, text, args, details)
        if self._limit.filter(record):
            self.lines.append(record.getMessage())
            if record.exc_info:
                self.lines.append("Traceback")


@pytest.fixture
def log() -> Log:
    return Log()


def fault() -> Exception:
    try:
        raise ValueError("refused")
    except ValueError:
        error = sys.exception()
        assert isinstance(error, ValueError)
        return error


def test_a_library_writes_two_lines_per_place_and_minute(log: Log) -> None:
    for number in range(100):
        log.write("oslo.messaging._drivers.impl_rabbit", "attempt %s", number)
    assert log.lines == ["attempt 0", "attempt 1"]
    log.now = 61.0
    log.write("oslo.messaging._drivers.impl_rabbit", "attempt %s", 100)
    assert log.lines[2:] == ["attempt 100 (98 lines like this were dropped)"]


def test_the_traceback_of_a_messaging_library_becomes_its_last_line(log: Log) -> None:
    log.write("oslo_messaging.rpc.server", "failed", error=fault())
    log.write("sqlalchemy.pool", "failed", error=fault())
    assert log.lines == ["failed ValueError: refused", "failed", "Traceback"]


def test_texts_of_this_service_that_differ_are_all_written(log: Log) -> None:
    for number in range(50):
        log.write("cyborg.conductor", "host %s is silent", number)
    for _ in range(50):
        log.write("cyborg.conductor", "the same")
    assert len(log.lines) == 50 + 5


def test_lines_that_report_no_failure_are_not_limited(log: Log) -> None:
    for _ in range(50):
        log.write("cyborg.conductor", "bound", level=logging.INFO)
        log.write("keystoneauth", "request", level=logging.INFO)
        log.write("oslo.messaging", "details", level=logging.DEBUG)
    assert len(log.lines) == 150


def test_one_record_counts_once_for_several_handlers() -> None:
    limit = Limit(lambda: 0.0)
    for _ in range(2):
        record = logging.LogRecord("amqp", logging.ERROR, "place.py", 7, "lost", (), None)
        assert [limit.filter(record) for _ in range(3)] == [True] * 3
    record = logging.LogRecord("amqp", logging.ERROR, "place.py", 7, "lost", (), None)
    assert [limit.filter(record) for _ in range(3)] == [False] * 3


def test_each_obsolete_option_is_named(log: Log) -> None:
    for number in range(10):
        log.write("oslo_config.cfg", "Deprecated: Option %s", number)
    assert len(log.lines) == 10
