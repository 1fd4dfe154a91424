# SPDX-License-Identifier: Apache-2.0
"""Store the guests of a host, as its agent sees them."""

from cyborg import exception
from cyborg.conductor.context import Conductor, handles
from cyborg.conductor.leases import check_epoch
from cyborg.db import guests, hosts
from cyborg.db.engine import retried
from cyborg.rpc.verbs import SendGuests


@handles(SendGuests)
@retried
def store(ctx: Conductor, c: SendGuests) -> None:
    """Replace the guests of a host; units that the database does not have are left out.

    Raises StaleEpoch, NotFound (host), Invalid.
    """
    flaw = c.guests.validate()
    if flaw is not None:
        raise exception.Invalid(field="guests", reason=flaw)
    with ctx.db.writer() as tx:
        host = check_epoch(hosts.lock_for_agent(tx, c.host), c.host, c.epoch)
        guests.replace(tx, host.id, c.guests)
