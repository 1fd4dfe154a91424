# SPDX-License-Identifier: Apache-2.0
"""The scope of a request: whose rows it reaches, and whether it sees where they are."""

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

#: A PCI address in a text.
_ADDRESS: Final = re.compile(
    r"\b(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE
)
_HIDDEN: Final = "(hidden)"


@dataclass(frozen=True)
class Scope:
    """What a caller reaches: the rows of every project, or those of one project.

    ``project_id`` is None in the first case. ``shows_hosts`` tells whether the caller sees the
    names of hosts, PCI addresses and resource providers. ``unheld`` tells whether the caller also
    sees hardware of which the project holds no unit; what other projects do with it stays hidden.
    """

    project_id: str | None
    shows_hosts: bool
    unheld: bool

    @classmethod
    def of_project(
        cls, project_id: str | None, *, shows_hosts: bool = False, unheld: bool = False
    ) -> Self:
        """Return the scope of a project; a caller without a project reaches no row of a project."""
        return cls(project_id or "", shows_hosts, unheld)

    @property
    def everywhere(self) -> bool:
        """Return whether the scope reaches the rows of every project."""
        return self.project_id is None

    def host(self, name: str | None) -> str | None:
        """Return the name of a host as the caller may see it: itself, or an alias.

        The alias is the same in all answers to a project, and differs between projects, like
        ``hostId`` of Nova's API.
        """
        if name is None or self.shows_hosts:
            return name
        return hashlib.sha224(f"{self.project_id}{name}".encode()).hexdigest()

    def placed(self, value: T) -> T | None:
        """Return a value that tells where something is; None if the caller must not know."""
        return value if self.shows_hosts else None

    def said(self, value: Any, hosts: Collection[str | None]) -> Any:
        """Return a JSON value as the caller may see it.

        If hosts are hidden, texts in it have aliases for ``hosts``, and no PCI address.
        """
        if self.shows_hosts:
            return value
        if isinstance(value, dict):
            return {key: self.said(member, hosts) for key, member in value.items()}
        if isinstance(value, list | tuple):
            return [self.said(member, hosts) for member in value]
        if not isinstance(value, str):
            return value
        for name in sorted(filter(None, hosts), key=len, reverse=True):
            value = value.replace(name, str(self.host(name)))
        return _ADDRESS.sub(_HIDDEN, value)


#: The scope of the service itself, and of callers to whom a policy rule grants all projects.
EVERYWHERE: Final = Scope(None, shows_hosts=True, unheld=True)
