# SPDX-License-Identifier: Apache-2.0
"""Find all rows that violate the unique keys of revision c58e1f7a3b92, before any change.

The existing service could store a device twice (with two conductors), or assign a handle to two
requests. Only an operator can decide which row is correct.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa

from cyborg import exception
from cyborg.db.migrations import initial_tables as t
from cyborg.db.migrations.initial_facts import HOLDER, holders, load

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Problem:
    """Rows of one table with the same value in a unique column, and how to repair them."""

    table: str
    value: str
    ids: tuple[int, ...]
    remedy: str

    def __str__(self) -> str:
        ids = ", ".join(map(str, self.ids))
        duplicates = f"{self.table}: {self.value} is in several rows, with id {ids}"
        query = f"SELECT * FROM {self.table} WHERE id IN ({ids});"  # noqa: S608 - printed, not run
        return f"{duplicates}; {self.remedy} To see them: {query}"


def problems(connection: sa.Connection) -> list[Problem]:
    """Return all problems, ordered by table; it only reads and can be called at any time."""
    facts = load(connection)
    result = [
        Problem(
            "devices",
            f"device {key} of {driver} on host {host}",
            ids,
            "keep the row whose handles are in use; delete the others and the rows that refer to "
            "them.",
        )
        for (host, driver, key), ids in _repeated(
            ((d.hostname, d.driver, d.key), d.id) for d in facts.devices
        )
    ]
    remedy = "keep the row whose handles are in use; delete or rename the others."
    for name, ids in _repeated((d.name, d.id) for d in facts.deployables):
        result.append(Problem("deployables", f"name {name}", ids, remedy))
    # Equal names result in equal uuids, and equal names are already listed above.
    rows = {d.rp_uuid + "/" + d.name: d for d in facts.deployables}.values()
    for provider, ids in _repeated((d.rp_uuid, d.id) for d in rows):
        result.append(Problem("deployables", f"rp_uuid {provider}", ids, remedy))
    remedy = "keep the row that an accelerator request refers to; delete the others."
    for (deployable, key), ids in _repeated(
        ((h.deployable_id, h.key), h.id) for h in facts.handles
    ):
        handle = f"handle {key} of deployable {deployable}"
        result.append(Problem("attach_handles", handle, ids, remedy))
    remedy = (
        "delete the rows that no accelerator request refers to; change the value of the others."
    )
    profiles = t.DEVICE_PROFILES.c
    for column in (profiles.uuid, profiles.name):
        values = connection.execute(sa.select(column, profiles.id).order_by(profiles.id)).all()
        for value, ids in _repeated((row[0], row[1]) for row in values):
            result.append(Problem("device_profiles", f"{column.name} {value}", ids, remedy))
    remedy = "find the instance that really has the device; delete the other instances."
    for handle_id, ids in _repeated(holders(connection)):
        value = f"{HOLDER} {handle_id}"
        result.append(Problem("extended_accelerator_requests", value, ids, remedy))
    return result


def check(connection: sa.Connection) -> None:
    """Raise SchemaError with a list of all problems, if there are any; it only reads."""
    duplicates = problems(connection)
    if duplicates:
        lines = [
            "The upgrade cannot begin, nothing was changed. Values that must be unique are in more",
            "than one row. Repair these rows and run the upgrade again:",
            *(f"  {problem}" for problem in duplicates),
        ]
        raise exception.SchemaError(reason="\n".join(lines))


def _repeated(rows: Iterable[tuple[K, int]]) -> Iterable[tuple[K, tuple[int, ...]]]:
    ids_by_key: dict[K, list[int]] = defaultdict(list)
    for key, row_id in rows:
        ids_by_key[key].append(row_id)
    return [(key, tuple(ids)) for key, ids in ids_by_key.items() if len(ids) > 1]
