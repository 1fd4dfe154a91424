# SPDX-License-Identifier: Apache-2.0
"""Device profiles: named requirements for accelerators, shared by all projects."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import os_resource_classes
import wsme

from cyborg import exception
from cyborg.api import microversion, parsing, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.rendering import link, moment
from cyborg.db import deployables, device_profiles
from cyborg.model.device_profile import (
    IMAGE_KEYS,
    DeviceProfile,
    ProfileChange,
    image_warnings,
    parse_groups,
    parse_name,
)
from cyborg.rpc.verbs import CreateDeviceProfile, DeleteDeviceProfiles, UpdateDeviceProfile

LOG = logging.getLogger(__name__)

_STANDARD_CLASSES = frozenset(os_resource_classes.STANDARDS)
#: Limits of a TEXT column of MySQL: bytes of the stored groups, and characters of any kind.
_MAX_GROUPS_BYTES = 65_535
_DESCRIPTION = types.Text(16_000)


class ProfileQuery(types.Listing):
    """Filters of the list."""

    name = wsme.wsattr(types.Commas(types.Anything()))


class ProfileDeleteQuery(types.Declared):
    """The names or uuids of the profiles to delete."""

    value = wsme.wsattr(types.Commas(types.Anything()), mandatory=True)


class ProfileBody(types.Declared):
    """A new profile; ``cyborg.model`` validates name and groups."""

    name = wsme.wsattr(types.ANYTHING)
    groups = wsme.wsattr(types.ANYTHING)
    description = wsme.wsattr(_DESCRIPTION)
    uuid = wsme.wsattr(types.UUID_TYPE)


class ChangeBody(types.Declared):
    """The members of a profile that may change; validated as for a new profile."""

    name = wsme.wsattr(types.ANYTHING)
    groups = wsme.wsattr(types.ANYTHING)
    description = wsme.wsattr(_DESCRIPTION)


class DeviceProfiles(Controller):
    """``/v2/device_profiles``."""

    collection = "device_profiles"
    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "create", "DELETE": "delete_all"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "delete"},
    }

    @expose("cyborg:device_profile:get_all", query=ProfileQuery)
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of profiles, all or those with the requested names."""
        with self.reader.reader() as tx:
            rows = device_profiles.page(tx, parsing.page(query), query.get("name"))
        prefix = call.links.self_of(self.collection)
        return {self.collection: [render(profile, prefix) for profile in rows]}

    @expose("cyborg:device_profile:get_one", types.Anything())
    def show(self, call: Call, key: str) -> dict[str, Any]:
        """Return a profile by uuid or name; only this answer has an envelope."""
        with self.reader.reader() as tx:
            profile = device_profiles.show(tx, types.canonical_uuid(key), key)
        if profile is None:
            raise exception.NotFound(noun="Device profile", key=key)
        return {"device_profile": render(profile, call.links.self_of(self.collection))}

    @expose(
        "cyborg:device_profile:create",
        body=types.Items(types.Object(ProfileBody), 1, 1),
        strict=types.Items(types.Object(ProfileBody, closed=True), 1, 1),
        status=201,
    )
    def create(self, call: Call, body: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Create a profile; the body is a list of one profile."""
        members = body[0]
        groups = self._groups(members)
        profile = DeviceProfile(
            uuid=members.get("uuid") or str(uuid4()),
            name=parse_name(members.get("name")),
            groups=groups,
            description=members.get("description"),
        )
        stored = self.conductor.write(CreateDeviceProfile(*call.origin, profile))
        return self._render_stored(call, stored)

    @expose(
        "cyborg:device_profile:update",
        types.Anything(),
        body=types.Change(ChangeBody),
        since=microversion.OPERATORS,
    )
    def update(self, call: Call, key: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change the given members and keep the others; null removes the description."""
        change = ProfileChange(
            name=parse_name(body["name"]) if "name" in body else None,
            groups=self._groups(body) if "groups" in body else None,
            description=body.get("description"),
            sets_description="description" in body,
        )
        changed = self.conductor.write(
            UpdateDeviceProfile(*call.origin, types.canonical_uuid(key) or key, change)
        )
        return self._render_stored(call, changed)

    @expose("cyborg:device_profile:delete", query=ProfileDeleteQuery, status=204)
    def delete_all(self, call: Call, query: Mapping[str, Any]) -> None:
        """Delete the profiles with these names or uuids, all or none."""
        self._delete(call, query["value"])

    @expose("cyborg:device_profile:delete", types.Commas(types.Anything()), status=204)
    def delete(self, call: Call, keys: Sequence[str]) -> None:
        """Delete a profile by uuid or name."""
        self._delete(call, keys)

    def _render_stored(self, call: Call, profile: DeviceProfile) -> dict[str, Any]:
        """Return the stored profile, from 2.5 on with warnings of what would make binds fail."""
        warnings: list[str] = []
        if any(key in group for group in profile.groups for key in IMAGE_KEYS):
            with self.reader.reader() as tx:
                classes = deployables.programmable_classes(tx)
            warnings = image_warnings(profile.groups, classes)
        for sentence in warnings:
            LOG.warning("Device profile %s (%s): %s", profile.name, profile.uuid, sentence)
        rendered = render(profile, call.links.self_of(self.collection))
        if call.minor >= microversion.OPERATOR_VIEWS:
            rendered["warnings"] = warnings
        return rendered

    def _delete(self, call: Call, keys: Sequence[str]) -> None:
        if not keys:
            raise exception.NotFound(noun="Device profile", key="''")
        self.conductor.write(
            DeleteDeviceProfiles(*call.origin, [types.canonical_uuid(key) or key for key in keys])
        )

    def _groups(self, body: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
        groups = parse_groups(body.get("groups"), _STANDARD_CLASSES, self.settings.limits)
        if len(json.dumps({"groups": groups})) > _MAX_GROUPS_BYTES:
            raise exception.Invalid(
                field="groups", reason=f"more than {_MAX_GROUPS_BYTES} bytes of JSON"
            )
        return groups


def render(profile: DeviceProfile, prefix: str) -> dict[str, Any]:
    """Return the JSON of a profile."""
    return {
        "name": profile.name,
        "description": profile.description,
        "uuid": profile.uuid,
        "groups": list(profile.groups),
        "created_at": moment(profile.created_at),
        "updated_at": moment(profile.updated_at),
        "links": [link(prefix, profile.uuid)],
    }
