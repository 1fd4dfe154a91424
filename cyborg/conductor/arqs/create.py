# SPDX-License-Identifier: Apache-2.0
"""Making accelerator requests from a device profile: all of them, or none."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cyborg import exception
from cyborg.db import arqs, device_profiles, events
from cyborg.db.engine import Database, retried
from cyborg.model.arq import Arq, State, arq_uuids
from cyborg.model.caller import Caller
from cyborg.model.device_profile import units


class ArqCreator:
    """Creates ARQs."""

    def __init__(self, *, db: Database) -> None:
        self._db = db

    def create(self, caller: Caller, operation: str, profile_name: str) -> list[Arq]:
        """The ARQs that the profile asks for, in group order; raises NotFound.

        Repeating the operation answers the same ARQs: their uuids follow from its id. However
        late that is, those that have been deleted since do not come back.
        """
        with self._db.reader() as tx:
            wanted = device_profiles.wanted(tx, profile_name, operation)
        if wanted is None:
            raise exception.NotFound(noun="Device profile", key=profile_name)
        made = _arqs(caller, operation, profile_name, wanted)
        if wanted.repeated:
            since = self._made_at(made)
            return made if since is None else [replace(one, created_at=since) for one in made]
        try:
            self._store(caller, operation, wanted, made)
        except exception.Conflict:
            since = self._made_at(made)
            if since is None:
                raise
            made = [replace(one, created_at=since) for one in made]
        return made

    def _made_at(self, made: list[Arq]) -> datetime | None:
        with self._db.reader() as tx:
            return arqs.made_at(tx, [one.uuid for one in made])

    @retried
    def _store(
        self, caller: Caller, operation: str, wanted: device_profiles.Wanted, made: list[Arq]
    ) -> None:
        with self._db.writer() as tx:
            arqs.insert(tx, [_row(one, wanted, operation) for one in made])
            entries = [events.Entry("arq", one.uuid, one.state.value) for one in made]
            events.record(tx, self._db.now, entries, caller=caller, operation=operation)


def _arqs(
    caller: Caller, operation: str, profile_name: str, wanted: device_profiles.Wanted
) -> list[Arq]:
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    groups = [index for index, group in enumerate(wanted.groups) for _ in range(units(group))]
    return [
        Arq(uuid, State.INITIAL, profile_name, group, caller.project_id, now)
        for uuid, group in zip(arq_uuids(operation, len(groups)), groups, strict=True)
    ]


def _row(one: Arq, wanted: device_profiles.Wanted, operation: str) -> dict[str, Any]:
    return {
        "uuid": one.uuid,
        "state": one.state.value,
        "project_id": one.project_id,
        "device_profile_id": wanted.id,
        "device_profile_group_id": one.device_profile_group_id,
        "group_spec": wanted.groups[one.device_profile_group_id],
        "operation_id": operation,
        "created_at": one.created_at,
    }
