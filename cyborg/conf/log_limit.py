# SPDX-License-Identifier: Apache-2.0
"""A limit on repeated log lines, so that an outage of a peer does not fill the log.

While a peer is not available, libraries write the same lines at each attempt, some with a traceback
of a hundred lines. The first lines are enough for an operator; the rest hides other events.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

#: Loggers whose lines are counted by text: this service, and oslo.config, which warns about every
#: obsolete option from one place in its code.
_BY_TEXT: Final = ("cyborg", "oslo_config")
#: The messaging libraries; their INFO lines are about attempts to connect.
_MESSAGING: Final = ("amqp", "kombu", "oslo.messaging", "oslo_messaging")
#: Maximum number of lines in a period from one place in the code of a library.
_OF_LIBRARY: Final = 2
#: Maximum number of lines in a period with one text of this service.
_OF_TEXT: Final = 5
#: Length of a period, in seconds.
_PERIOD: Final = 60.0
#: With more places than this in memory, those that are older than a period are removed.
_REMEMBERED: Final = 1000
#: The attribute of a record that holds the decision about it.
_DECISION: Final = "cyborg_written"


class Limit(logging.Filter):
    """Drop repeated log records; ``clock`` is monotonic, in seconds.

    Each place in the code of a library may write two lines of WARNING and above in a minute. A
    traceback of a messaging library is reduced to its last line. Each text of this service and of
    oslo.config may be written five times in a minute. Records below WARNING are not limited,
    except INFO records of messaging libraries. The first record after a minute tells how many
    records were dropped.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[Hashable, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written; see ``logging.Filter``."""
        # Several handlers call the filter for the same record.
        attributes = vars(record)
        if _DECISION not in attributes:
            attributes[_DECISION] = self._decide(record)
        return bool(attributes[_DECISION])

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
                self._seen = {
                    place: seen for place, seen in self._seen.items() if now - seen[0] < _PERIOD
                }
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
    """Add one shared limit to the handlers of the root logger that have none."""
    shared = Limit()
    for handler in logging.getLogger().handlers:
        if not any(isinstance(log_filter, Limit) for log_filter in handler.filters):
            handler.addFilter(shared)
