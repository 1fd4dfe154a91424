# SPDX-License-Identifier: Apache-2.0
"""What an agent compares its host with: which prepared units guests have, and which nobody has."""

from uuid import uuid4

from cyborg.conductor.services import check_epoch
from cyborg.db import holdings, hosts
from cyborg.db.bulk import Record
from cyborg.db.engine import Database, retried
from cyborg.model import device_profile
from cyborg.model.arq import State
from cyborg.model.device import HandleState
from cyborg.model.work import HandleTask, Holding, Holdings, Use


class Custodian:
    """Tells agents what their hosts' units are used for."""

    def __init__(self, *, db: Database) -> None:
        self._db = db

    @retried
    def holdings(self, service_host: str, epoch: int) -> Holdings:
        """All units of an agent's host that binds prepare; raises NotFound, StaleEpoch."""
        with self._db.writer() as tx:
            host = hosts.lock_for_agent(tx, service_host)
            check_epoch(host, service_host, epoch)
            rows = holdings.of_host(tx, host.id)
        return Holdings(tuple(Holding(_task(row), _use(row)) for row in rows))


def _use(row: Record) -> Use:
    """Whatever is not plainly one or the other is left to the work that is about it."""
    if row.lost:
        return Use.BUSY
    if row.holder_state == State.BOUND and row.state == HandleState.HELD and row.prepared:
        return Use.WANTED
    if row.holder_state is None and row.state == HandleState.FREE:
        return Use.IDLE
    return Use.BUSY


def _task(row: Record) -> HandleTask:
    return HandleTask(
        operation=str(uuid4()),
        driver=row.driver,
        device_key=row.device_key,
        deployable=row.name,
        handle_key=row.handle_key,
        handle_uuid=row.uuid,
        spec=device_profile.wishes(row.group_spec or {}),
    )
