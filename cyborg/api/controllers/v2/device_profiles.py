# SPDX-License-Identifier: Apache-2.0
"""Device profiles: named requirements for accelerators, for all projects or for some."""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from uuid import uuid4

import os_resource_classes
import wsme

from cyborg import exception
from cyborg.api import answers, microversion, parsing, types
from cyborg.api.answers import Answer, Member, Source
from cyborg.api.explaining import EXPLANATION, Answered, explained
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.db import deployables, device_profiles, events, projects, providers
from cyborg.db.events import VisibleEvent
from cyborg.db.listing import Page
from cyborg.db.transaction import Transaction
from cyborg.model.device_profile import (
    CHOOSE_IMAGE,
    IMAGE_KEYS,
    MAX_PROJECTS,
    NAME_PATTERN,
    PROJECT_ID,
    SKIP_CLEANING,
    DeviceProfile,
    Group,
    Limits,
    ProfileChange,
    check_cleaning,
    equal_group_warnings,
    image_warnings,
    parse_groups,
    parse_name,
    parse_projects,
    refuse_denied,
    resource_classes,
    units,
)
from cyborg.model.explanation import Explanation, with_quota
from cyborg.model.satisfiability import Satisfiable, satisfiable
from cyborg.model.satisfiability import warnings as supply_warnings
from cyborg.rpc.verbs import CreateDeviceProfile, DeleteDeviceProfiles, UpdateDeviceProfile

LOG = logging.getLogger(__name__)

_STANDARD_CLASSES = frozenset(os_resource_classes.STANDARDS)
#: Limits of a TEXT column of MySQL: bytes of the stored groups, and characters of any kind.
_MAX_GROUPS_BYTES = 65_535
#: How many of the last events of a server are searched for failures.
_EVENTS = 100
#: What members of projects are told, because the whole answer tells about hosts.
_FOR_MEMBERS = {
    Satisfiable.NOW: "The cloud can give these accelerators now.",
    Satisfiable.WHEN_FREE: "The cloud can give these accelerators when others are free again.",
    Satisfiable.NEVER: "No host of the cloud can give these accelerators: ask an administrator.",
}
_DESCRIPTION = types.Text(16_000, lines=True)


class ProfileQuery(types.Listing):
    """Filters of the list."""

    name = wsme.wsattr(types.Commas(types.ANYTHING))


class ProfileDeleteQuery(types.Declared):
    """The names or uuids of the profiles to delete."""

    value = wsme.wsattr(types.Commas(types.ANYTHING), mandatory=True)


class ExplainQuery(types.Declared):
    """For what a profile is explained: a server of this flavor, on this host, or this server."""

    flavor = wsme.wsattr(types.NAME)
    host = wsme.wsattr(types.NAME)
    instance = wsme.wsattr(types.UUID_TYPE)


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
    projects = types.Field(_PROJECTS, since=microversion.EXTENDED)


_NEW = types.Object(ProfileBody, needed=("name", "groups"))


class GroupsBody(types.Declared):
    """The groups of a profile that is not stored."""

    groups = wsme.wsattr(_GROUPS, mandatory=True)


class ChangeBody(types.Declared):
    """The members of a profile that may change; validated as for a new profile."""

    name = wsme.wsattr(_NAME)
    groups = wsme.wsattr(_GROUPS)
    description = wsme.wsattr(_DESCRIPTION)
    projects = wsme.wsattr(_PROJECTS)


@dataclass(frozen=True)
class ShownProfile:
    """A profile as the answers show it.

    ``projects`` are those of which the caller may know that they may use it. ``satisfiable`` is
    None below microversion 2.100, where it is not shown.
    """

    profile: DeviceProfile
    projects: Sequence[str] | None
    satisfiable: Satisfiable | None
    warnings: Sequence[str] = ()


PROFILE_VIEW = Answer[ShownProfile](
    "ProfileView",
    "A device profile: named requirements for accelerators.",
    Source(row=lambda shown: shown.profile),
    name=Member(answers.STRING),
    description=Member(answers.TEXT_OR_NULL),
    uuid=Member(types.UUID_TYPE),
    groups=Member(_STORED_GROUPS),
    created_at=Member(answers.TIME_OR_NULL),
    updated_at=Member(answers.TIME_OR_NULL),
    links=Member(answers.Links("device_profiles"), lambda shown: shown.profile.uuid),
    projects=Member(
        answers.Nullable(answers.STRINGS), lambda shown: shown.projects, since=microversion.EXTENDED
    ),
    satisfiable=Member(
        types.Word(*Satisfiable), lambda shown: shown.satisfiable, since=microversion.EXTENDED
    ),
)


