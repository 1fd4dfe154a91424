# SPDX-License-Identifier: Apache-2.0
"""Create the accelerator requests (ARQs) of a device profile: all of them, or none."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cyborg import exception
from cyborg.db import arqs, device_profiles, events
from cyborg.db.engine import Database, retried
from cyborg.model.arq import Arq, State, arq_uuids
from cyborg.model.caller import Caller
from cyborg.model.device_profile import units


@dataclass(frozen=True, kw_only=True)
class ArqCreator:
    """Creates ARQs."""

    db: Database

    def create(self, caller: Caller, request_key: str, profile_name: str) -> list[Arq]:
        """Create the ARQs of a profile and return them in group order; raises NotFound.

        A repeated request returns the same ARQs, because their uuids are derived from the request
        key. It never creates ARQs again that have been deleted in the meantime.
        """
        with self.db.reader() as tx:
            profile = device_profiles.groups(tx, profile_name, request_key)
        if profile is None:
            raise exception.NotFound(noun="Device profile", key=profile_name)
        now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
        groups = [index for index, group in enumerate(profile.groups) for _ in range(units(group))]
        new = [
            Arq(uuid, State.INITIAL, profile_name, group, caller.project_id, now)
            for uuid, group in zip(arq_uuids(request_key, len(groups)), groups, strict=True)
        ]
        conflict: exception.Conflict | None = None
        if not profile.repeated:
            try:
                self._store(caller, request_key, profile, new)
                return new
            except exception.Conflict as error:
                conflict = error
        with self.db.reader() as tx:
            created_at = arqs.created_at(tx, [arq.uuid for arq in new])
        if created_at is not None:
            return [replace(arq, created_at=created_at) for arq in new]
        if conflict is not None:
            raise conflict
        return new

    @retried
    def _store(
        self,
        caller: Caller,
        request_key: str,
        profile: device_profiles.ProfileGroups,
        new: list[Arq],
    ) -> None:
        rows = [
            {
                "uuid": arq.uuid,
                "state": arq.state.value,
                "project_id": arq.project_id,
                "device_profile_id": profile.id,
                "device_profile_group_id": arq.device_profile_group_id,
                "group_spec": profile.groups[arq.device_profile_group_id],
                "operation_id": request_key,
                "created_at": arq.created_at,
            }
            for arq in new
        ]
        entries = [events.Entry("arq", arq.uuid, arq.state.value) for arq in new]
        with self.db.writer(caller, request_key) as tx:
            arqs.insert(tx, rows)
            events.record(tx, entries)
