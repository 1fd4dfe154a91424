# SPDX-License-Identifier: Apache-2.0
"""Device profiles: named requests for accelerators, and the rules for valid requests.

A profile has groups. One resource provider serves each group. A group holds ``resources:<CLASS>``
amounts, ``trait:<TRAIT>`` conditions and ``accel:<key>`` requirements that only this service
interprets. All values are strings, as clients expect. All projects may use a profile, or, if it is
private, those that it names.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final
from uuid import UUID

from cyborg import exception
from cyborg.model.cleaning import CLEAN, CleanLevel, profile_level
from cyborg.model.provider import is_resource_class_name, is_trait_name
from cyborg.model.text import refuse_control_characters

#: A regular expression for the whole name of a profile.
NAME_PATTERN = "[a-zA-Z0-9_-]+"
_PREFIXES = ("resources:", "trait:", "accel:")
_TRAIT_WORDS = ("required", "forbidden")
#: Widths of the database columns that hold these values.
_MAX_NAME = 255
_MAX_TEXT = 16_000
#: Projects that may use a private profile.
MAX_PROJECTS = 100
#: An id of Keystone, in the form of a regular expression.
PROJECT_ID = "[0-9a-zA-Z-]{1,64}"
_PROJECT = re.compile(PROJECT_ID)

#: The keys that name an image to load before a guest gets the device; see ``parse_image``.
BITSTREAM_ID = "bitstream_id"
FUNCTION_ID = "function_id"
#: The keys of a group that hold them.
IMAGE_KEYS = (f"accel:{BITSTREAM_ID}", f"accel:{FUNCTION_ID}")
#: The key of a group that says how its units are cleaned.
CLEAN_KEY: Final = f"accel:{CLEAN}"
#: The rules of the policy about the groups of a profile; see ``refuse_denied``.
SKIP_CLEANING: Final = "cyborg:device_profile:skip_cleaning"
CHOOSE_IMAGE: Final = "cyborg:device_profile:choose_image"

#: How many equal groups Placement combines without its optimisation, as its own help says.
EQUAL_GROUPS: Final = 4
#: How many candidates of one query are enough: Nova reads no more by default.
CANDIDATES: Final = 1000
#: That optimisation: two options of Placement's configuration, as operators read them.
WIDE_TREES: Final = (
    "[workarounds] optimize_for_wide_provider_trees = true and [placement] "
    f"max_allocation_candidates = {CANDIDATES}"
)

Group = Mapping[str, str]


@dataclass(frozen=True)
class Limits:
    """The largest request that one profile may make."""

    groups: int = 100
    units: int = 64


@dataclass(frozen=True)
class DeviceProfile:
    """A profile as stored and shown; group order is part of its meaning.

    ``projects`` are the ids of the projects that may use it; None: all projects.
    """

    KIND: ClassVar[str] = "DeviceProfile"

    uuid: str
    name: str
    groups: tuple[dict[str, str], ...]
    description: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    projects: tuple[str, ...] | None = None

    @property
    def access(self) -> str:
        """Return who may use the profile, as the history says it."""
        if self.projects is None:
            return "public"
        return f"private, projects: {len(self.projects)}"


@dataclass(frozen=True)
class ProfileChange:
    """The fields that an update sets; None keeps the name or the groups.

    ``sets_description`` True sets the description too; a description of None removes it.
    ``sets_projects`` True sets the projects too; None makes the profile public.
    """

    KIND: ClassVar[str] = "ProfileChange"

    name: str | None = None
    groups: tuple[dict[str, str], ...] | None = None
    description: str | None = None
    sets_description: bool = False
    projects: tuple[str, ...] | None = None
    sets_projects: bool = False


def units(group: Group) -> int:
    """Return how many accelerators a group requests, over all its resource classes."""
    return sum(int(value) for key, value in group.items() if key.startswith("resources:"))


def resource_classes(group: Group) -> frozenset[str]:
    """Return the resource classes that a group requests."""
    return frozenset(key.partition(":")[2] for key in group if key.startswith("resources:"))


def accel_requirements(group: Group) -> dict[str, str]:
    """Return the ``accel:`` requirements of a group, without their prefix."""
    return {
        key.partition(":")[2]: value for key, value in group.items() if key.startswith("accel:")
    }


@dataclass(frozen=True)
class RequestedImage:
    """The image that a group requests: a Glance image, or the image with a function."""

    bitstream_id: str | None = None
    function_id: str | None = None

    def __str__(self) -> str:
        if self.bitstream_id is not None:
            return f"accel:{BITSTREAM_ID} {self.bitstream_id}"
        return f"accel:{FUNCTION_ID} {self.function_id}"


def parse_image(spec: Mapping[str, str]) -> RequestedImage | None:
    """Return the image that the ``accel:`` requirements of a group name; None without one.

    Raises exception.Invalid for an ``accel:bitstream_id`` that is not a UUID, and for one beside an
    ``accel:function_id``.
    """
    bitstream, function = spec.get(BITSTREAM_ID), spec.get(FUNCTION_ID)
    if not bitstream and not function:
        return None
    if bitstream and function:
        raise exception.Invalid(
            field=f"accel:{BITSTREAM_ID}",
            reason=f"a group has accel:{BITSTREAM_ID} or accel:{FUNCTION_ID}, not both",
        )
    if not bitstream:
        return RequestedImage(function_id=function)
    try:
        return RequestedImage(bitstream_id=str(UUID(bitstream)))
    except ValueError:
        raise exception.Invalid(
            field=f"accel:{BITSTREAM_ID}", reason=f"{bitstream!r} is not the UUID of a Glance image"
        ) from None


def check_cleaning(groups: Sequence[Group]) -> None:
    """Raise exception.Invalid for an ``accel:clean`` that is not a level."""
    for index, group in enumerate(groups):
        word = group.get(CLEAN_KEY)
        if word is not None and word not in list(CleanLevel):
            raise exception.Invalid(
                field=f"groups[{index}].{CLEAN_KEY}",
                reason=f"{word!r:.80} is none of {', '.join(CleanLevel)}",
            )


def refuse_denied(groups: Sequence[Group], denied: Collection[str]) -> None:
    """Raise exception.Forbidden for what the ``denied`` rules of the policy would have to allow.

    ``SKIP_CLEANING``: a level of cleaning below the one of a host without a word in its
    configuration. ``CHOOSE_IMAGE``: an image.
    """
    for index, group in enumerate(groups):
        word = profile_level(accel_requirements(group))
        restricted = {
            SKIP_CLEANING: [CLEAN_KEY] if word not in (None, CleanLevel.FULL) else [],
            CHOOSE_IMAGE: [key for key in IMAGE_KEYS if group.get(key)],
        }
        for rule in denied:
            for key in restricted.get(rule, ()):
                raise exception.Forbidden(
                    reason=f"groups[{index}].{key}: the policy rule {rule} does not allow you to "
                    f"create or change a profile with {group[key]!r:.80}."
                )


def image_warnings(groups: Sequence[Group], programmable: frozenset[str]) -> list[str]:
    """Return a sentence for each group whose image no bind can get now.

    ``programmable`` are the resource classes of the devices into which images can be loaded.
    """
    warnings = []
    for index, group in enumerate(groups):
        classes = resource_classes(group)
        try:
            image = parse_image(accel_requirements(group))
        except exception.Invalid as error:
            warnings.append(f"groups[{index}]: {error}; its accelerator requests cannot be bound.")
            continue
        if image is not None and not classes & programmable:
            warnings.append(
                f"groups[{index}] asks for {image}, but no device of {', '.join(sorted(classes))} "
                "has a driver that can load an image; its accelerator requests cannot be bound."
            )
    return warnings


def equal_group_warnings(groups: Sequence[Group]) -> list[str]:
    """Return a sentence for each set of equal groups that Placement may not be able to combine.

    Groups are equal if they ask for the same resource classes and traits. Placement tries every
    provider for every group (bug 2126751): with eight free devices in one host, its work grows by a
    factor of eight per group.
    """
    equal: dict[frozenset[str], list[int]] = {}
    for index, group in enumerate(groups):
        if units(group):
            traits = (f"{key}={group[key]}" for key in group if key.startswith("trait:"))
            equal.setdefault(resource_classes(group).union(traits), []).append(index)
    return [
        f"groups {', '.join(map(str, indexes))} ask for the same: {', '.join(sorted(conditions))}. "
        f"A query of more than {EQUAL_GROUPS} equal groups can take Placement minutes, unless its "
        f"configuration has {WIDE_TREES}. Write one group with the sum of the amounts where one "
        "device, or functions that a host gives out together, have that many units."
        for conditions, indexes in equal.items()
        if len(indexes) > EQUAL_GROUPS
    ]


def parse_name(name: object) -> str:
    """Return a checked name; raise exception.Invalid, which names the field ``name``."""
    if not isinstance(name, str) or not name:
        raise exception.Invalid(field="name", reason="a non-empty string is needed")
    if len(name) > _MAX_NAME:
        raise exception.Invalid(field="name", reason=f"longer than {_MAX_NAME} characters")
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise exception.Invalid(
            field="name", reason="only ASCII letters, digits, '-' and '_' are allowed"
        )
    return name


def parse_projects(projects: object) -> tuple[str, ...] | None:
    """Return the ids of the projects that may use a profile, sorted; None for None: all projects.

    Raises exception.Invalid that names the place, for instance ``projects[1]``. Whether Keystone
    has the projects is not checked.
    """
    if projects is None:
        return None
    if not isinstance(projects, list) or not 1 <= len(projects) <= MAX_PROJECTS:
        raise exception.Invalid(
            field="projects",
            reason=f"a list of 1 to {MAX_PROJECTS} ids of projects, or null, is needed",
        )
    parsed: set[str] = set()
    for index, project in enumerate(projects):
        field = f"projects[{index}]"
        if not isinstance(project, str) or _PROJECT.fullmatch(project) is None:
            raise exception.Invalid(
                field=field, reason="1 to 64 ASCII letters, digits and '-' are needed"
            )
        if project in parsed:
            raise exception.Invalid(field=field, reason=f"{project} is given twice")
        parsed.add(project)
    return tuple(sorted(parsed))


def parse_groups(
    groups: object, standard_classes: frozenset[str], limits: Limits
) -> tuple[dict[str, str], ...]:
    """Return the groups in their stored form: names trimmed, amounts as strings, order kept.

    ``standard_classes`` are Placement's standard resource classes. Raises exception.Invalid that
    names the place, for instance ``groups[1].resources:FPGA``.
    """
    if not isinstance(groups, Sequence) or isinstance(groups, str) or not groups:
        raise exception.Invalid(field="groups", reason="a non-empty list of objects is needed")
    if len(groups) > limits.groups:
        raise exception.Invalid(
            field="groups", reason=f"at most {limits.groups} groups are allowed"
        )
    parsed = tuple(
        _parse_group(f"groups[{index}]", group, standard_classes, limits)
        for index, group in enumerate(groups)
    )
    if not any(units(group) for group in parsed):
        raise exception.Invalid(
            field="groups", reason="no group asks for a resource (resources:<CLASS>: amount)"
        )
    return parsed


def _parse_group(
    place: str, group: object, standard_classes: frozenset[str], limits: Limits
) -> dict[str, str]:
    if not isinstance(group, Mapping):
        raise exception.Invalid(field=place, reason="an object is needed")
    parsed: dict[str, str] = {}
    for key, value in group.items():
        prefix, _, name = str(key).partition(":")
        field, name = f"{place}.{key}", name.strip()
        if f"{prefix}:" not in _PREFIXES or not name:
            raise exception.Invalid(
                field=field, reason="keys are resources:<CLASS>, trait:<TRAIT> or accel:<key>"
            )
        if f"{prefix}:{name}" in parsed:
            raise exception.Invalid(field=field, reason="given twice")
        if prefix == "resources":
            parsed[f"resources:{name}"] = _amount(field, name, value, standard_classes)
        elif prefix == "trait":
            if not is_trait_name(name):
                raise exception.Invalid(field=field, reason=f"{name} is not a valid trait name")
            if value not in _TRAIT_WORDS:
                raise exception.Invalid(field=field, reason="'required' or 'forbidden' is needed")
            parsed[f"trait:{name}"] = str(value)
        else:
            text = _digits(value) if isinstance(value, int) else value
            if isinstance(value, bool) or not isinstance(text, str) or len(text) > _MAX_TEXT:
                raise exception.Invalid(field=field, reason="a string is needed")
            refuse_control_characters(text, field, line=True)
            parsed[f"accel:{name}"] = text
    if units(parsed) > limits.units:
        raise exception.Invalid(
            field=place, reason=f"at most {limits.units} units per group are allowed"
        )
    return parsed


def _amount(field: str, name: str, value: object, standard_classes: frozenset[str]) -> str:
    if not is_resource_class_name(name) or not (
        name in standard_classes or name.startswith("CUSTOM_")
    ):
        raise exception.Invalid(
            field=field, reason=f"{name} is neither a standard resource class nor CUSTOM_*"
        )
    text = _digits(value) if isinstance(value, int) else value
    text = text.strip() if isinstance(text, str) else ""
    # Nova and Placement count in int; eleven digits are beyond any of both.
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or len(text) > 10:
        raise exception.Invalid(field=field, reason="a whole number from 1 is needed")
    if int(text) < 1:
        raise exception.Invalid(field=field, reason="a whole number from 1 is needed")
    return str(int(text))


def _digits(value: int) -> str | None:
    """Return a number as text; None for a number that is too long for Python to convert."""
    try:
        return str(value)
    except ValueError:
        return None