STORED_PROFILE = Answer[ShownProfile](
    "StoredProfile",
    "A device profile after a change, with warnings of what would make boots fail.",
    **PROFILE_VIEW.members(lambda shown: shown),
    warnings=Member(answers.STRINGS, since=microversion.EXTENDED),
)


class DeviceProfiles(Controller):
    """``/v2/device_profiles``."""

    collection = "device_profiles"
    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "create", "DELETE": "delete_all"},
        "explain": {"POST": "explain_groups"},
        "*": {"GET": "show", "PATCH": "update", "DELETE": "delete"},
        "*/explain": {"GET": "explain"},
    }

    @expose(
        "cyborg:device_profile:get_all",
        query=ProfileQuery,
        answer=answers.listing("device_profiles", PROFILE_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> list[ShownProfile]:
        """Return a page of profiles, all or those with the requested names."""
        with self.reader.reader() as tx:
            rows = device_profiles.page(tx, parsing.page(query), call.scope, query.get("name"))
            return _shown(tx, call, rows)

    @expose(
        "cyborg:device_profile:get_one",
        types.ANYTHING,
        answer=answers.Envelope(PROFILE_VIEW, "device_profile"),
    )
    def show(self, call: Call, key: str) -> ShownProfile:
        """Return a profile by uuid or name; only this answer has an envelope."""
        with self.reader.reader() as tx:
            return _shown(tx, call, [_found(tx, call, key)])[0]

    @expose(
        "cyborg:device_profile:get_one",
        types.ANYTHING,
        query=ExplainQuery,
        since=microversion.EXTENDED,
        answer=answers.Envelope(EXPLANATION, "explanation"),
    )
    def explain(self, call: Call, key: str, query: Mapping[str, Any]) -> Answered:
        """Return why the hosts of the cloud can give what a profile requests now, or cannot.

        Operators see each step with what is left after it, and Placement is asked, too. Members
        of a project learn whether the profile can be satisfied.
        """
        if not call.scope.shows_hosts and query.keys() & {"flavor", "host"}:
            raise exception.Forbidden(reason="Only operators may ask for a flavor or a host.")
        failures: Sequence[VisibleEvent] = ()
        with self.reader.reader() as tx:
            profile = _found(tx, call, key)
            if instance := query.get("instance"):
                page = Page(limit=_EVENTS, sort_dir="desc")
                rows = events.page(tx, page, call.scope, {"instance": instance})
                failures = [event for event in rows if event.noun == "arq" and event.reason]
        explanation, notes, further = self._explained(call, profile.groups, query)
        try:
            explanation = self._within_quota(explanation, profile, call.caller.project_id)
        except exception.Unavailable as error:
            notes.append(f"The limits of the project were not asked: {error.public}")
        return Answered(explanation, notes, further, failures)

    @expose(
        "cyborg:device_profile:update",
        body=types.Object(GroupsBody, closed=True),
        since=microversion.EXTENDED,
        answer=answers.Envelope(EXPLANATION, "explanation"),
    )
    def explain_groups(self, call: Call, body: Mapping[str, Any]) -> Answered:
        """Return why the hosts of the cloud can give what groups request, or cannot.

        The groups are those of a profile before it is stored; nothing is stored.
        """
        return Answered(*self._explained(call, self._groups(call, body), {}), failures=())

    @expose(
        "cyborg:device_profile:create",
        body=types.Items(_NEW, 1, 1),
        strict=types.Items(replace(_NEW, closed=True), 1, 1),
        status=201,
        answer=STORED_PROFILE,
    )
    def create(self, call: Call, body: Sequence[Mapping[str, Any]]) -> ShownProfile:
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
        stored = self.conductor.write(CreateDeviceProfile(*call.origin, profile))
        return self._stored(call, stored)

    @expose(
        "cyborg:device_profile:update",
        types.ANYTHING,
        body=types.PartialObject(ChangeBody),
        since=microversion.EXTENDED,
        answer=STORED_PROFILE,
    )
    def update(self, call: Call, key: str, body: Mapping[str, Any]) -> ShownProfile:
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
        denied = _denied(call, SKIP_CLEANING, CHOOSE_IMAGE) or None
        key = types.canonical_uuid(key) or key
        changed = self.conductor.write(UpdateDeviceProfile(*call.origin, key, change, denied))
        return self._stored(call, changed)

    @expose("cyborg:device_profile:delete", query=ProfileDeleteQuery, status=204)
    def delete_all(self, call: Call, query: Mapping[str, Any]) -> None:
        """Delete the profiles with these names or uuids, all or none."""
        self._delete(call, query["value"])

    @expose("cyborg:device_profile:delete", types.Commas(types.ANYTHING), status=204)
    def delete(self, call: Call, keys: Sequence[str]) -> None:
        """Delete a profile by uuid or name."""
        self._delete(call, keys)

    def _stored(self, call: Call, profile: DeviceProfile) -> ShownProfile:
        """Return the stored profile with warnings of what would make boots fail."""
        with self.reader.reader() as tx:
            hosts = providers.supplies(tx)
            classes: frozenset[str] = frozenset()
            if any(key in group for group in profile.groups for key in IMAGE_KEYS):
                classes = deployables.programmable_classes(tx)
            (shown,) = _shown(tx, call, [profile])
        warnings = supply_warnings(profile.groups, {supply for host in hosts for supply in host})
        warnings += equal_group_warnings(profile.groups)
        warnings += image_warnings(profile.groups, classes)
        for sentence in warnings:
            LOG.warning("Device profile %s (%s): %s", profile.name, profile.uuid, sentence)
        return replace(shown, warnings=warnings)

    def _explained(
        self, call: Call, groups: Sequence[Group], query: Mapping[str, Any]
    ) -> tuple[Explanation, list[str], int]:
        """Return the explanation of groups as far as the caller may see it, notes, and capacity."""
        neighbours = self.settings.neighbours if call.scope.shows_hosts else None
        explanation, notes, further = explained(
            self.reader, neighbours, groups, flavor=query.get("flavor"), host=query.get("host")
        )
        if not call.scope.shows_hosts:
            explanation = replace(explanation, summary=_FOR_MEMBERS[explanation.satisfiable])
        return explanation, notes, further

    def _within_quota(
        self, explanation: Explanation, profile: DeviceProfile, project_id: str | None
    ) -> Explanation:
        """Return the explanation with the step of the quotas of a project, if there are any."""
        source = self.settings.unified_limits
        if source is None or project_id is None:
            return explanation
        requested = Counter({projects.REQUESTS: sum(map(units, profile.groups))})
        for group in profile.groups:
            for name in resource_classes(group):
                requested[projects.of_class(name)] += int(group[f"resources:{name}"])
        limits = source.of_project(project_id, sorted(requested))
        with self.reader.reader() as tx:
            usage = projects.usage(tx, project_id)
        over = [
            f"{name}: {usage.get(name, 0)} used, {amount} requested, limit {limits.get(name, 0)}"
            for name, amount in sorted(requested.items())
            if projects.exceeds(limits.get(name, 0), usage.get(name, 0), amount)
        ]
        return with_quota(explanation, project_id, over)

    def _delete(self, call: Call, keys: Sequence[str]) -> None:
        if not keys:
            raise exception.NotFound(noun="Device profile", key="''")
        self.conductor.write(
            DeleteDeviceProfiles(*call.origin, [types.canonical_uuid(key) or key for key in keys])
        )

    def _groups(self, call: Call, body: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
        options = self.settings.options
        limits = Limits(groups=options.max_groups, units=options.max_units_per_group)
        groups = parse_groups(body.get("groups"), _STANDARD_CLASSES, limits)
        # Older clients may send any text, which has no effect.
        if call.minor >= microversion.EXTENDED:
            check_cleaning(groups)
        if len(json.dumps({"groups": groups})) > _MAX_GROUPS_BYTES:
            raise exception.Invalid(
                field="groups", reason=f"more than {_MAX_GROUPS_BYTES} bytes of JSON"
            )
        return groups


def _found(tx: Transaction, call: Call, key: str) -> DeviceProfile:
    """Return the profile with this uuid or name; raise NotFound."""
    profile = device_profiles.show(tx, types.canonical_uuid(key), key, call.scope)
    if profile is None:
        raise exception.NotFound(noun="Device profile", key=key)
    return profile


def _denied(call: Call, *rules: str) -> list[str]:
    """Return the rules that the caller does not pass."""
    return [rule for rule in rules if not call.allows(rule)]


def _shown(tx: Transaction, call: Call, profiles: Sequence[DeviceProfile]) -> list[ShownProfile]:
    """Return what the answers show of profiles.

    Whether the hardware can satisfy a profile is the same for all callers: a project that can use
    a profile learns it from a boot, too.
    """
    words: Mapping[str, Satisfiable] = {}
    if call.minor >= microversion.EXTENDED:
        hosts = providers.supplies(tx, [group for row in profiles for group in row.groups])
        words = {profile.uuid: satisfiable(profile.groups, hosts) for profile in profiles}
    return [
        ShownProfile(profile, _projects(profile, call), words.get(profile.uuid))
        for profile in profiles
    ]


def _projects(profile: DeviceProfile, call: Call) -> Sequence[str] | None:
    if profile.projects is None or call.scope.everywhere:
        return profile.projects
    # A project does not learn which other projects may use the profile.
    return [id_ for id_ in profile.projects if id_ == call.scope.project_id]
