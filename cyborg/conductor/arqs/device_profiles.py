# SPDX-License-Identifier: Apache-2.0
"""Store, change and delete device profiles.

The API has validated the profiles. A profile that has ARQs cannot be deleted.
"""

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

    def create(self, caller: Caller, request_key: str, profile: DeviceProfile) -> DeviceProfile:
        """Store a profile and return it as stored; raises Duplicate with the field in conflict."""
        new = replace(profile, created_at=datetime.now(UTC).replace(tzinfo=None, microsecond=0))
        try:
            self._store(caller, request_key, new)
        except exception.Conflict:
            return self._stored_before(request_key, profile)
        return new

    def update(
        self, caller: Caller, request_key: str, key: str, change: ProfileChange
    ) -> DeviceProfile:
        """Change the profile with this uuid or name and return it; raises NotFound, Duplicate.

        Existing ARQs of the profile keep the groups with which they were created.
        """
        try:
            return self._update(caller, request_key, key, change)
        except exception.Conflict as error:
            if type(error) is not exception.Conflict:
                raise
        raise exception.Duplicate(noun="Device profile", field="name", value=change.name)

    def delete(self, caller: Caller, request_key: str, keys: Sequence[str]) -> None:
        """Remove profiles by uuid or name, all or none; raises NotFound, ProfileInUse."""
        self._delete(caller, request_key, list(dict.fromkeys(keys)))

    @retried
    def _store(self, caller: Caller, request_key: str, profile: DeviceProfile) -> None:
        with self._db.writer() as tx:
            device_profiles.insert(tx, profile)
            entry = events.Entry(_NOUN, profile.uuid, _CREATED)
            events.record(tx, self._db.now, [entry], caller=caller, request_key=request_key)

    @retried
    def _update(
        self, caller: Caller, request_key: str, key: str, change: ProfileChange
    ) -> DeviceProfile:
        with self._db.writer() as tx:
            # The first attempt of a repeated request may have renamed the profile: its uuid still
            # finds it.
            uuid = events.treated_by(tx, request_key, _UPDATED)
            rows = device_profiles.lock(tx, [uuid or key])
            if not rows:
                raise exception.NotFound(noun="Device profile", key=key)
            row = next((row for row in rows if row.uuid == (uuid or key)), rows[0])
            if uuid is None:
                device_profiles.change(tx, row.id, change)
                entry = events.Entry(_NOUN, row.uuid, _UPDATED)
                events.record(tx, self._db.now, [entry], caller=caller, request_key=request_key)
            changed = device_profiles.show(tx, row.uuid, row.name)
        assert changed is not None
        return changed

    def _stored_before(self, request_key: str, profile: DeviceProfile) -> DeviceProfile:
        """Return the profile that an earlier attempt of this request stored.

        Raises Duplicate when another request stored it.
        """
        with self._db.reader() as tx:
            if events.done_by(tx, request_key, _CREATED, [profile.uuid]):
                return device_profiles.show(tx, profile.uuid, profile.name) or profile
            taken = device_profiles.uuid_of(tx, profile.name)
        if taken is not None and taken != profile.uuid:
            raise exception.Duplicate(noun="Device profile", field="name", value=profile.name)
        raise exception.Duplicate(noun="Device profile", field="uuid", value=profile.uuid)

    @retried
    def _delete(self, caller: Caller, request_key: str, keys: Sequence[str]) -> None:
        with self._db.writer() as tx:
            rows = device_profiles.lock(tx, keys)
            existing = {key for row in rows for key in (row.uuid, row.name)}
            missing = [key for key in keys if key not in existing]
            if missing and not events.request_known(tx, request_key):
                raise exception.NotFound(noun="Device profile", key=", ".join(missing))
            if not rows:
                return
            users = device_profiles.users(tx, [row.id for row in rows])
            for row in rows:
                if row.id in users:
                    raise exception.ProfileInUse(name=row.name, count=users[row.id])
            device_profiles.delete(tx, [row.id for row in rows])
            entries = [events.Entry(_NOUN, row.uuid, _DELETED) for row in rows]
            events.record(tx, self._db.now, entries, caller=caller, request_key=request_key)
