# SPDX-License-Identifier: Apache-2.0
"""Setting devices up: begun by an operator's word or at discovery, carried by work till its end.

The agent is asked with the work's uuid as operation id, so asking again is how one waits. A device
that was taken out of service meanwhile stays as it is.
"""

import logging
from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from cyborg.conductor.work import Ledger
from cyborg.db import device_moves, events, hosts, work
from cyborg.db.bulk import Record
from cyborg.db.engine import Database, retried
from cyborg.model.device import DeviceStatus
from cyborg.model.device_life import MOVES, DeviceEvent
from cyborg.model.work import InstallTask, WorkKind
from cyborg.rpc.agent import AgentClient

LOG = logging.getLogger(__name__)

#: How soon an agent that is still at it is asked again, in milliseconds.
_ASK_AGAIN_MS = 1000
#: How long a host is asked for before a set-up counts as failed; some write whole flash memories.
_WITHIN_MS = 60 * 60 * 1000
_TIMED_OUT = "the host did not finish the set-up in time"


def begin(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    devices: Iterable[Record],
    operation: str | None,
) -> None:
    """Note that devices, which are ``installing`` in this transaction, are to be set up."""
    work.add(
        tx,
        now,
        [
            {
                "kind": WorkKind.INSTALL,
                "host_id": one.host_id,
                "deployable_id": one.deployable_id,
                "spec": {"device": one.uuid},
                "operation_id": operation,
                "deadline_in": _WITHIN_MS,
            }
            for one in devices
        ],
    )


class Installer:
    """The handler of ``install`` work."""

    def __init__(self, *, db: Database, ledger: Ledger, agents: AgentClient) -> None:
        self._db = db
        self._ledger = ledger
        self._agents = agents

    def install(self, rows: Sequence[Record]) -> None:
        """Bring a device from installing to enabled, or to failed with the reason."""
        (row,) = rows
        with self._db.reader() as tx:
            device = device_moves.of_operator(tx, row.spec["device"])
        if device is None or device.status != DeviceStatus.INSTALLING:
            with self._ledger.done(rows):
                return
        if row.overdue or device.service_host is None:
            self._end(row, device, DeviceEvent.FAIL, _TIMED_OUT)
            return
        task = InstallTask(row.uuid, device.driver, device.device_key, device.agent_epoch or 0)
        outcome = self._agents.install(device.service_host, task)
        if not outcome.done:
            self._ledger.later(rows, None, pause_ms=_ASK_AGAIN_MS)
        elif outcome.fault is not None:
            self._end(row, device, DeviceEvent.FAIL, outcome.fault)
        else:
            self._end(row, device, DeviceEvent.FINISH, outcome.note)

    @retried
    def _end(self, row: Record, device: Record, event: DeviceEvent, reason: str | None) -> None:
        status = MOVES[event].target.value
        with self._ledger.done([row]) as tx:
            hosts.want_anew(tx, self._db.now, device.host_id)
            if device_moves.move(tx, device.id, event, reason):
                entry = events.Entry(
                    "device", device.uuid, status, hostname=device.hostname, reason=reason
                )
                events.record(tx, self._db.now, [entry], operation=row.operation_id)
        level = logging.INFO if event is DeviceEvent.FINISH else logging.WARNING
        LOG.log(
            level,
            "Device %s on %s is %s now%s",
            device.uuid,
            device.hostname,
            status,
            f": {reason}" if reason else "",
        )
        if device.service_host is not None:
            self._agents.poke(device.service_host)
