# SPDX-License-Identifier: Apache-2.0
"""Publish notifications: send the events of the outbox, and watch the services.

The oldest conductor that is alive does this. It removes events from the outbox after it has sent
them. So each notification is sent at least once, and twice if a conductor ends in between.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from cyborg import exception
from cyborg.conductor.leases import ConductorLease
from cyborg.db import notifications
from cyborg.db.engine import Database, retried
from cyborg.db.notifications import UnreportedService
from cyborg.model import notification
from cyborg.model.notification import Notification
from cyborg.rpc.notifications import Notifier
from cyborg.service import PeriodicTask

LOG = logging.getLogger(__name__)

#: Seconds between two looks into the outbox: while notifications are enabled, and while they are
#: disabled.
_INTERVAL: Final = 1.0
_DISABLED_INTERVAL: Final = 60.0
#: Maximum number of events that are sent before they are removed from the outbox.
_LIMIT: Final = 200


class NotificationPublisher:
    """A periodic job of every conductor; only the oldest living conductor does something in it.

    ``down_after`` maps a binary to the milliseconds of silence after which a process of it is down;
    ``lease_ms`` is the same for the conductors that compete for this job.
    """

    def __init__(
        self,
        *,
        db: Database,
        lease: ConductorLease,
        notifier: Notifier,
        down_after: Mapping[str, int],
        lease_ms: int,
    ) -> None:
        self._db = db
        self._lease = lease
        self._notifier = notifier
        self._down_after = down_after
        self._lease_ms = lease_ms
        # Silent services → (time of the last heartbeat, time when the silence was first seen), ms.
        self._suspects: dict[tuple[str, str], tuple[int, int]] = {}

    def periodic(self) -> PeriodicTask:
        """Return the job; a stop ends its wait for the message bus."""
        interval = _DISABLED_INTERVAL
        if self._notifier.enabled:
            interval = min(_INTERVAL, min(self._down_after.values()) / 4000)
        return PeriodicTask(
            "notifications", self.run_once, interval=interval, interrupt=self._notifier.close
        )

    def run_once(self) -> None:
        """Send everything that waits, in order; raises CyborgError.

        While notifications are disabled, nothing is sent and all else is the same: no event stays
        in the outbox, and services that are down then are not reported later.
        """
        try:
            while self._lease.is_oldest(self._lease_ms):
                if self._publish() < _LIMIT:
                    return
        except exception.CyborgError:
            # No service is known to be silent: the database may have been away for all.
            self._suspects = {}
            raise
        self._suspects = {}

    def _publish(self) -> int:
        """Send one batch; return the number of its events."""
        with self._db.reader() as tx:
            ids = notifications.pending(tx, _LIMIT)
            entries = notifications.events(tx, ids)
            arqs = {entry.uuid for entry in entries if entry.noun == "arq"}
            devices = {entry.uuid for entry in entries if entry.noun == "device"}
            owners = notifications.arq_projects(tx, arqs)
            drivers = notifications.drivers(
                tx, {entry.uuid for entry in entries if entry.noun == "driver"}
            )
            devices |= {uuid for _, uuids in drivers.values() for uuid in uuids}
            facts = notifications.devices(tx, devices)
            projects = notifications.instance_projects(
                tx, {entry.uuid for entry in entries if entry.noun == "instance"}
            )
            services = notifications.unreported_services(tx, self._down_after)
        messages: list[Notification | None] = []
        for entry in entries:
            uuid = entry.uuid
            if entry.noun == "arq":
                messages.append(notification.arq_state(entry, owners.get(uuid)))
                messages.append(notification.arq_health(entry, owners.get(uuid)))
            elif entry.noun == "instance":
                project = projects.get(uuid)
                messages.append(notification.instance_unattached(entry, project))
            elif entry.noun == "driver":
                name, uuids = drivers.get(uuid, (None, ()))
                own = {device: facts[device] for device in uuids if device in facts}
                messages.append(notification.driver_health(entry, name, own))
            else:
                messages.append(notification.device_state(entry, facts.get(uuid)))
                messages.append(notification.device_health(entry, facts.get(uuid)))
                messages.append(notification.device_cleaning(entry, facts.get(uuid)))
        changed = self._changed(services)
        messages += [
            notification.service(
                row.binary, row.host, up=row.reported, at_ms=row.now_ms, seen_ms=row.seen_ms
            )
            for row in changed
        ]
        # No transaction is open while this waits for the message bus.
        self._notifier.send([message for message in messages if message is not None])
        if ids or changed:
            self._store(ids, changed)
        if ids and not self._notifier.enabled:
            LOG.info("Notifications are disabled: removed %d events that were not sent", len(ids))
        return len(ids)

    def _changed(self, services: Sequence[UnreportedService]) -> list[UnreportedService]:
        """Return those of the unreported services that can be reported now.

        After an outage of the database all services seem to be down until their next heartbeat. So
        a service must stay silent for another half of ``down_after`` since it was first seen
        silent.
        """
        before, self._suspects = self._suspects, {}
        changed = []
        for row in services:
            service = (row.binary, row.host)
            if not row.reported:
                seen_ms, since_ms = before.get(service, (row.seen_ms, row.now_ms))
                if seen_ms != row.seen_ms:
                    since_ms = row.now_ms
                self._suspects[service] = row.seen_ms, since_ms
            if row.reported or row.now_ms - since_ms >= self._down_after[row.binary] / 2:
                changed.append(row)
        return changed

    @retried
    def _store(self, ids: Sequence[int], changed: Sequence[UnreportedService]) -> None:
        with self._db.writer() as tx:
            for row in changed:
                notifications.set_reported(tx, row)
            notifications.remove(tx, ids)
