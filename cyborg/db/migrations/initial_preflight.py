# SPDX-License-Identifier: Apache-2.0
"""Find all rows that violate the unique keys of revision c3e1d9f0a7b2, before any change.

The existing service could store a device twice (with two conductors), or assign a handle to two
requests. Only an operator can decide which row is correct.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa

from cyborg.db.migrations import initial_tables as t
from cyborg.db.migrations.initial_facts import Facts, load

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Problem:
    """Rows of one table with the same value in a unique column, and how to repair them."""

    table: str
    value: str
    ids: tuple[int, ...]
    remedy: str

    @property
    def query(self) -> str:
        """Return the SQL statement that shows these rows."""
        return f"SELECT * FROM {self.table} WHERE id IN ({self._list});"

    @property
    def _list(self) -> str:
        return ", ".join(str(row_id) for row_id in self.ids)

    def __str__(self) -> str:
        duplicates = f"{self.table}: {self.value} is in several rows, with id {self._list}"
        return f"{duplicates}; {self.remedy} To see them: {self.query}"


def problems(connection: sa.Connection) -> list[Problem]:
    """Return all problems, ordered by table; it only reads and can be called at any time."""
    facts = load(connection)
    return [
        *_devices(facts),
        *_deployables(facts),
        *_handles(facts),
        *_profiles(connection),
        *_arqs(connection),
    ]


def report(duplicates: Iterable[Problem]) -> str:
    """Return one text that lists all problems, for the operator."""
    return "\n".join(
        [
            "The upgrade cannot begin, nothing was changed. Values that must be unique are in more",
            "than one row. Repair these rows and run the upgrade again:",
            *(f"  {problem}" for problem in duplicates),
        ]
    )


def _devices(facts: Facts) -> Iterable[Problem]:
    rows = (((d.hostname, d.driver, d.key), d.id) for d in facts.devices)
    for (host, driver, key), ids in _repeated(rows):
        yield Problem(
            "devices",
            f"device {key} of {driver} on host {host}",
            ids,
            "keep the row whose handles are in use; delete the others and the rows that refer to "
            "them.",
        )


def _deployables(facts: Facts) -> Iterable[Problem]:
    remedy = "keep the row whose handles are in use; delete or rename the others."
    for name, ids in _repeated((d.name, d.id) for d in facts.deployables):
        yield Problem("deployables", f"name {name}", ids, remedy)
    # Equal names result in equal uuids, and equal names are already listed above.
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
            "keep the row that an accelerator request refers to; delete the others.",
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
                "delete the rows that no accelerator request refers to; change the value of the "
                "others.",
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
            "find the instance that really has the device; delete the other instances.",
        )


def _repeated(rows: Iterable[tuple[K, int]]) -> Iterable[tuple[K, tuple[int, ...]]]:
    ids_by_key: dict[K, list[int]] = defaultdict(list)
    for key, row_id in rows:
        ids_by_key[key].append(row_id)
    return [(key, tuple(ids)) for key, ids in ids_by_key.items() if len(ids) > 1]
