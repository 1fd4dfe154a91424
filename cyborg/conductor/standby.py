# SPDX-License-Identifier: Apache-2.0
"""Give the requests to other conductors while this one cannot use its database.

A conductor that is cut off from the database would refuse its share of all requests. After some
failures it therefore lets every other conductor go first. If all are cut off, all of them still
answer, with the reason.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from cyborg import exception
from cyborg.rpc.rabbit import Precedence

LOG = logging.getLogger(__name__)

#: After so many failures without a successful heartbeat, other conductors go first.
_FAILURES: Final = 3


class Standby:
    """Counts failures of the database, and sets the precedence of this process accordingly.

    Any thread may call the methods.
    """

    def __init__(self, precedence: Precedence) -> None:
        self._precedence = precedence
        self._failures = 0
        self._lock = threading.Lock()

    def failed(self, error: exception.DatabaseUnavailable) -> None:
        """Note that a request or the heartbeat failed because of the database."""
        with self._lock:
            self._failures += 1
            if self._failures != _FAILURES:
                return
            self._precedence.is_last = True
        LOG.warning(
            "This conductor receives only requests that no other conductor can take, because %d "
            "of its transactions have failed: %s",
            *(_FAILURES, error),
        )

    def heartbeat(self, write: Callable[[], None]) -> None:
        """Write the heartbeat, and note whether that works; raise what ``write`` raises."""
        try:
            write()
        except exception.DatabaseUnavailable as error:
            self.failed(error)
            raise
        with self._lock:
            was_last, self._precedence.is_last = self._precedence.is_last, False
            self._failures = 0
        if was_last:
            LOG.info(
                "The database works again: this conductor receives its share of requests again"
            )
