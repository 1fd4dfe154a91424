# SPDX-License-Identifier: Apache-2.0
"""The one door for commands that an operator configured: what may run, and with which words.

A command is a program by its absolute path and fixed words, in which a few placeholders stand
for values. No shell reads it. Values come over the bus or from the bus of the machine: each must
have the form of what it claims to be before it is pasted into a word or a path. A program is
run only while root alone can change it.
"""

import posixpath
import re
import shlex
import string
from collections.abc import Mapping
from dataclasses import dataclass

from cyborg import exception
from cyborg.drivers.command import Completed
from cyborg.drivers.host import Host

#: What each placeholder may be replaced by; none can climb out of a directory or be an option.
_FORMS = {
    "address": re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"),
    "handle": re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z:_/-]|\.(?!\.)){0,254}"),
    "uuid": re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "image": re.compile(r"(?:/(?!\.\.?(?:/|$))[^/\x00-\x1f\x7f]+)+"),
    "service": re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z_@-]|\.(?!\.)){0,63}"),
}
#: Characters of a command's complaint that are passed on.
_COMPLAINT = 200


@dataclass(frozen=True)
class Template:
    """A text with placeholders; ``named`` are those that stand in it."""

    text: str
    named: frozenset[str]

    @classmethod
    def parse(cls, text: str, allowed: tuple[str, ...] = tuple(_FORMS)) -> "Template":
        """Read a text; raises ValueError with a clause when it has any other placeholder."""
        fields = [part[1:] for part in string.Formatter().parse(text) if part[1] is not None]
        for field, form, conversion in fields:
            if field not in allowed or form or conversion:
                known = ", ".join(f"{{{one}}}" for one in allowed)
                raise ValueError(f"{{{field}}} is none of the placeholders {known}")
        return cls(text, frozenset(str(field) for field, _, _ in fields))

    def fill(self, values: Mapping[str, str]) -> str:
        """The text for these values, which ``checked`` has let pass."""
        return self.text.format_map({name: values[name] for name in self.named})


@dataclass(frozen=True)
class FilePath:
    """A file of the host by an absolute path with placeholders."""

    template: Template

    @classmethod
    def parse(cls, text: str, allowed: tuple[str, ...] = tuple(_FORMS)) -> "FilePath":
        """Read a path; raises ValueError with a clause when it is none."""
        if not text.startswith("/") or posixpath.normpath(text) != text:
            raise ValueError("it is not an absolute path in its shortest form")
        return cls(Template.parse(text, allowed))

    def exists(self, host: Host, values: Mapping[str, str]) -> bool:
        """Whether the host has the file for these values."""
        return host.exists(self.template.fill(values))


@dataclass(frozen=True)
class LocalCommand:
    """A program with its words; ``timeout`` is in seconds."""

    words: tuple[Template, ...]
    timeout: float

    @classmethod
    def parse(
        cls, text: str, timeout: float, allowed: tuple[str, ...] = tuple(_FORMS)
    ) -> "LocalCommand":
        """Read a command line; raises ValueError with a clause when it cannot be run."""
        words = shlex.split(text)
        if not words:
            raise ValueError("it names no program")
        program = words[0]
        if not program.startswith("/") or posixpath.normpath(program) != program:
            raise ValueError(f"{program!r} is not the absolute path of a program")
        if "{" in program:
            raise ValueError("the program itself cannot be a placeholder")
        return cls(tuple(Template.parse(one, allowed) for one in words), timeout)

    @property
    def program(self) -> str:
        """The path of the program."""
        return self.words[0].text

    @property
    def named(self) -> frozenset[str]:
        """The placeholders in its words."""
        return frozenset().union(*(one.named for one in self.words))

    def ask(self, host: Host, values: Mapping[str, str]) -> Completed:
        """Run it; any exit status is an answer.

        Raises exception.HostError when it is not root's alone, cannot be started or does not
        end in time.
        """
        place = host.writable_by_others(self.program)
        if place is not None:
            raise exception.HostError(
                action=f"running {self.program}",
                reason=f"others than root may change {place}; let root own it, and nobody else "
                "write there",
            )
        return host.run([one.fill(values) for one in self.words], timeout=self.timeout)

    def order(self, host: Host, values: Mapping[str, str]) -> str:
        """Run it and give what it printed; any exit status but 0 is exception.HostError."""
        ended = self.ask(host, values)
        if ended.status != 0:
            raise exception.HostError(action=f"running {self.program}", reason=complaint(ended))
        return ended.stdout


def complaint(ended: Completed) -> str:
    """How a command ended, with the last line of what it had to say."""
    lines = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
    said = f": {lines[-1][:_COMPLAINT]}" if lines else ""
    return f"it ended with status {ended.status}{said}"


def is_service_name(text: str) -> bool:
    """Whether a command or a path may name a service so."""
    return _FORMS["service"].fullmatch(text) is not None


def placeholder_values(
    address: str,
    handle: str | None = None,
    handle_uuid: str | None = None,
    *,
    image: str | None = None,
) -> dict[str, str]:
    """Values for the placeholders; raises exception.HostError when one has not the right form."""
    given = {"address": address, "handle": handle, "uuid": handle_uuid, "image": image}
    for name, value in given.items():
        if value is not None and _FORMS[name].fullmatch(value) is None:
            raise exception.HostError(action="making a command", reason=f"{value!r} is no {name}")
    return {name: value for name, value in given.items() if value is not None}
