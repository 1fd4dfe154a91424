# SPDX-License-Identifier: Apache-2.0
"""Store, change and delete device profiles.

The API has validated the profiles. A profile that has ARQs cannot be deleted.
"""

from dataclasses import replace
from datetime import UTC, datetime

from cyborg import exception
from cyborg.conductor.context import Conductor, handles
from cyborg.db import device_profiles, events
from cyborg.db.engine import retried
from cyborg.model.device_profile import DeviceProfile, refuse_denied
from cyborg.model.scope import EVERYWHERE
from cyborg.rpc.verbs import CreateDeviceProfile, DeleteDeviceProfiles, UpdateDeviceProfile

_NOUN = "device_profile"
_CREATED = "created"
_UPDATED = "updated"
_DELETED = "deleted"


@handles(CreateDeviceProfile)
@retried
def create(ctx: Conductor, c: CreateDeviceProfile) -> DeviceProfile:
    """Store a profile and return it as stored; raises Duplicate with the field in conflict."""
    profile = c.profile
    new = replace(profile, created_at=datetime.now(UTC).replace(tzinfo=None, microsecond=0))
    try:
        with ctx.db.writer(*c.origin) as tx:
            device_profiles.insert(tx, new)
            reason = None if new.projects is None else new.access
            entry = events.Entry(_NOUN, new.uuid, _CREATED, reason=reason)
            events.record(tx, [entry])
        return new
    except exception.Conflict:
        with ctx.db.reader() as tx:
            if events.subjects_of(tx, c.request_key, _CREATED, [profile.uuid]):
                # An earlier attempt of this request stored it.
                stored = device_profiles.show(tx, profile.uuid, profile.name, EVERYWHERE)
                return stored or profile
            taken = device_profiles.uuid_of(tx, profile.name)
    if taken is not None and taken != profile.uuid:
        raise exception.Duplicate(noun="Device profile", field="name", value=profile.name)
    raise exception.Duplicate(noun="Device profile", field="uuid", value=profile.uuid)


@handles(UpdateDeviceProfile)
@retried
def update(ctx: Conductor, c: UpdateDeviceProfile) -> DeviceProfile:
    """Change the profile with this uuid or name and return it; raises NotFound, Duplicate.

    Raises Forbidden if the profile would have what the ``denied`` rules of the policy protect.

    Existing ARQs of the profile keep the groups with which they were created, and stay when
    their project may no longer use it. Once this has returned, such projects get no more ARQs.
    """
    key, change = c.key, c.change
    try:
        with ctx.db.writer(*c.origin) as tx:
            # The first attempt of a repeated request may have renamed the profile: its uuid
            # still finds it.
            uuid = events.subject_of(tx, c.request_key, _UPDATED)
            reached = c.caller if uuid is None else replace(c.caller, all_projects=True)
            rows = device_profiles.lock(tx, [uuid or key], reached)
            if not rows:
                raise exception.NotFound(noun="Device profile", key=key)
            row = next((row for row in rows if row.uuid == (uuid or key)), rows[0])
            if uuid is None:
                device_profiles.change(tx, row.id, change)
            changed = device_profiles.show(tx, row.uuid, row.name, EVERYWHERE)
            assert changed is not None  # noqa: S101 - for mypy
            if uuid is None:
                refuse_denied(changed.groups, c.denied or ())
                reason = changed.access if change.sets_projects else None
                entry = events.Entry(_NOUN, row.uuid, _UPDATED, reason=reason)
                events.record(tx, [entry])
        return changed
    except exception.Conflict as error:
        if type(error) is not exception.Conflict:
            raise
    raise exception.Duplicate(noun="Device profile", field="name", value=change.name)


@handles(DeleteDeviceProfiles)
@retried
def delete(ctx: Conductor, c: DeleteDeviceProfiles) -> None:
    """Remove profiles by uuid or name, all or none; raises NotFound, ProfileInUse."""
    keys = list(dict.fromkeys(c.keys))
    with ctx.db.writer(*c.origin) as tx:
        rows = device_profiles.lock(tx, keys, c.caller)
        existing = {key for row in rows for key in (row.uuid, row.name)}
        missing = [key for key in keys if key not in existing]
        if missing and not events.is_repeated(tx, c.request_key):
            raise exception.NotFound(noun="Device profile", key=", ".join(missing))
        if not rows:
            return
        users = device_profiles.users(tx, [row.id for row in rows])
        for row in rows:
            if row.id in users:
                raise exception.ProfileInUse(name=row.name, count=users[row.id])
        device_profiles.remove(tx, [row.id for row in rows])
        entries = [events.Entry(_NOUN, row.uuid, _DELETED) for row in rows]
        events.record(tx, entries)
