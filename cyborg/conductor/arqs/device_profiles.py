# SPDX-License-Identifier: Apache-2.0
"""Device profiles: stored and changed as the API checked them, removed only when unused."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from cyborg import exception
from cyborg.db import device_profiles, events
from cyborg.db.engine import Database, retried
from cyborg.model.caller import Caller
from cyborg.model.device_profile import DeviceProfile, ProfileChange

_NOUN = "device_profile"
_CREATED = "created"
_UPDATED = "updated"
_DELETED = "deleted"


class Profiles:
    """Creates, changes and deletes device profiles."""

    def __init__(self, *, db: Database) -> None:
        self._db = db

    def create(self, caller: Caller, operation: str, profile: DeviceProfile) -> DeviceProfile:
        """Store a profile and answer it as stored; raises Duplicate naming what is taken."""
        made = replace(profile, created_at=datetime.now(UTC).replace(tzinfo=None, microsecond=0))
        try:
            self._store(caller, operation, made)
        except exception.Conflict:
            return self._stored_before(operation, profile)
        return made

    def update(
        self, caller: Caller, operation: str, key: str, wish: ProfileChange
    ) -> DeviceProfile:
        """Change the profile with this uuid or name and answer it; raises NotFound, Duplicate.

        ARQs that were made from it keep what they asked for.
        """
        try:
            return self._update(caller, operation, key, wish)
        except exception.Conflict as error:
            if type(error) is not exception.Conflict:
                raise
        raise exception.Duplicate(noun="Device profile", field="name", value=wish.name)

    def delete(self, caller: Caller, operation: str, keys: Sequence[str]) -> None:
        """Remove profiles by uuid or name, all or none; raises NotFound, ProfileInUse."""
        self._delete(caller, operation, list(dict.fromkeys(keys)))

    @retried
    def _store(self, caller: Caller, operation: str, profile: DeviceProfile) -> None:
        with self._db.writer() as tx:
            device_profiles.insert(tx, profile)
            entry = events.Entry(_NOUN, profile.uuid, _CREATED)
            events.record(tx, self._db.now, [entry], caller=caller, operation=operation)

    @retried
    def _update(
        self, caller: Caller, operation: str, key: str, wish: ProfileChange
    ) -> DeviceProfile:
        with self._db.writer() as tx:
            # A repeated one may have to find the profile under the name that it gave it.
            done = events.treated_by(tx, operation, _UPDATED)
            rows = device_profiles.lock(tx, [done or key])
            if not rows:
                raise exception.NotFound(noun="Device profile", key=key)
            row = next((one for one in rows if one.uuid == (done or key)), rows[0])
            if done is None:
                device_profiles.change(tx, row.id, wish)
                entry = events.Entry(_NOUN, row.uuid, _UPDATED)
                events.record(tx, self._db.now, [entry], caller=caller, operation=operation)
            changed = device_profiles.show(tx, row.uuid, row.name)
        assert changed is not None
        return changed

    def _stored_before(self, operation: str, profile: DeviceProfile) -> DeviceProfile:
        """What this very operation's first try stored; raises Duplicate when it was another's."""
        with self._db.reader() as tx:
            if events.done_by(tx, operation, _CREATED, [profile.uuid]):
                return device_profiles.show(tx, profile.uuid, profile.name) or profile
            taken = device_profiles.uuid_of(tx, profile.name)
        if taken is not None and taken != profile.uuid:
            raise exception.Duplicate(noun="Device profile", field="name", value=profile.name)
        raise exception.Duplicate(noun="Device profile", field="uuid", value=profile.uuid)

    @retried
    def _delete(self, caller: Caller, operation: str, keys: Sequence[str]) -> None:
        with self._db.writer() as tx:
            rows = device_profiles.lock(tx, keys)
            found = {key for row in rows for key in (row.uuid, row.name)}
            missing = [key for key in keys if key not in found]
            if missing and not events.operation_known(tx, operation):
                raise exception.NotFound(noun="Device profile", key=", ".join(missing))
            if not rows:
                return
            users = device_profiles.users(tx, [row.id for row in rows])
            for row in rows:
                if row.id in users:
                    raise exception.ProfileInUse(name=row.name, count=users[row.id])
            device_profiles.delete(tx, [row.id for row in rows])
            entries = [events.Entry(_NOUN, row.uuid, _DELETED) for row in rows]
            events.record(tx, self._db.now, entries, caller=caller, operation=operation)
