# SPDX-License-Identifier: Apache-2.0
"""Parse, check and run the commands that an operator configured.

A command is the absolute path of a program and fixed words, in which a few placeholders stand for
values. No shell interprets it. Values come over the message bus or from the PCI bus: each must
match the pattern of its placeholder before it becomes part of a word or a path. A program runs only
if only root can change it.
"""

import posixpath
import re
import shlex
import string
from collections.abc import Mapping
from dataclasses import dataclass

from cyborg import exception
from cyborg.drivers.command import Completed, summary
from cyborg.drivers.host import Host

#: The pattern of each placeholder's value; no value can leave a directory or be an option.
_PATTERNS = {
    "address": re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"),
    "handle": re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z:_/-]|\.(?!\.)){0,254}"),
    "uuid": re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "image": re.compile(r"(?:/(?!\.\.?(?:/|$))[^/\x00-\x1f\x7f]+)+"),
    "service": re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z_@-]|\.(?!\.)){0,63}"),
}


@dataclass(frozen=True)
class Template:
    """A text, and the names of the placeholders in it."""

    text: str
    placeholders: frozenset[str]

    @classmethod
    def parse(cls, text: str, allowed: tuple[str, ...] = tuple(_PATTERNS)) -> "Template":
        """Parse a text; raises ValueError with a clause for a placeholder that is not allowed."""
        fields = [part[1:] for part in string.Formatter().parse(text) if part[1] is not None]
        for field, form, conversion in fields:
            if field not in allowed or form or conversion:
                names = ", ".join(f"{{{name}}}" for name in allowed)
                raise ValueError(f"{{{field}}} is not one of the placeholders {names}")
        return cls(text, frozenset(str(field) for field, _, _ in fields))

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with these values, which come from ``placeholder_values``."""
        return self.text.format_map({name: values[name] for name in self.placeholders})


@dataclass(frozen=True)
class FilePath:
    """The absolute path of a file on the host, with placeholders."""

    template: Template

    @classmethod
    def parse(cls, text: str, allowed: tuple[str, ...] = tuple(_PATTERNS)) -> "FilePath":
        """Parse a path; raises ValueError with a clause when it is not valid."""
        if not text.startswith("/") or posixpath.normpath(text) != text:
            raise ValueError("it is not an absolute path in its shortest form")
        return cls(Template.parse(text, allowed))

    def exists(self, host: Host, values: Mapping[str, str]) -> bool:
        """Return whether the host has the file for these values."""
        return host.exists(self.template.fill(values))


@dataclass(frozen=True)
class LocalCommand:
    """A program and its arguments; ``timeout`` is in seconds."""

    words: tuple[Template, ...]
    timeout: float

    @classmethod
    def parse(
        cls, text: str, timeout: float, allowed: tuple[str, ...] = tuple(_PATTERNS)
    ) -> "LocalCommand":
        """Parse a command line; raises ValueError with a clause when it is not valid."""
        words = shlex.split(text)
        if not words:
            raise ValueError("it does not name a program")
        program = words[0]
        if not program.startswith("/") or posixpath.normpath(program) != program:
            raise ValueError(f"{program!r} is not the absolute path of a program")
        if "{" in program:
            raise ValueError("the program itself cannot be a placeholder")
        return cls(tuple(Template.parse(word, allowed) for word in words), timeout)

    @property
    def program(self) -> str:
        """Return the path of the program."""
        return self.words[0].text

    @property
    def placeholders(self) -> frozenset[str]:
        """Return the names of the placeholders in the words."""
        return frozenset().union(*(word.placeholders for word in self.words))

    def run(self, host: Host, values: Mapping[str, str]) -> Completed:
        """Run the command and return its result with any exit status.

        Raises exception.HostError when others than root can change the program, or when the command
        cannot be started or does not end in time.
        """
        writable = host.writable_by_others(self.program)
        if writable is not None:
            raise exception.HostError(
                action=f"running {self.program}",
                reason=f"others than root can change {writable}; make root its owner and remove "
                "write permission for all other users",
            )
        return host.run([word.fill(values) for word in self.words], timeout=self.timeout)

    def run_checked(self, host: Host, values: Mapping[str, str]) -> str:
        """Run the command and return its output; raises HostError if its status is not 0."""
        result = self.run(host, values)
        if result.status != 0:
            raise exception.HostError(action=f"running {self.program}", reason=summary(result))
        return result.stdout


def is_service_name(text: str) -> bool:
    """Return whether the name can replace the placeholder ``{service}``."""
    return _PATTERNS["service"].fullmatch(text) is not None


def placeholder_values(
    address: str,
    handle: str | None = None,
    handle_uuid: str | None = None,
    *,
    image: str | None = None,
) -> dict[str, str]:
    """Return values for the placeholders; raises exception.HostError for one that is not valid."""
    values = {"address": address, "handle": handle, "uuid": handle_uuid, "image": image}
    for name, value in values.items():
        if value is not None and _PATTERNS[name].fullmatch(value) is None:
            reason = f"{value!r} is not a valid {name}"
            raise exception.HostError(action="building a command", reason=reason)
    return {name: value for name, value in values.items() if value is not None}
