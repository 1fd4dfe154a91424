# SPDX-License-Identifier: Apache-2.0
"""What is lost is given up when its time is over or an operator says so: inventory first.

The conductor leaves the providers of such devices, and of such deployables of other devices, out
of the desired tree and names them; the agent takes them out of Placement, which refuses while
something is allocated there, and says which are gone; only then the rows go.

A single unit has no provider of its own, and since it was lost it has been reserved: without it
Placement gives out as many as before. Its row goes at once, and the next desired state is without.

What an operator created is lost by the order to delete it, and goes the same way.
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.leases import check_epoch
from cyborg.db import devices as device_moves
from cyborg.db import events, hosts, lost_devices, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.model.caller import Caller

LOG = logging.getLogger(__name__)

_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True)
class Gone:
    """What was given up: a 'device', a 'deployable' or a 'handle'; and why, in a clause.

    ``made`` tells of a device that an operator had created. ``device_uuid`` is the device that it
    is, or is a part of.
    """

    noun: str
    uuid: str
    device_uuid: str
    reason: str
    made: bool = False


class LostDevices:
    """Gives up what has been lost for ``lost_retention`` milliseconds (0 means never).

    And what an operator wants to be forgotten, while it is lost.

    ``down_after`` is how long, in milliseconds, an agent may be silent and still see to its host.
    """

    def __init__(self, *, db: Database, lost_retention: int, down_after: int) -> None:
        self._db = db
        self._age = lost_retention
        self._down_after = down_after

    def expire(self) -> None:
        """Have the agents of all hosts that have such things fetch what is desired of them.

        What has nothing in Placement that must go first is removed.
        """
        with self._db.reader() as tx:
            found = lost_devices.hosts(tx, self._db.now, self._age, self._down_after)
        for host_id in found:
            self._announce(host_id)

    def forget(self, caller: Caller, operation: str, uuid: str) -> str | None:
        """Have a device forgotten that is lost, or that an operator created.

        Answers the agent that takes its providers away first. Of any other only the deployables
        and attach handles that its host does not show are forgotten. Raises NotFound, DeviceInUse,
        and Conflict when there is nothing to forget.
        """
        host_id, agent = self._forget(caller, operation, uuid)
        if host_id is not None:
            # What has nothing in Placement goes at once.
            self._announce(host_id)
        return agent

    @retried
    def _forget(self, caller: Caller, operation: str, uuid: str) -> tuple[int | None, str | None]:
        """Answers the host of what goes, and its agent; None twice for a repetition."""
        with self._db.writer() as tx:
            if events.operation_known(tx, operation):
                return None, None
            row = device_moves.of_operator(tx, uuid)
            if row is None:
                raise exception.NotFound(noun="Device", key=uuid)
            hosts.bump_desired_generation(tx, self._db.now, row.host_id)
            lost_devices.lock_handles_of_device(tx, row.id)
            # Looked at after the locks: a bind that was faster shows, and so does a report.
            held = device_moves.arqs_of(tx, row.id)
            if held:
                raise exception.DeviceInUse(uuid=uuid, arqs=", ".join(held))
            work.cancel_install(tx, row.id)
            going = device_moves.request_removal(tx, self._db.now, row.id)
            if not going and not lost_devices.request_part_removal(tx, row.id):
                raise exception.Conflict(
                    reason=f"Device {uuid} is there: its host would find it again. It can be "
                    "disabled, or forgotten when it is lost."
                )
            action = "forgotten" if going else "lost parts forgotten"
            entry = events.Entry("device", uuid, action, hostname=row.hostname)
            events.record(tx, self._db.now, [entry], caller=caller, operation=operation)
        LOG.info("Device %s on %s: %s", uuid, row.hostname, action)
        return row.host_id, row.service_host

    @retried
    def retired(self, service_host: str, epoch: int, names: Collection[str]) -> None:
        """The providers of these deployables are gone from Placement: remove what had them.

        What has come back meanwhile, or is in use, stays, and is published again. Raises NotFound,
        StaleEpoch.
        """
        with self._db.writer() as tx:
            host = hosts.lock_for_agent(tx, service_host)
            check_epoch(host, service_host, epoch)
            going, staying = self._remove(tx, host.id, frozenset(names))
            self._record(tx, going, host.name)
            # The driver of what an operator created has to hear that it shall show it no more.
            if staying or any(one.made for one in going):
                hosts.bump_desired_generation(tx, self._db.now, host.id)
        self._tell(going, host.name)

    @retried
    def _announce(self, host_id: int) -> None:
        with self._db.writer() as tx:
            hosts.bump_desired_generation(tx, self._db.now, host_id)
            name = hosts.name_of(tx, host_id)
            # A device without deployables has nothing in Placement that must go first.
            going, _ = self._remove(tx, host_id, frozenset())
            going += self._remove_units(tx, host_id)
            self._record(tx, going, name)
        self._tell(going, name)

    def _remove(
        self, tx: sa.Connection, host_id: int, names: frozenset[str]
    ) -> tuple[list[Gone], bool]:
        """Remove, under the host's lock, what all providers are gone of: devices and deployables.

        Answers them, and whether one of ``names`` belongs to nothing that is to be given up.
        """
        lost = lost_devices.lost(tx, host_id)
        bare = _bare(lost, names)
        lost_devices.lock_handles_of(tx, [one.id for one in bare if one.id is not None])
        # Looked at after the lock: a bind that was faster shows.
        devices = lost_devices.due(tx, self._db.now, host_id, self._age)
        parts = lost_devices.deployables(tx, self._db.now, host_id, self._age)
        leaving = {one.id for one in devices}
        known = {one.name for one in lost if one.whole and one.device_id in leaving}
        known |= {one.name for one in parts}
        devices = [one for one in devices if one.id in {each.device_id for each in bare}]
        parts = [one for one in parts if one.name in names]
        lost_devices.remove(tx, [one.id for one in devices])
        lost_devices.remove_deployables(tx, [one.id for one in parts])
        return [*_gone("device", devices), *_gone("deployable", parts)], not names <= known

    def _remove_units(self, tx: sa.Connection, host_id: int) -> list[Gone]:
        """Remove single units, under the host's lock.

        That lock keeps them lost, no bind claims a lost unit, and a unit that is held is not among
        them: what is read here stays true until the commit.
        """
        going = lost_devices.handles(
            tx, self._db.now, host_id, age_ms=self._age, silent_ms=self._down_after
        )
        if going:
            lost_devices.remove_handles(tx, [one.id for one in going])
        return _gone("handle", going)

    def _record(self, tx: sa.Connection, going: list[Gone], host: str) -> None:
        entries = [
            events.Entry(
                one.noun,
                one.uuid,
                "retired",
                hostname=host,
                reason=one.reason,
                device_uuid=one.device_uuid,
            )
            for one in going
        ]
        events.record(tx, self._db.now, entries)

    def _tell(self, going: list[Gone], host: str) -> None:
        for one in going:
            LOG.info("%s %s on %s: retired, %s", one.noun.capitalize(), one.uuid, host, one.reason)


def _gone(noun: str, rows: Iterable[Record]) -> list[Gone]:
    return [
        Gone(noun, one.uuid, one.device_uuid, _why(one), noun == "device" and one.made)
        for one in rows
    ]


def _why(row: Record) -> str:
    if row.leaving:
        return "an operator had it forgotten"
    if row.uninstalled:
        return "its driver was uninstalled"
    return f"it had been lost for {row.lost_for // _DAY_MS} days"


def _bare(lost: Iterable[Record], names: frozenset[str]) -> list[Record]:
    """The rows of ``lost`` that belong to something all of whose providers are gone."""
    rows = list(lost)
    shown = {one.device_id for one in rows if one.name is not None and one.name not in names}
    return [one for one in rows if (one.device_id not in shown if one.whole else one.name in names)]
