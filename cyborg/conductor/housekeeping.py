# SPDX-License-Identifier: Apache-2.0
"""What one of the conductors does from time to time so that nothing is kept for ever."""

import logging

from cyborg.conductor.retirement import Retirement
from cyborg.conductor.services import Lease
from cyborg.db import history
from cyborg.db.engine import Database
from cyborg.db.history import Kept, Purge

LOG = logging.getLogger(__name__)

#: One pass deletes ten thousand rows of a kind at most, which is more than a busy cloud makes
#: between two passes.
_PASS = Purge(batch=500, batches=20)


class Housekeeper:
    """A periodic job of every conductor; only the longest-known living one does it.

    ``lease_ms`` is how long a silent conductor counts as living, ``history_retention`` how long
    history is kept, in milliseconds; 0 means for ever.
    """

    def __init__(
        self,
        *,
        db: Database,
        lease: Lease,
        retirement: Retirement,
        lease_ms: int,
        history_retention: int,
    ) -> None:
        self._db = db
        self._lease = lease
        self._retirement = retirement
        self._lease_ms = lease_ms
        self._history_retention = history_retention

    def run_once(self) -> None:
        """One pass; raises exception.Unavailable."""
        if not self._lease.comes_first(self._lease_ms):
            return
        self._retirement.announce()
        if self._history_retention:
            before = history.cutoff(self._db, self._history_retention)
            _tell(history.purge(self._db, before, _PASS))


def _tell(gone: dict[Kept, int]) -> None:
    parts = [f"{count} {kept.value}" for kept, count in gone.items() if count]
    if parts:
        LOG.info("Deleted history past its retention: %s", ", ".join(parts))
