# SPDX-License-Identifier: Apache-2.0
"""Create the accelerator requests (ARQs) of a device profile: all of them, or none."""

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

    def create(self, caller: Caller, request_key: str, profile_name: str) -> list[Arq]:
        """Create the ARQs of a profile and return them in group order; raises NotFound.

        A repeated request returns the same ARQs, because their uuids are derived from the request
        key. It never creates ARQs again that have been deleted in the meantime.
        """
        with self._db.reader() as tx:
            profile = device_profiles.requested_profile(tx, profile_name, request_key)
        if profile is None:
            raise exception.NotFound(noun="Device profile", key=profile_name)
        new = _arqs(caller, request_key, profile_name, profile)
        if profile.repeated:
            created_at = self._created_at(new)
            return new if created_at is None else _with_time(new, created_at)
        try:
            self._store(caller, request_key, profile, new)
        except exception.Conflict:
            created_at = self._created_at(new)
            if created_at is None:
                raise
            return _with_time(new, created_at)
        return new

    def _created_at(self, new: list[Arq]) -> datetime | None:
        with self._db.reader() as tx:
            return arqs.made_at(tx, [arq.uuid for arq in new])

    @retried
    def _store(
        self,
        caller: Caller,
        request_key: str,
        profile: device_profiles.RequestedProfile,
        new: list[Arq],
    ) -> None:
        with self._db.writer() as tx:
            arqs.insert(tx, [_row(arq, profile, request_key) for arq in new])
            entries = [events.Entry("arq", arq.uuid, arq.state.value) for arq in new]
            events.record(tx, self._db.now, entries, caller=caller, request_key=request_key)


def _arqs(
    caller: Caller, request_key: str, profile_name: str, profile: device_profiles.RequestedProfile
) -> list[Arq]:
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    groups = [index for index, group in enumerate(profile.groups) for _ in range(units(group))]
    return [
        Arq(uuid, State.INITIAL, profile_name, group, caller.project_id, now)
        for uuid, group in zip(arq_uuids(request_key, len(groups)), groups, strict=True)
    ]


def _with_time(new: list[Arq], created_at: datetime) -> list[Arq]:
    return [replace(arq, created_at=created_at) for arq in new]


def _row(arq: Arq, profile: device_profiles.RequestedProfile, request_key: str) -> dict[str, Any]:
    return {
        "uuid": arq.uuid,
        "state": arq.state.value,
        "project_id": arq.project_id,
        "device_profile_id": profile.id,
        "device_profile_group_id": arq.device_profile_group_id,
        "group_spec": profile.groups[arq.device_profile_group_id],
        "operation_id": request_key,
        "created_at": arq.created_at,
    }
