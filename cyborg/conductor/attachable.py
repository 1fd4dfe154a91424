# SPDX-License-Identifier: Apache-2.0
"""What keeps a server from getting accelerators, or from giving them back, just now."""

from collections.abc import Sequence

import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.nova import Server
from cyborg.db import attaching
from cyborg.db.bulk import Record

#: In these Nova takes what is listed: at once by a hard reboot, or when the server is started.
_READY = frozenset({"ACTIVE", "SHUTOFF"})


def check_ready(server: Server) -> None:
    """Raise CannotAttach unless Nova would carry out a hard reboot of the server, or need none."""
    reason = None
    if server.status not in _READY:
        reason = f"it is {server.status}; it must be {' or '.join(sorted(_READY))}"
    elif server.task is not None:
        reason = f"Nova is busy with it ({server.task}); try again when that is over"
    elif server.node is None:
        reason = "it has no host"
    if reason is not None:
        raise exception.CannotAttach(instance=server.uuid, reason=reason)


def check_one(server: Server, arq_uuid: str, rows: Sequence[Record]) -> None:
    """Raise NotFound or CannotAttach unless attach made the one request that ``rows`` may hold."""
    if not rows:
        raise exception.NotFound(noun="Accelerator request", key=arq_uuid)
    if rows[0].origin != attaching.ATTACHED:
        raise exception.CannotAttach(
            instance=server.uuid,
            reason=f"accelerator request {arq_uuid} came with its flavor or a port, and only what "
            "was attached can be detached",
        )


def check_alone(tx: sa.Connection, instance_uuid: str) -> None:
    """Raise CannotAttach while another attach or detach is at work on the instance."""
    rival = attaching.busy(tx, instance_uuid)
    if rival is not None:
        raise exception.CannotAttach(
            instance=instance_uuid, reason=f"operation {rival.operation_id} ({rival.kind}) is at it"
        )
