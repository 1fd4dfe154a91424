# SPDX-License-Identifier: Apache-2.0
"""Capacity: how many further instances of each device profile fit, where, and what limits them.

The database is read in at most five statements. Nova is asked once, and only for zones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Final

import wsme

from cyborg import exception
from cyborg.api import answers, microversion, types
from cyborg.api.answers import Answer, Member, Source
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.clients.nova import Servers
from cyborg.db import device_profiles, guests, providers
from cyborg.db.device_profiles import NamedGroups
from cyborg.model.capacity import By, Fleet, Headroom, HostRoom, Limit, ProfileCapacity
from cyborg.model.satisfiability import Satisfiable

#: How many hosts a row has at most.
_HOSTS: Final = 50
#: Between the uuid of a profile and the key of a part in the identifier of a row.
_JOINT: Final = ":"


class CapacityQuery(types.Paging):
    """Profiles by name or uuid, a host, and the division; markers are identifiers of rows."""

    profile = wsme.wsattr(types.Commas(types.Text(255, minimum=1)))
    host = wsme.wsattr(types.Text(255, minimum=1))
    by = wsme.wsattr(types.Word(*By))
    marker = wsme.wsattr(types.Text(600, minimum=1))


@dataclass(frozen=True)
class Shown:
    """What a part of the cloud has for a profile; ``by`` is None for the whole cloud."""

    profile: NamedGroups
    capacity: ProfileCapacity
    by: By | None
    notes: Sequence[str]

    @property
    def id(self) -> str:
        """Return the identifier of the row."""
        if self.by is None:
            return self.profile.uuid
        return f"{self.profile.uuid}{_JOINT}{self.capacity.part.key}"

    @property
    def hosts(self) -> list[HostRoom]:
        """Return the hosts, those first that have room for the most instances."""
        rooms = sorted(self.capacity.rooms, key=lambda each: (-each.room.further, each.host))
        return rooms[:_HOSTS]


_COUNT = types.INTEGER
_HOST_ROOM = Answer[HostRoom](
    "HostRoom",
    "What a host has for a device profile.",
    Source(row=lambda row: row.room),
    host=Member(answers.STRING, lambda row: row.host),
    further=Member(_COUNT),
    limit=Member(types.Word(*Limit)),
    total=Member(_COUNT),
    used=Member(_COUNT),
    free=Member(_COUNT),
    unattached=Member(_COUNT),
    reserved=Member(types.Members(_COUNT)),
)
_LARGEST = Answer[HostRoom](
    "LargestGroup",
    "The most that one host can give at once: instances, free units, and those of one provider.",
    host=Member(answers.STRING),
    instances=Member(_COUNT, lambda row: row.room.further),
    units=Member(_COUNT, lambda row: row.room.free),
    provider_units=Member(_COUNT, lambda row: row.room.provider),
)
_HEADROOM = Answer[Headroom](
    "Headroom",
    "What is left if the host with the most units in use fails; negative: instances without place.",
    host=Member(answers.STRING),
    in_use=Member(_COUNT),
    further=Member(types.Integer(minimum=-types.MAX_INT)),
)
CAPACITY_VIEW = Answer[Shown](
    "CapacityView",
    "How many further instances of a device profile fit in the cloud, or in a part of it.",
    Source(row=lambda shown: shown.capacity),
    id=Member(answers.STRING, lambda shown: shown.id),
    profile=Member(answers.STRING, lambda shown: shown.profile.name),
    profile_uuid=Member(types.UUID_TYPE, lambda shown: shown.profile.uuid),
    satisfiable=Member(types.Word(*Satisfiable)),
    host=Member(answers.TEXT_OR_NULL, lambda shown: shown.capacity.part.host, placed=True),
    type=Member(answers.TEXT_OR_NULL, lambda shown: shown.capacity.part.type, placed=True),
    numa_node=Member(
        answers.Nullable(_COUNT), lambda shown: shown.capacity.part.numa_node, placed=True
    ),
    zone=Member(answers.TEXT_OR_NULL, lambda shown: shown.capacity.part.zone, placed=True),
    further=Member(_COUNT, placed=True),
    limits=Member(types.Members(_COUNT), placed=True),
    total=Member(_COUNT, lambda shown: shown.capacity.sum_of(lambda room: room.total), placed=True),
    used=Member(_COUNT, lambda shown: shown.capacity.sum_of(lambda room: room.used), placed=True),
    free=Member(_COUNT, lambda shown: shown.capacity.sum_of(lambda room: room.free), placed=True),
    unattached=Member(
        _COUNT, lambda shown: shown.capacity.sum_of(lambda room: room.unattached), placed=True
    ),
    reserved=Member(types.Members(_COUNT), placed=True),
    largest=Member(answers.Nullable(_LARGEST), placed=True),
    headroom=Member(
        answers.Nullable(_HEADROOM), lambda shown: shown.capacity.headroom, placed=True
    ),
    hosts=Member(types.Items(_HOST_ROOM), lambda shown: shown.hosts, placed=True),
    notes=Member(answers.STRINGS, lambda shown: shown.notes, placed=True),
)


class Capacity(Controller):
    """``/v2/capacity``."""

    collection = "capacity"
    routes: ClassVar[Routes] = {"": {"GET": "index"}}

    @expose(
        "cyborg:capacity:get",
        query=CapacityQuery,
        since=microversion.EXTENDED,
        answer=answers.listing("capacity", CAPACITY_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> list[Shown]:
        """Return a page of capacities, in the order of the names of profiles and of parts.

        Placement is not asked: units that it has allocated for servers without accelerator
        requests count as free. Members of a project learn whether their profiles can be satisfied.
        """
        call.check_places(query, "host", "by")
        by = By(query["by"]) if "by" in query else None
        zones, notes = self._zones() if by is By.AZ else ({}, [])
        with self.reader.reader() as tx:
            profiles = _chosen(device_profiles.every(tx, call.scope), query.get("profile"))
            profiles, after = _following(profiles, query.get("marker"), by)
            if by is None:
                # Each of them has one row.
                profiles = profiles[: query["limit"]]
            groups = [group for profile in profiles for group in profile.groups]
            stocks = providers.stocks_for(tx, groups, host=query.get("host"))
            unattached = guests.unattached_units(tx)
        fleet = Fleet(stocks, by=by, unattached=unattached, zones=zones)
        rows = (
            Shown(profile, capacity, by, notes)
            for index, profile in enumerate(profiles)
            for capacity in fleet.capacities(profile.groups, after if index == 0 else None)
        )
        return list(islice(rows, query["limit"]))

    def _zones(self) -> tuple[Mapping[str, str], list[str]]:
        """Return the zone of each host that Nova names, and a note if it could not be asked."""
        try:
            return Servers(self.settings.neighbours.nova()).zones(), []
        except (exception.Unavailable, exception.ConfigError) as error:
            return {}, [f"The availability zones are not known, because Nova does not say: {error}"]


def _chosen(profiles: Sequence[NamedGroups], keys: Sequence[str] | None) -> Sequence[NamedGroups]:
    """Return the profiles with these names or uuids; raises Invalid if one does not exist."""
    if keys is None:
        return profiles
    by_key = {key: profile for profile in profiles for key in (profile.uuid, profile.name)}
    chosen = set()
    for key in keys:
        profile = by_key.get(key) or by_key.get(types.canonical_uuid(key) or "")
        if profile is None:
            raise exception.Invalid(field="profile", reason=f"there is no device profile {key!r}")
        chosen.add(profile.uuid)
    return [profile for profile in profiles if profile.uuid in chosen]


def _following(
    profiles: Sequence[NamedGroups], marker: str | None, by: By | None
) -> tuple[Sequence[NamedGroups], str | None]:
    """Return the profiles from the one of a marker on, and the last part that was shown of it.

    Raises Invalid for a marker of no profile.
    """
    if marker is None:
        return profiles, None
    uuid, joint, key = marker.partition(_JOINT)
    for index, profile in enumerate(profiles):
        if profile.uuid == uuid and bool(joint) is (by is not None):
            return (profiles[index + 1 :], None) if by is None else (profiles[index:], key)
    raise exception.Invalid(field="marker", reason=f"there is no {marker}")
