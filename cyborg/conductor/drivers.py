# SPDX-License-Identifier: Apache-2.0
"""Drivers at run time: what operators want of them is stored, and goes down with all else.

The agents fetch it, load what is wanted, and report; what a host cannot do is taken back there, so
that it is as it was. ``cyborg.conductor.driverwork`` sees it through.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.operations import Operations, Order, Task
from cyborg.db import drivers, events, hosts
from cyborg.db.bulk import Record
from cyborg.db.engine import Database
from cyborg.model.device import DeviceStatus
from cyborg.model.operation import Operation
from cyborg.model.report import DriverState
from cyborg.model.work import WorkKind

INSTALL = "install_driver"
UPDATE = "update_driver"
UNINSTALL = "uninstall_driver"
#: How many ARQs a refusal names.
_NAMED = 10
#: What stands at devices whose driver goes.
_GOING = "Its driver is being uninstalled."
#: What is refused while a driver is in use; only this can wait.
_UNINSTALLED = "uninstalled"
#: What an operator has a say in.
_WISH = ("wanted", "enabled", "options")


class Drivers:
    """Begins installing, changing and uninstalling."""

    def __init__(self, *, db: Database, operations: Operations) -> None:
        self._db = db
        self._operations = operations

    def install(
        self,
        order: Order,
        driver: str,
        *,
        hosts: Sequence[str] | None,
        options: Mapping[str, str] | None,
    ) -> Operation:
        """Have hosts (None: all that are up) load a driver, now and whenever they start.

        ``driver`` is a name, or the uuid of one host's row. Raises NotFound, Unavailable, Conflict.
        """

        def plan(tx: sa.Connection) -> list[Task]:
            name, own = self._name(tx, driver)
            chosen = self._operations.hosts(tx, hosts, wait=order.wait or own is not None)
            if own is not None:
                chosen = [one for one in chosen if one.id == own]
                self._operations.insist(chosen, wait=order.wait)
            if not chosen:
                raise exception.Conflict(reason=f"Driver {driver} is not one of these hosts.")
            self._stay(tx, chosen, name)
            wish: dict[str, Any] = {"wanted": True, "enabled": True}
            if options is not None:
                wish["options"] = dict(options)
            return self._want(tx, order, chosen, name=name, wish=lambda row: wish)

        return self._operations.begin(order, plan)

    def update(
        self,
        order: Order,
        driver: str,
        *,
        options: Mapping[str, str | None] | None,
        enabled: bool | None,
    ) -> Operation:
        """Change options of a driver (None: as the host has it), enable or disable it.

        With nothing to change its agents are executed anew, with the code that is installed by
        then. Raises NotFound, Unavailable, and Conflict, naming the ARQs, when one that is in use
        is to be disabled.
        """

        def plan(tx: sa.Connection) -> list[Task]:
            name, chosen = self._installed(tx, driver, wait=order.wait)
            self._stay(tx, chosen, name)
            if options is None and enabled is None:
                return self._reload(tx, order, chosen, name)
            if enabled is False:
                self._refuse_use(tx, chosen, name, "disabled")

            def wish(row: Record) -> dict[str, Any]:
                wanted: dict[str, Any] = (
                    {} if enabled is None else {"wanted": True, "enabled": enabled}
                )
                if options is not None:
                    laid = {**(row.options or {}), **options}
                    wanted["options"] = {k: v for k, v in laid.items() if v is not None}
                return wanted

            return self._want(tx, order, chosen, name=name, wish=wish)

        return self._operations.begin(order, plan)

    def uninstall(self, order: Order, driver: str, *, drain: bool) -> Operation:
        """Take a driver off its hosts; its devices leave Placement and the database.

        They are reserved from now on. Raises NotFound, Unavailable, and Conflict, naming the ARQs,
        while one is in use; with ``drain`` it goes when the last of them is free.
        """

        def plan(tx: sa.Connection) -> list[Task]:
            name, chosen = self._installed(tx, driver, wait=order.wait)
            self._stay(tx, chosen, name)
            ids = [one.id for one in chosen]
            for id_ in ids:
                hosts.want_anew(tx, self._db.now, id_)
            drivers.lock_handles(tx, ids, name)
            if not drain:
                self._refuse_use(tx, chosen, name, _UNINSTALLED)
            served = drivers.in_service(tx, ids, name)
            reserved = drivers.reserve(tx, ids, name, _GOING)
            self._record(tx, order, chosen, drivers.on_hosts(tx, name, ids))
            told = device_history(reserved, DeviceStatus.MAINTAINING.value)
            events.record(tx, self._db.now, told, caller=order.caller, operation=order.operation)
            patient = drain or order.wait
            spec = {"driver": name, "served": served}
            about = {"driver": name}
            return [
                Task(one, WorkKind.UNINSTALL, spec, patient=patient, about=about) for one in chosen
            ]

        return self._operations.begin(order, plan)

    def _name(self, tx: sa.Connection, key: str) -> tuple[str, int | None]:
        """The name that a key means, and the host that it means when it is the uuid of a row."""
        try:
            uuid = str(UUID(key))
        except ValueError:
            return key, None
        found = drivers.named(tx, uuid)
        if not found:
            raise exception.NotFound(noun="Driver", key=key)
        return found[0].name, found[0].host_id

    def _installed(self, tx: sa.Connection, key: str, *, wait: bool) -> tuple[str, list[Record]]:
        """The name and the hosts of a driver that is installed there; raises what is wrong."""
        name, own = self._name(tx, key)
        rows = drivers.named(tx, name)
        if not rows:
            raise exception.NotFound(noun="Driver", key=key)
        ids = {row.host_id for row in rows if _is_installed(row) and own in (None, row.host_id)}
        if not ids:
            raise exception.Conflict(reason=f"Driver {key} is not installed there.")
        chosen = [one for one in self._operations.known(tx) if one.id in ids]
        self._operations.insist(chosen, wait=wait)
        return name, chosen

    def _reload(
        self, tx: sa.Connection, order: Order, chosen: Sequence[Record], name: str
    ) -> list[Task]:
        rows = drivers.on_hosts(tx, name, [one.id for one in chosen])
        enabled = {row.host_id: row.enabled for row in rows}
        self._record(tx, order, chosen, rows)
        spec = {"driver": name, "wish": {}, "phase": "reload"}
        return [
            Task(
                one,
                WorkKind.DRIVER,
                {**spec, "before": {}, "epoch": one.epoch, "enabled": enabled[one.id]},
                about={"driver": name},
            )
            for one in chosen
        ]

    def _want(
        self,
        tx: sa.Connection,
        order: Order,
        chosen: Sequence[Record],
        *,
        name: str,
        wish: Any,
    ) -> list[Task]:
        """Store what is wanted on each host; what was before is remembered for the way back."""
        for one in chosen:
            hosts.want_anew(tx, self._db.now, one.id)
        ids = [one.id for one in chosen]
        before = {row.host_id: row for row in drivers.on_hosts(tx, name, ids)}
        tasks = []
        for one in chosen:
            row = before.get(one.id)
            wanted = wish(row)
            drivers.want(tx, one.id, name, wanted)
            old = None if row is None else {key: getattr(row, key) for key in _WISH}
            tasks.append(
                Task(
                    one,
                    WorkKind.DRIVER,
                    {
                        "driver": name,
                        "wish": wanted,
                        "before": old,
                        "enabled": wanted.get("enabled", row is None or row.enabled),
                    },
                    about={"driver": name},
                )
            )
        self._record(tx, order, chosen, drivers.on_hosts(tx, name, ids))
        return tasks

    def _stay(self, tx: sa.Connection, chosen: Sequence[Record], name: str) -> None:
        """Raise Conflict while the driver is on its way out."""
        if drivers.leaving(tx, [one.id for one in chosen], name):
            raise exception.Conflict(reason=f"Driver {name} is being uninstalled.")

    def _refuse_use(
        self, tx: sa.Connection, chosen: Sequence[Record], name: str, what: str
    ) -> None:
        """Raise Conflict naming the ARQs that have accelerators of the driver."""
        found = drivers.arqs(tx, [one.id for one in chosen], name)
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            advice = ", or have it drained" if what == _UNINSTALLED else ""
            raise exception.Conflict(
                reason=f"Driver {name} cannot be {what} while accelerator requests use it: "
                f"{', '.join(found[:_NAMED])}{more}. Delete their instances or detach them first"
                f"{advice}."
            )

    def _record(
        self,
        tx: sa.Connection,
        order: Order,
        chosen: Sequence[Record],
        rows: Collection[Record],
    ) -> None:
        names = {one.id: one.name for one in chosen}
        entries = [
            events.Entry(
                "driver", row.uuid, order.verb, hostname=names[row.host_id], reason=row.name
            )
            for row in rows
        ]
        events.record(tx, self._db.now, entries, caller=order.caller, operation=order.operation)


def device_history(rows: Collection[Record], action: str) -> list[events.Entry]:
    """What is to be told of devices that a driver's going or staying has changed."""
    return [events.Entry("device", one.uuid, action, hostname=one.hostname) for one in rows]


def _is_installed(row: Record) -> bool:
    """Whether a driver is in force on its host, or would be if it were enabled."""
    if row.wanted is None:
        return bool(row.state != DriverState.STOPPED.value)
    return bool(row.wanted)
