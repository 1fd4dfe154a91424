# SPDX-License-Identifier: Apache-2.0
"""What operators do to devices: take them out of service, bring them back, program them."""

import logging
from collections.abc import Callable

import sqlalchemy as sa

from cyborg import exception
from cyborg.db import events, hosts, offers, work
from cyborg.db.engine import Database, retried
from cyborg.db.models import Device, Host
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.work import WorkKind
from cyborg.rpc.agent import AgentClient

LOG = logging.getLogger(__name__)

#: How long Glance and the host are asked for before a programming counts as failed.
_PROGRAM_WITHIN_MS = 15 * 60 * 1000


class Operator:
    """Changes the administrative state; ``wake`` is called when work waits after a commit."""

    def __init__(self, *, db: Database, agents: AgentClient, wake: Callable[[], None]) -> None:
        self._db = db
        self._agents = agents
        self._wake = wake

    def set_status(self, caller: Caller, operation: str, uuid: str, status: DeviceStatus) -> None:
        """Enable a device or put it into maintenance; it holds until the next such order.

        The device is not bound from the commit on; Placement follows when its agent has heard of
        it. Raises NotFound.
        """
        agent = self._set_status(caller, operation, uuid, status)
        if agent is not None:
            self._agents.poke(agent)

    @retried
    def _set_status(
        self, caller: Caller, operation: str, uuid: str, status: DeviceStatus
    ) -> str | None:
        """Answers the agent to poke; None when this operation was done before."""
        with self._db.writer() as tx:
            row = tx.execute(
                sa.select(
                    Device.id, Device.host_id, Device.hostname, Device.status, Host.service_host
                )
                .join(Host, Host.id == Device.host_id)
                .where(Device.uuid == uuid)
            ).one_or_none()
            if row is None:
                raise exception.NotFound(noun="Device", key=uuid)
            if events.done_by(tx, operation, status.value, [uuid]):
                return None
            hosts.want_anew(tx, self._db.now, row.host_id)
            tx.execute(
                sa.update(Device)
                .where(Device.id == row.id)
                .values(status=status.value, status_reason=None)
            )
            entry = events.Entry("device", uuid, status.value, hostname=row.hostname)
            events.record(tx, self._db.now, [entry], caller=caller, operation=operation)
            agent: str | None = row.service_host
        LOG.info("Device %s on %s is %s now", uuid, row.hostname, status.value)
        return agent

    def program(self, caller: Caller, operation: str, uuid: str, image_uuid: str) -> None:
        """Note that an image is to be loaded; raises NotFound, CannotProgram."""
        self._program(caller, operation, uuid, image_uuid)
        self._wake()

    @retried
    def _program(self, caller: Caller, operation: str, uuid: str, image_uuid: str) -> None:
        with self._db.writer() as tx:
            offer = offers.by_uuid(tx, uuid)
            if offer is None:
                raise exception.NotFound(noun="Deployable", key=uuid)
            if not offer.programmable:
                raise exception.CannotProgram(uuid=uuid, driver=offer.driver)
            if events.done_by(tx, operation, "program", [uuid]):
                return
            work.add(
                tx,
                self._db.now,
                [
                    {
                        "kind": WorkKind.PROGRAM,
                        "deployable_id": offer.id,
                        "host_id": offer.host_id,
                        "spec": {"deployable": uuid, "image_uuid": image_uuid},
                        "operation_id": operation,
                        "deadline_in": _PROGRAM_WITHIN_MS,
                    }
                ],
            )
            entry = events.Entry("deployable", uuid, "program", reason=image_uuid)
            events.record(tx, self._db.now, [entry], caller=caller, operation=operation)
