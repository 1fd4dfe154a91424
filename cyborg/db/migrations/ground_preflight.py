# SPDX-License-Identifier: Apache-2.0
"""What the unique keys of revision c3e1d9f0a7b2 would refuse, all of it, before anything changes.

The existing service could store one device twice (two conductors at once), or lend one handle to
two requests. Which row is the right one only the operator can tell.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa

from cyborg.db.migrations import ground_tables as t
from cyborg.db.migrations.ground_facts import Facts, load

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Problem:
    """Rows of one table that share a value which must be unique, and what to do about it."""

    table: str
    value: str
    ids: tuple[int, ...]
    remedy: str

    @property
    def query(self) -> str:
        """The SQL that shows these rows."""
        return f"SELECT * FROM {self.table} WHERE id IN ({self._list});"

    @property
    def _list(self) -> str:
        return ", ".join(str(one) for one in self.ids)

    def __str__(self) -> str:
        found = f"{self.table}: {self.value} stands in rows with id {self._list}"
        return f"{found}; {self.remedy} To see them: {self.query}"


def problems(connection: sa.Connection) -> list[Problem]:
    """All of them, ordered by table; reads only, and may be asked at any time."""
    facts = load(connection)
    return [
        *_devices(facts),
        *_deployables(facts),
        *_handles(facts),
        *_profiles(connection),
        *_arqs(connection),
    ]


def report(found: Iterable[Problem]) -> str:
    """One text that names them all, for the operator who has to act."""
    return "\n".join(
        [
            "The upgrade cannot begin, nothing was changed. Values that must be unique stand in",
            "more than one row; mend these and run the upgrade again:",
            *(f"  {problem}" for problem in found),
        ]
    )


def _devices(facts: Facts) -> Iterable[Problem]:
    rows = (((d.hostname, d.driver, d.key), d.id) for d in facts.devices)
    for (host, driver, key), ids in _repeated(rows):
        yield Problem(
            "devices",
            f"device {key} of {driver} on host {host}",
            ids,
            "keep the one whose handles are in use, delete the others and what refers to them.",
        )


def _deployables(facts: Facts) -> Iterable[Problem]:
    remedy = "keep the one whose handles are in use, delete or rename the others."
    for name, ids in _repeated((d.name, d.id) for d in facts.deployables):
        yield Problem("deployables", f"name {name}", ids, remedy)
    # Equal names make equal uuids: those are listed above.
    rows = {d.rp_uuid + "/" + d.name: d for d in facts.deployables}.values()
    for provider, ids in _repeated((d.rp_uuid, d.id) for d in rows):
        yield Problem("deployables", f"rp_uuid {provider}", ids, remedy)


def _handles(facts: Facts) -> Iterable[Problem]:
    for (deployable, key), ids in _repeated(
        ((h.deployable_id, h.key), h.id) for h in facts.handles
    ):
        yield Problem(
            "attach_handles",
            f"handle {key} of deployable {deployable}",
            ids,
            "keep the one that an accelerator request refers to, delete the others.",
        )


def _profiles(connection: sa.Connection) -> Iterable[Problem]:
    c = t.DEVICE_PROFILES.c
    for column in (c.uuid, c.name):
        rows = connection.execute(sa.select(column, c.id).order_by(c.id)).all()
        for value, ids in _repeated((row[0], row[1]) for row in rows):
            yield Problem(
                "device_profiles",
                f"{column.name} {value}",
                ids,
                "delete those that no accelerator request refers to, give the others a new one.",
            )


def _arqs(connection: sa.Connection) -> Iterable[Problem]:
    c = t.ARQS.c
    rows = connection.execute(
        sa.select(c.attach_handle_id, c.id).where(c.attach_handle_id.is_not(None)).order_by(c.id)
    ).all()
    for handle, ids in _repeated((row[0], row[1]) for row in rows):
        yield Problem(
            "extended_accelerator_requests",
            f"attach_handle_id {handle}",
            ids,
            "find the instance that really has the device, delete the other instances.",
        )


def _repeated(rows: Iterable[tuple[K, int]]) -> Iterable[tuple[K, tuple[int, ...]]]:
    found: dict[K, list[int]] = defaultdict(list)
    for key, row_id in rows:
        found[key].append(row_id)
    return [(key, tuple(ids)) for key, ids in found.items() if len(ids) > 1]
