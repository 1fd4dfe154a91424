# SPDX-License-Identifier: Apache-2.0
"""Device profiles in YAML files, as operators keep them under version control.

A document is one profile with all that the service stores of it. A missing description or a missing
list of projects means that the profile has none: it is public then.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from cyborg_cli import exception
from cyborg_cli.text import escaped

#: The largest size of a file; a thousand profiles have a fifth of it.
_MOST_BYTES: Final = 1 << 20
_SUFFIXES: Final = frozenset({".yaml", ".yml"})
_MEMBERS: Final = ("name", "description", "groups", "projects")
_TAG: Final = "tag:yaml.org,2002:"
_GROUP_KEY: Final = re.compile(r"(resources|trait|accel):\s*(\S.*?)\s*")


@dataclass(frozen=True)
class Profile:
    """What files and service say of a profile.

    ``projects`` are sorted; None: the profile is public. ``place`` is file and line, empty for a
    profile of the service.
    """

    name: str
    groups: tuple[Mapping[str, str], ...]
    description: str | None = None
    projects: tuple[str, ...] | None = None
    place: str = ""

    @classmethod
    def of_answer(cls, profile: Mapping[str, Any]) -> "Profile":
        """Return a profile as the service shows it."""
        projects = profile.get("projects")
        return cls(
            name=profile["name"],
            groups=tuple(profile["groups"]),
            description=profile.get("description"),
            projects=None if projects is None else tuple(sorted(projects)),
        )

    def members(self) -> dict[str, Any]:
        """Return the members that the API takes, in the order of a document."""
        return {
            "name": self.name,
            "description": self.description,
            "groups": [dict(sorted(group.items(), key=_order)) for group in self.groups],
            "projects": None if self.projects is None else list(self.projects),
        }

    def document(self) -> str:
        """Return the profile as a YAML document."""
        members = {name: value for name, value in self.members().items() if value is not None}
        return str(yaml.safe_dump(members, sort_keys=False, allow_unicode=True, width=100))

    def changes(self, stored: "Profile") -> dict[str, Any]:
        """Return the members that make the stored profile equal to this one; empty: none does."""
        before = stored.members()
        return {name: value for name, value in self.members().items() if value != before[name]}


def read(paths: Sequence[str]) -> dict[str, Profile]:
    """Return name → profile of all documents of files, and of the YAML files of directories.

    Raises CommandFailed, which names file and line, for a document that is no profile, and for a
    name that two documents have.
    """
    profiles: dict[str, Profile] = {}
    for file in _files(paths):
        for node in _documents(file):
            profile = _profile(file, node)
            if profile.name in profiles:
                earlier = profiles[profile.name].place
                _refuse(
                    file,
                    node,
                    f"{earlier} has a profile with the name {escaped(profile.name)}, too",
                )
            profiles[profile.name] = profile
    return profiles


def dump(profiles: Iterable[Profile]) -> str:
    """Return profiles as YAML documents, by name; ``read`` returns the same of them."""
    return "---\n".join(
        profile.document() for profile in sorted(profiles, key=lambda profile: profile.name)
    )


def _order(item: tuple[str, str]) -> tuple[bool, str]:
    """Return the key that sorts the members of a group: what it requests comes first."""
    return not item[0].startswith("resources:"), item[0]


def _files(paths: Sequence[str]) -> list[Path]:
    files: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            files[path] = None
            continue
        try:
            listed = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
        except OSError as error:
            reason = f"Directory {path} cannot be listed: {error.strerror}."
            raise exception.CommandFailed(reason=reason) from error
        files |= dict.fromkeys(listed)
    return list(files)


def _documents(file: Path) -> Iterator[yaml.Node]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        with file.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise exception.CommandFailed(reason=f"File {file} has more than {_MOST_BYTES} bytes.")
        yield from filter(None, yaml.compose_all(content, loader))
    except OSError as error:
        reason = f"File {file} cannot be read: {error.strerror}."
        raise exception.CommandFailed(reason=reason) from error
    except RecursionError as error:
        raise exception.CommandFailed(reason=f"File {file} is nested too deeply.") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        reason = f"{file}:{line}: it is not YAML: {error.problem}."
        raise exception.CommandFailed(reason=reason) from error
    except yaml.YAMLError as error:
        # The loader gives no line for a file that is not text.
        reason = f"{file}:1: it is not YAML: {' '.join(str(error).split())}."
        raise exception.CommandFailed(reason=reason) from error


def _profile(file: Path, node: yaml.Node) -> Profile:
    members = _mapping(file, node, "the document")
    for name, (key, _) in members.items():
        if name not in _MEMBERS:
            _refuse(file, key, f"{name!r:.100} is none of {', '.join(_MEMBERS)}")
    for name in ("name", "groups"):
        if name not in members:
            _refuse(file, node, f"the profile has no {name}")
    values = {name: value for name, (_, value) in members.items() if not _is_null(value)}
    for name in ("name", "groups"):
        if name not in values:
            _refuse(file, members[name][1], f"{name} is null")
    projects = values.get("projects")
    return Profile(
        name=_text(file, values["name"], "name"),
        groups=_groups(file, values["groups"]),
        description=(
            _text(file, values["description"], "description") if "description" in values else None
        ),
        projects=None if projects is None else _projects(file, projects),
        place=f"{file}:{node.start_mark.line + 1}",
    )


def _groups(file: Path, node: yaml.Node) -> tuple[dict[str, str], ...]:
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        _refuse(file, node, "groups is not a list of one or more groups, each after '- '")
    return tuple(_group(file, item, f"groups[{index}]") for index, item in enumerate(node.value))


def _group(file: Path, node: yaml.Node, place: str) -> dict[str, str]:
    """Return a group as the service stores it: keys without blanks, and values as texts."""
    group: dict[str, str] = {}
    for text, (key, value) in _mapping(file, node, place).items():
        match = _GROUP_KEY.fullmatch(text)
        if match is None:
            reason = (
                f"{place}: {text!r:.100} is not resources:<CLASS>, trait:<TRAIT> or accel:<key>"
            )
            _refuse(file, key, reason)
        name = f"{match[1]}:{match[2]}"
        if name in group:
            _refuse(file, key, f"{place}: {name} is given twice")
        number = _number(value)
        if match[1] == "resources":
            if number is None:
                _refuse(file, value, f"{place}: {name} is not a whole number")
            group[name] = number
        elif number is not None and value.tag == f"{_TAG}int":
            group[name] = number
        else:
            group[name] = _text(file, value, f"{place}: {name}")
    return group


def _projects(file: Path, node: yaml.Node) -> tuple[str, ...]:
    if not isinstance(node, yaml.SequenceNode):
        _refuse(file, node, "projects is not a list of ids of projects, each after '- '")
    ids = (_text(file, item, f"projects[{index}]") for index, item in enumerate(node.value))
    return tuple(sorted(ids))


def _mapping(file: Path, node: yaml.Node, what: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Return key → nodes of key and value of a mapping; no key is given twice."""
    if not isinstance(node, yaml.MappingNode):
        _refuse(file, node, f"{what} is not of the form 'key: value'")
    members: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            _refuse(file, key, f"a key of {what} is not one word")
        if key.value in members:
            _refuse(file, key, f"{key.value!r:.100} is given twice")
        members[key.value] = key, value
    return members


def _text(file: Path, node: yaml.Node, what: str) -> str:
    if not isinstance(node, yaml.ScalarNode) or node.tag != f"{_TAG}str":
        quotes = isinstance(node, yaml.ScalarNode) and not _is_null(node)
        advice = f"; write it in quotes: '{node.value:.100}'" if quotes else ""
        _refuse(file, node, f"{what} is not a text{advice}")
    return str(node.value)


def _number(node: yaml.Node) -> str | None:
    """Return the decimal digits of a whole number, in quotes or not; None for anything else."""
    if not isinstance(node, yaml.ScalarNode) or node.tag not in (f"{_TAG}int", f"{_TAG}str"):
        return None
    digits = re.fullmatch("0*([0-9]{1,10})", node.value)
    # YAML 1.1 reads a number that begins with 0 as octal.
    octal = node.tag == f"{_TAG}int" and node.value.startswith("0") and len(node.value) > 1
    return None if digits is None or octal else digits[1]


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}null"


def _refuse(file: Path, node: yaml.Node, reason: str) -> NoReturn:
    raise exception.CommandFailed(reason=f"{file}:{node.start_mark.line + 1}: {reason}.")
