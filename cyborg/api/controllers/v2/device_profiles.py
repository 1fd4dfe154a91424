# SPDX-License-Identifier: Apache-2.0
"""Device profiles: named wishes for accelerators, the same for all projects."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import os_resource_classes
import wsme

from cyborg import exception
from cyborg.api import microversion, parsing, types
from cyborg.api.expose import Call, Rules, expose
from cyborg.api.rendering import link, moment
from cyborg.api.routing import Noun, Routes
from cyborg.db import deployables, device_profiles
from cyborg.db.engine import Reader
from cyborg.model.device_profile import (
    IMAGE_KEYS,
    DeviceProfile,
    Limits,
    ProfileChange,
    image_warnings,
    parse_groups,
    parse_name,
)
from cyborg.policies import device_profiles as policies
from cyborg.rpc.conductor import ConductorClient

LOG = logging.getLogger(__name__)

COLLECTION = "device_profiles"
_STANDARD_CLASSES = frozenset(os_resource_classes.STANDARDS)
#: What MySQL's TEXT holds: bytes of the stored groups, and characters of any kind.
_MAX_GROUPS_BYTES = 65_535
_DESCRIPTION = types.Text(16_000)


class ProfileQuery(types.Listing):
    """Filters of the list."""

    name = wsme.wsattr(types.Commas(types.Anything()))


class ProfileDeleteQuery(types.Declared):
    """Which profiles to delete."""

    value = wsme.wsattr(types.Commas(types.Anything()), mandatory=True)


class ProfileBody(types.Declared):
    """A new profile; the rules for name and groups are the model's."""

    name = wsme.wsattr(types.ANYTHING)
    groups = wsme.wsattr(types.ANYTHING)
    description = wsme.wsattr(_DESCRIPTION)
    uuid = wsme.wsattr(types.UUID_TYPE)


class ChangeBody(types.Declared):
    """What may change of a profile; the same rules as for a new one."""

    name = wsme.wsattr(types.ANYTHING)
    groups = wsme.wsattr(types.ANYTHING)
    description = wsme.wsattr(_DESCRIPTION)


class DeviceProfiles(Noun):
    """``/v2/device_profiles``."""

    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "create", "DELETE": "delete_all"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "delete"},
    }

    def __init__(
        self, rules: Rules, reader: Reader, conductor: ConductorClient, *, limits: Limits
    ) -> None:
        self.rules = rules
        self._reader = reader
        self._conductor = conductor
        self._limits = limits

    @expose(policies.GET_ALL, query=ProfileQuery)
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """A page of profiles, or of those with the names asked for."""
        with self._reader.reader() as tx:
            rows = device_profiles.page(tx, parsing.page(query), query.get("name"))
        prefix = call.links.self_of(COLLECTION)
        return {COLLECTION: [render(profile, prefix) for profile in rows]}

    @expose(policies.GET_ONE, types.Anything())
    def show(self, call: Call, key: str) -> dict[str, Any]:
        """One profile by uuid or name; the only thing that is shown wrapped."""
        with self._reader.reader() as tx:
            profile = device_profiles.show(tx, types.canonical_uuid(key), key)
        if profile is None:
            raise exception.NotFound(noun="Device profile", key=key)
        return {"device_profile": render(profile, call.links.self_of(COLLECTION))}

    @expose(
        policies.CREATE,
        body=types.Items(types.Object(ProfileBody), 1, 1),
        strict=types.Items(types.Object(ProfileBody, closed=True), 1, 1),
        status=201,
    )
    def create(self, call: Call, body: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Store a profile, sent as a list of one."""
        profile = self._parse(body[0])
        stored = self._conductor.create_device_profile(call.caller, call.operation, profile)
        return self._written(call, stored)

    @expose(
        policies.UPDATE,
        types.Anything(),
        body=types.Change(ChangeBody),
        since=microversion.OPERATORS,
    )
    def update(self, call: Call, key: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change what is sent and leave the rest; null takes the description away."""
        change = ProfileChange(
            name=parse_name(body["name"]) if "name" in body else None,
            groups=self._groups(body) if "groups" in body else None,
            description=body.get("description"),
            describes="description" in body,
        )
        changed = self._conductor.update_device_profile(
            call.caller, call.operation, types.canonical_uuid(key) or key, change
        )
        return self._written(call, changed)

    @expose(policies.DELETE, query=ProfileDeleteQuery, status=204)
    def delete_all(self, call: Call, query: Mapping[str, Any]) -> None:
        """Delete the profiles with these names or uuids, all or none."""
        self._delete(call, query["value"])

    @expose(policies.DELETE, types.Commas(types.Anything()), status=204)
    def delete(self, call: Call, keys: Sequence[str]) -> None:
        """Delete one profile by uuid or name."""
        self._delete(call, keys)

    def _written(self, call: Call, profile: DeviceProfile) -> dict[str, Any]:
        """Show a profile as it was stored, with what will keep its requests from being bound."""
        warnings: list[str] = []
        if any(key in group for group in profile.groups for key in IMAGE_KEYS):
            with self._reader.reader() as tx:
                classes = deployables.programmable_classes(tx)
            warnings = image_warnings(profile.groups, classes)
        for sentence in warnings:
            LOG.warning("Device profile %s (%s): %s", profile.name, profile.uuid, sentence)
        shown = render(profile, call.links.self_of(COLLECTION))
        if call.minor >= microversion.OPERATOR_VIEWS:
            shown["warnings"] = warnings
        return shown

    def _delete(self, call: Call, keys: Sequence[str]) -> None:
        if not keys:
            raise exception.NotFound(noun="Device profile", key="''")
        self._conductor.delete_device_profiles(
            call.caller, call.operation, [types.canonical_uuid(key) or key for key in keys]
        )

    def _parse(self, body: Mapping[str, Any]) -> DeviceProfile:
        groups = self._groups(body)
        return DeviceProfile(
            uuid=body.get("uuid") or str(uuid4()),
            name=parse_name(body.get("name")),
            groups=groups,
            description=body.get("description"),
        )

    def _groups(self, body: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
        groups = parse_groups(body.get("groups"), _STANDARD_CLASSES, self._limits)
        if len(json.dumps({"groups": groups})) > _MAX_GROUPS_BYTES:
            raise exception.Invalid(
                field="groups", reason=f"more than {_MAX_GROUPS_BYTES} bytes of JSON"
            )
        return groups


def render(profile: DeviceProfile, prefix: str) -> dict[str, Any]:
    """The JSON of a profile."""
    return {
        "name": profile.name,
        "description": profile.description,
        "uuid": profile.uuid,
        "groups": list(profile.groups),
        "created_at": moment(profile.created_at),
        "updated_at": moment(profile.updated_at),
        "links": [link(prefix, profile.uuid)],
    }
