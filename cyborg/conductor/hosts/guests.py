# SPDX-License-Identifier: Apache-2.0
"""Store the guests of a host, as its agent sees them."""

from cyborg import exception
from cyborg.conductor.leases import check_epoch
from cyborg.db import guests, hosts
from cyborg.db.engine import Database, retried
from cyborg.model.guests import HostGuests


class HostGuestStore:
    """Keeps what agents last reported of the processes of their hosts."""

    def __init__(self, *, db: Database) -> None:
        self._db = db

    @retried
    def store(self, service_host: str, epoch: int, reported: HostGuests) -> None:
        """Replace the guests of a host; units that the database does not have are left out.

        Raises StaleEpoch, NotFound (host), Invalid.
        """
        flaw = reported.validate()
        if flaw is not None:
            raise exception.Invalid(field="guests", reason=flaw)
        with self._db.writer() as tx:
            host = check_epoch(hosts.lock_for_agent(tx, service_host), service_host, epoch)
            guests.replace(tx, host.id, reported)
