# SPDX-License-Identifier: Apache-2.0
"""A limit on repeated log lines, so that an outage of a peer does not flood the log.

While a peer is away, libraries write the same lines at each attempt, some with a traceback of a
hundred lines. The first lines tell an operator all; the rest hides what else happens.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

#: Their lines count by text: this service, and oslo.config, which warns of each obsolete option
#: from one place in its code.
_BY_TEXT: Final = ("cyborg", "oslo_config")
#: The messaging libraries; what they write at INFO is about their attempts.
_MESSAGING: Final = ("amqp", "kombu", "oslo.messaging", "oslo_messaging")
#: Lines per minute of one place in the code of a library, and of one text of this service.
_OF_LIBRARY: Final = 2
_OF_TEXT: Final = 5
_PERIOD: Final = 60.0
#: So many places are remembered at most; what is older than a period is forgotten then.
_REMEMBERED: Final = 1000
#: The attribute of a record that keeps what was decided about it.
_DECISION: Final = "cyborg_written"


class Limit(logging.Filter):
    """Drops log records that repeat; ``clock`` is monotonic, in seconds.

    Of a library, one place of its code writes at most two lines of WARNING and above in a minute,
    and a traceback of a messaging library becomes its last line. Of this service and oslo.config,
    one text is written at most five times in a minute. Records below WARNING are not limited,
    except those of messaging libraries at INFO. The first record after a minute tells how many
    were dropped.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[Hashable, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written; see ``logging.Filter``."""
        # Several handlers ask about one record.
        decided = vars(record)
        if _DECISION not in decided:
            decided[_DECISION] = self._decide(record)
        return bool(decided[_DECISION])

    def _decide(self, record: logging.LogRecord) -> bool:
        messaging = record.name.startswith(_MESSAGING)
        if record.levelno < (logging.INFO if messaging else logging.WARNING):
            return True
        by_text = record.name.partition(".")[0] in _BY_TEXT
        key: Hashable = (record.pathname, record.lineno, record.getMessage() if by_text else "")
        allowed = _OF_TEXT if by_text else _OF_LIBRARY
        now = self._clock()
        with self._lock:
            if len(self._seen) > _REMEMBERED:
                fresh = {one: seen for one, seen in self._seen.items() if now - seen[0] < _PERIOD}
                self._seen = fresh
            began, count = self._seen.get(key, (now, 0))
            dropped = 0
            if now - began >= _PERIOD:
                dropped, began, count = max(0, count - allowed), now, 0
            self._seen[key] = began, count + 1
        if count >= allowed:
            return False
        if messaging and record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self._replace(record, f"{record.getMessage()} {type(error).__name__}: {error}")
        if dropped:
            self._replace(record, f"{record.getMessage()} ({dropped} lines like this were dropped)")
        return True

    def _replace(self, record: logging.LogRecord, text: str) -> None:
        record.msg, record.args = text, ()
        if record.name.startswith(_MESSAGING):
            record.exc_info = record.exc_text = None


def limit() -> None:
    """Limit what the handlers of the root logger write; once is enough for each handler."""
    shared = Limit()
    for handler in logging.getLogger().handlers:
        if not any(isinstance(one, Limit) for one in handler.filters):
            handler.addFilter(shared)
