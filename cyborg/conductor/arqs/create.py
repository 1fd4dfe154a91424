# SPDX-License-Identifier: Apache-2.0
"""Create the accelerator requests (ARQs) of a device profile: all of them, or none."""

from dataclasses import replace
from datetime import UTC, datetime

from cyborg import exception
from cyborg.conductor.arqs import quotas
from cyborg.conductor.arqs.quotas import Check
from cyborg.conductor.context import Conductor, handles
from cyborg.db import arqs, device_profiles, events, projects
from cyborg.db.engine import retried
from cyborg.db.transaction import Transaction
from cyborg.model.arq import Arq, State, arq_uuids
from cyborg.model.device_profile import units
from cyborg.rpc.verbs import CreateArqs


@handles(CreateArqs)
def create(ctx: Conductor, c: CreateArqs) -> list[Arq]:
    """Create the ARQs of a profile and return them in group order.

    Raises NotFound for a profile that does not exist or that the caller's project may not use,
    OverLimit, and Unavailable if Keystone has the limits and cannot be read.

    A repeated request returns the same ARQs, because their uuids are derived from the request
    key. It never creates ARQs again that have been deleted in the meantime.
    """
    with ctx.db.reader() as tx:
        profile = device_profiles.groups(tx, c.profile_name, c.request_key, c.caller)
    if profile is None:
        raise exception.NotFound(noun="Device profile", key=c.profile_name)
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    groups = [index for index, group in enumerate(profile.groups) for _ in range(units(group))]
    new = [
        Arq(uuid, State.INITIAL, c.profile_name, group, c.caller.project_id, now)
        for uuid, group in zip(arq_uuids(c.request_key, len(groups)), groups, strict=True)
    ]
    conflict: exception.Conflict | None = None
    if not profile.repeated:
        if len(new) > ctx.settings.conductor.max_arqs_per_request:
            raise exception.OverLimit(
                resource="accelerator requests at once",
                requested=len(new),
                limit=ctx.settings.conductor.max_arqs_per_request,
                usage=0,
                remedy=f"Use a device profile that requests fewer than {c.profile_name} does.",
            )
        try:
            quotas.run(ctx, lambda check: _store(ctx, c, profile, new, check=check), required=True)
            return new
        except exception.Conflict as error:
            conflict = error
    with ctx.db.reader() as tx:
        created_at = arqs.created_at(tx, [arq.uuid for arq in new])
    if created_at is not None:
        return [replace(arq, created_at=created_at) for arq in new]
    if conflict is not None:
        raise conflict
    return new


@retried
def _store(
    ctx: Conductor,
    c: CreateArqs,
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
            "operation_id": c.request_key,
            "created_at": arq.created_at,
        }
        for arq in new
    ]
    entries = [events.Entry("arq", arq.uuid, arq.state.value) for arq in new]
    project = None if c.caller.all_projects else c.caller.project_id or ""
    with ctx.db.writer(*c.origin) as tx:
        if c.caller.project_id is not None and new:
            _check_unbound(ctx, tx, c.caller.project_id, len(new))
            check.apply(tx, c.caller.project_id, {projects.REQUESTS: len(new)})
        # The profile may have become private, or have been deleted, since it was read. If an
        # earlier attempt stored the ARQs, their insertion fails.
        if not device_profiles.is_usable(tx, profile.id, project) and not events.is_repeated(
            tx, c.request_key
        ):
            raise exception.NotFound(noun="Device profile", key=profile.name)
        arqs.insert(tx, rows)
        events.record(tx, entries)


def _check_unbound(ctx: Conductor, tx: Transaction, project_id: str, requested: int) -> None:
    """Raise OverLimit if the project has too many unbound ARQs; serialise its creations."""
    projects.lock(tx, project_id)
    usage = projects.count_unbound(tx, project_id)
    if usage + requested > ctx.settings.conductor.max_unbound_arqs:
        raise exception.OverLimit(
            resource="unbound accelerator requests of a project",
            requested=requested,
            limit=ctx.settings.conductor.max_unbound_arqs,
            usage=usage,
            remedy="Delete accelerator requests that no instance uses.",
        )
