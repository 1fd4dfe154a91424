# SPDX-License-Identifier: Apache-2.0
"""Create the accelerator requests (ARQs) of a device profile: all of them, or none."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cyborg import exception
from cyborg.conductor.arqs.quotas import NO_QUOTAS, Check, Quotas
from cyborg.db import arqs, device_profiles, events, projects
from cyborg.db.engine import Database, retried
from cyborg.db.transaction import Transaction
from cyborg.model.arq import Arq, State, arq_uuids
from cyborg.model.caller import Caller
from cyborg.model.device_profile import units


@dataclass(frozen=True, kw_only=True)
class ArqCreator:
    """Creates ARQs.

    A request may create at most ``max_per_request`` ARQs, and a project may have at most
    ``max_unbound`` ARQs without an instance.
    """

    db: Database
    max_per_request: int
    max_unbound: int
    quotas: Quotas = NO_QUOTAS

    def create(self, caller: Caller, request_key: str, profile_name: str) -> list[Arq]:
        """Create the ARQs of a profile and return them in group order.

        Raises NotFound for a profile that does not exist or that the caller's project may not use,
        OverLimit, and Unavailable if Keystone has the limits and
        cannot be read.

        A repeated request returns the same ARQs, because their uuids are derived from the request
        key. It never creates ARQs again that have been deleted in the meantime.
        """
        with self.db.reader() as tx:
            profile = device_profiles.groups(tx, profile_name, request_key, caller)
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
            if len(new) > self.max_per_request:
                raise exception.OverLimit(
                    resource="accelerator requests at once",
                    requested=len(new),
                    limit=self.max_per_request,
                    usage=0,
                    remedy=f"Use a device profile that requests fewer than {profile_name} does.",
                )
            try:
                self.quotas.run(
                    lambda check: self._store(caller, request_key, profile, new, check=check),
                    required=True,
                )
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
        *,
        check: Check,
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
        project = None if caller.all_projects else caller.project_id or ""
        with self.db.writer(caller, request_key) as tx:
            if caller.project_id is not None and new:
                self._check(tx, caller.project_id, len(new))
                check.apply(tx, caller.project_id, {projects.REQUESTS: len(new)})
            # The profile may have become private, or have been deleted, since it was read. If an
            # earlier attempt stored the ARQs, their insertion fails.
            if not device_profiles.is_usable(tx, profile.id, project) and not events.is_repeated(
                tx, request_key
            ):
                raise exception.NotFound(noun="Device profile", key=profile.name)
            arqs.insert(tx, rows)
            events.record(tx, entries)

    def _check(self, tx: Transaction, project_id: str, requested: int) -> None:
        """Raise OverLimit if the project has too many unbound ARQs; serialise its creations."""
        projects.lock(tx, project_id)
        usage = projects.count_unbound(tx, project_id)
        if usage + requested > self.max_unbound:
            raise exception.OverLimit(
                resource="unbound accelerator requests of a project",
                requested=requested,
                limit=self.max_unbound,
                usage=usage,
                remedy="Delete accelerator requests that no instance uses.",
            )
