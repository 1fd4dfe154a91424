# SPDX-License-Identifier: Apache-2.0
"""The API reference as data, for the tests that compare it with the code and with its samples."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

SOURCE: Final = Path(__file__).parents[3] / "api-ref" / "source"
SAMPLES: Final = SOURCE / "samples"
#: Members whose own members are data, and those that are described once for all.
_OPEN: Final = frozenset(
    {
        "acc_specs.acc_capability",
        "attach_handle_info",
        "capabilities",
        "groups",
        "labels",
        "links",
        "options",
        "quotas",
        "reasons",
        "results.result",
        "subject",
        "unbound_accelerator_requests",
        "units.reasons",
        "versions.links",
        "default_version.links",
    }
)
_METHOD: Final = re.compile(r"\.\. rest_method:: (\w+) (\S+)\n")
_SAMPLE: Final = re.compile(r"literalinclude:: samples/(\S+)\.json")
_TABLE: Final = re.compile(r"\.\. rest_parameters:: parameters\.yaml\n\n((?:   - .+\n)+)")
_ROW: Final = re.compile(r"- ([\w.-]+): ([\w-]+)")


@dataclass(frozen=True)
class Parameter:
    """A row of a table, with what parameters.yaml says of it."""

    name: str
    where: str
    #: The minor number of its first microversion.
    since: int


@dataclass(frozen=True)
class Method:
    """One method of the reference; ``text`` is all that stands about it."""

    method: str
    url: str
    text: str

    @property
    def request(self) -> list[Parameter]:
        """What is sent."""
        return self._table("Request")

    @property
    def response(self) -> list[Parameter]:
        """What is answered."""
        return self._table("Response")

    @property
    def samples(self) -> list[str]:
        """The samples that are shown, by name."""
        return _SAMPLE.findall(self.text)

    @property
    def codes(self) -> list[int]:
        """Success first."""
        return [int(code) for code in re.findall(r"^   - (\d{3})\b", self.text, re.MULTILINE)]

    @property
    def since(self) -> str | None:
        """The microversion from which on it is there, where it is not the first one."""
        found = re.search(r"^   min_version: (\S+)$", self.text, re.MULTILINE)
        return found and found[1]

    def _table(self, title: str) -> list[Parameter]:
        """The rows below ``title``, or none."""
        _, _, after = self.text.partition(f"**{title}**")
        found = _TABLE.match(after.lstrip("\n"))
        return [
            Parameter(name, said["in"], minor(said.get("min_version", "2.0")))
            for name, key in _ROW.findall(found[1] if found else "")
            for said in (_parameters()[key],)
        ]


@cache
def _parameters() -> Mapping[str, Mapping[str, Any]]:
    """All of parameters.yaml."""
    found: dict[str, dict[str, Any]] = yaml.load(
        (SOURCE / "parameters.yaml").read_text(), yaml.BaseLoader
    )
    return found


@cache
def methods() -> tuple[Method, ...]:
    """All methods, in the order of the files and of what is in them."""
    return tuple(
        Method(match[1], match[2], part)
        for file in sorted(SOURCE.glob("*.inc"))
        for part in re.split(r"^(?=\.\. rest_method::)", file.read_text(), flags=re.MULTILINE)
        if (match := _METHOD.match(part))
    )


def sample(name: str) -> Any:
    """The JSON of a sample."""
    return json.loads((SAMPLES / f"{name}.json").read_text())


def minor(version: str) -> int:
    """The minor number of a microversion; those of samples and parameters compare as numbers."""
    return int(version.removeprefix("2."))


def version(name: str) -> int:
    """The minor microversion at which a sample was made, by its name."""
    found = re.search(r"-(2\.\d+)-re", name)
    return minor(found[1]) if found else 0


def members(content: Any) -> set[str]:
    """The names of all members of an answer, those of objects in it with a dot.

    What is the only member, and holds the thing or things themselves, lends them no name.
    """
    if isinstance(content, dict) and len(content) == 1:
        ((wrapper, inner),) = content.items()
        if isinstance(inner, (dict, list)):
            return {wrapper} | _members(inner, "")
    return _members(content, "")


def _members(content: Any, above: str) -> set[str]:
    if isinstance(content, list):
        return {name for one in content for name in _members(one, above)}
    if not isinstance(content, dict):
        return set()
    found = set()
    for name, inner in content.items():
        found.add(above + name)
        if above + name not in _OPEN:
            found |= _members(inner, f"{above}{name}.")
    return found
