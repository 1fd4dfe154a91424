# SPDX-License-Identifier: Apache-2.0
"""Device profiles: named requirements for accelerators, for all projects or for some."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from uuid import uuid4

import os_resource_classes
import wsme

from cyborg import exception
from cyborg.api import answers, microversion, parsing, references, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.rendering import link, moment
from cyborg.db import deployables, device_profiles
from cyborg.model.device_profile import (
    CHOOSE_IMAGE,
    IMAGE_KEYS,
    MAX_PROJECTS,
    NAME_PATTERN,
    PROJECT_ID,
    SKIP_CLEANING,
    DeviceProfile,
    ProfileChange,
    check_cleaning,
    image_warnings,
    parse_groups,
    parse_name,
    parse_projects,
    refuse_denied,
)
from cyborg.rpc.verbs import CreateDeviceProfile, DeleteDeviceProfiles, UpdateDeviceProfile

LOG = logging.getLogger(__name__)

_STANDARD_CLASSES = frozenset(os_resource_classes.STANDARDS)
#: Limits of a TEXT column of MySQL: bytes of the stored groups, and characters of any kind.
_MAX_GROUPS_BYTES = 65_535
_DESCRIPTION = types.Text(16_000, lines=True)


class ProfileQuery(types.Listing):
    """Filters of the list."""

    name = wsme.wsattr(references.PROFILE_NAMES)


class ProfileDeleteQuery(types.Declared):
    """The names or uuids of the profiles to delete."""

    value = wsme.wsattr(references.PROFILES, mandatory=True)


#: ``cyborg.model`` validates names, groups and projects.
_NAME = types.Anything(
    types.Text(255, minimum=1, lines=True).schema | {"pattern": f"^{NAME_PATTERN}$"}
)
_GROUPS = types.Anything(
    {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "patternProperties": {
                "^resources:": {"type": ["string", "integer"]},
                "^trait:": {"enum": ["required", "forbidden"]},
                "^accel:": {"type": ["string", "integer"]},
            },
            "additionalProperties": False,
        },
    }
)
_PROJECTS = types.Anything(
    {
        "type": ["array", "null"],
        "minItems": 1,
        "maxItems": MAX_PROJECTS,
        "uniqueItems": True,
        "items": {"type": "string", "pattern": f"^{PROJECT_ID}$"},
    }
)
_STORED_GROUPS = types.Items(types.Members(answers.STRING))


class ProfileBody(types.Declared):
    """A new profile."""

    name = wsme.wsattr(_NAME)
    groups = wsme.wsattr(_GROUPS)
    description = wsme.wsattr(_DESCRIPTION)
    uuid = wsme.wsattr(types.UUID_TYPE)
    projects = types.Field(_PROJECTS, since=microversion.OPERATOR_VIEWS)


_NEW = types.Object(ProfileBody, needed=("name", "groups"))


class ChangeBody(types.Declared):
    """The members of a profile that may change; validated as for a new profile."""

    name = wsme.wsattr(_NAME)
    groups = wsme.wsattr(_GROUPS)
    description = wsme.wsattr(_DESCRIPTION)
    projects = types.Field(_PROJECTS, since=microversion.OPERATOR_VIEWS)


PROFILE_VIEW = answers.Answer(
    "ProfileView",
    "A device profile: named requirements for accelerators.",
    name=answers.Shown(answers.STRING),
    description=answers.Shown(answers.TEXT_OR_NULL),
    uuid=answers.Shown(types.UUID_TYPE),
    groups=answers.Shown(_STORED_GROUPS),
    created_at=answers.Shown(answers.TIME_OR_NULL),
    updated_at=answers.Shown(answers.TIME_OR_NULL),
    links=answers.Shown(answers.LINKS),
    projects=answers.Shown(
        answers.Nullable(types.Items(answers.STRING)), since=microversion.OPERATOR_VIEWS
    ),
)


STORED_PROFILE = PROFILE_VIEW.extended(
    "StoredProfile",
    "A device profile after a change, with warnings of what would make binds fail.",
    warnings=answers.Shown(types.Items(answers.STRING), since=microversion.OPERATOR_VIEWS),
)


class DeviceProfiles(Controller):
    """``/v2/device_profiles``."""

    collection = "device_profiles"
    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "create", "DELETE": "delete_all"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "delete"},
    }

    @expose(
        "cyborg:device_profile:get_all",
        query=ProfileQuery,
        answer=answers.listing("device_profiles", PROFILE_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of profiles, all or those with the requested names."""
        with self.reader.reader() as tx:
            rows = device_profiles.page(tx, parsing.page(query), call.scope, query.get("name"))
        return {self.collection: [_render(profile, call) for profile in rows]}

    @expose(
        "cyborg:device_profile:get_one",
        references.PROFILE,
        answer=answers.Envelope(PROFILE_VIEW, "device_profile"),
    )
    def show(self, call: Call, key: str) -> dict[str, Any]:
        """Return a profile by uuid or name; only this answer has an envelope."""
        with self.reader.reader() as tx:
            profile = device_profiles.show(tx, types.canonical_uuid(key), key, call.scope)
        if profile is None:
            raise exception.NotFound(noun="Device profile", key=key)
        return {"device_profile": _render(profile, call)}

    @expose(
        "cyborg:device_profile:create",
        body=types.Items(_NEW, 1, 1),
        strict=types.Items(replace(_NEW, closed=True), 1, 1),
        status=201,
        answer=STORED_PROFILE,
    )
    def create(self, call: Call, body: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Create a profile; the body is a list of one profile."""
        members = body[0]
        groups = self._groups(call, members)
        # The rule about images restricts changes only.
        refuse_denied(groups, _denied(call, SKIP_CLEANING))
        profile = DeviceProfile(
            uuid=members.get("uuid") or str(uuid4()),
            name=parse_name(members.get("name")),
            groups=groups,
            description=members.get("description"),
            projects=parse_projects(members.get("projects")),
        )
        private = True if profile.projects is not None else None
        stored = self.conductor.write(CreateDeviceProfile(*call.origin, profile, private))
        return self._render_stored(call, stored)

    @expose(
        "cyborg:device_profile:update",
        references.PROFILE,
        body=types.Change(ChangeBody),
        since=microversion.OPERATORS,
        answer=STORED_PROFILE,
    )
    def update(self, call: Call, key: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change the given members and keep the others.

        A null removes the description, or makes the profile public. The conductor refuses a change
        after which the profile has what the policy denies to the caller.
        """
        change = ProfileChange(
            name=parse_name(body["name"]) if "name" in body else None,
            groups=self._groups(call, body) if "groups" in body else None,
            description=body.get("description"),
            sets_description="description" in body,
            projects=parse_projects(body.get("projects")),
            sets_projects="projects" in body,
        )
        sets = True if change.sets_projects else None
        denied = _denied(call, SKIP_CLEANING, CHOOSE_IMAGE) or None
        key = types.canonical_uuid(key) or key
        changed = self.conductor.write(
            UpdateDeviceProfile(*call.origin, key, change, sets, denied=denied)
        )
        return self._render_stored(call, changed)

    @expose("cyborg:device_profile:delete", query=ProfileDeleteQuery, status=204)
    def delete_all(self, call: Call, query: Mapping[str, Any]) -> None:
        """Delete the profiles with these names or uuids, all or none."""
        self._delete(call, query["value"])

    @expose("cyborg:device_profile:delete", references.PROFILES, status=204)
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
        rendered = _render(profile, call)
        if call.minor >= microversion.OPERATOR_VIEWS:
            rendered["warnings"] = warnings
        return rendered

    def _delete(self, call: Call, keys: Sequence[str]) -> None:
        if not keys:
            raise exception.NotFound(noun="Device profile", key="''")
        self.conductor.write(
            DeleteDeviceProfiles(*call.origin, [types.canonical_uuid(key) or key for key in keys])
        )

    def _groups(self, call: Call, body: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
        groups = parse_groups(body.get("groups"), _STANDARD_CLASSES, self.settings.limits)
        # Older clients may send any text, which has no effect.
        if call.minor >= microversion.OPERATOR_VIEWS:
            check_cleaning(groups)
        if len(json.dumps({"groups": groups})) > _MAX_GROUPS_BYTES:
            raise exception.Invalid(
                field="groups", reason=f"more than {_MAX_GROUPS_BYTES} bytes of JSON"
            )
        return groups


def _denied(call: Call, *rules: str) -> list[str]:
    """Return the rules that the caller does not pass."""
    return [rule for rule in rules if not call.allows(rule)]


def _render(profile: DeviceProfile, call: Call) -> dict[str, Any]:
    """Return the JSON of a profile."""
    rendered: dict[str, Any] = {
        "name": profile.name,
        "description": profile.description,
        "uuid": profile.uuid,
        "groups": list(profile.groups),
        "created_at": moment(profile.created_at),
        "updated_at": moment(profile.updated_at),
        "links": [link(call.links.self_of(DeviceProfiles.collection), profile.uuid)],
    }
    if call.minor >= microversion.OPERATOR_VIEWS:
        projects = profile.projects
        if projects is not None and not call.scope.everywhere:
            # A project does not learn which other projects may use the profile.
            projects = tuple(id_ for id_ in projects if id_ == call.scope.project_id)
        rendered["projects"] = None if projects is None else list(projects)
    return rendered
