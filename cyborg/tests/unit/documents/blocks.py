# SPDX-License-Identifier: Apache-2.0
"""Finds the blocks of a document, and tells of what kind each of them is.

A block says its kind (``.. code-block:: ini``), or it is plain from its first line. One that is
neither has the kind ``""``, which no rule takes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Final

from cyborg.tests.unit.documents.shell import programs

_DIRECTIVE = re.compile(r"^\s*\.\. (code-block|code|sourcecode|highlight|literalinclude):: *(\S*)")
_FIELD = re.compile(r"^\s*:(\w+): *(.*)$")
#: The kind of a file that is to be shown and is not there.
MISSING: Final = "missing file"
#: The names under which the languages go that are meant by one kind.
_KINDS = {"bash": "shell", "sh": "shell", "shell-session": "console", "yml": "yaml"}
#: What begins a block whose kind need not be said.
_PLAIN = {
    r"\[\[local\||enable_\w+ ": "local.conf",
    r"\[[\w:.-]+\]$": "ini",
    r"[\[{]": "json",
    r"<VirtualHost|WSGI|Listen ": "apache",
    r"(SELECT|CREATE|GRANT|UPDATE|DELETE) ": "sql",
    r"[$#] \w": "console",
    r"---$": "yaml",
    r"(async )?def |class |import |from \w+ import": "python",
}


@dataclass(frozen=True)
class Block:
    """Something that a reader would copy; ``line`` is the first of the text."""

    path: Path
    line: int
    kind: str
    text: str
    caption: str = ""


def blocks(path: Path) -> Iterator[Block]:
    """Yield the blocks of a document in their order."""
    yield from _found(path, path.read_text().split("\n"))


def _found(path: Path, lines: list[str]) -> Iterator[Block]:
    usual, at = "", 0
    while at < len(lines):
        line, at = lines[at], at + 1
        directive = _DIRECTIVE.match(line)
        if directive and directive[1] == "highlight":
            usual = directive[2]
        elif directive and directive[1] == "literalinclude":
            yield _included(path, at, directive[2])
        elif directive or (line.endswith("::") and not line.lstrip().startswith("..")):
            said = directive[2] if directive else usual
            fields, first, at = _body(lines, at, line)
            text = dedent("\n".join(lines[first:at])).strip("\n")
            kind = _KINDS.get(said, said) if said else plain(text)
            if text:
                yield Block(path, first + 1, kind, text, fields.get("caption", ""))


def _body(lines: list[str], at: int, marker: str) -> tuple[dict[str, str], int, int]:
    """The options of a block, where its text begins and where it ends (exclusive)."""
    margin = _margin(marker)
    fields: dict[str, str] = {}
    while at < len(lines) and (field := _FIELD.match(lines[at])):
        fields[field[1]] = field[2]
        at += 1
    while at < len(lines) and not lines[at].strip():
        at += 1
    end = at
    while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > margin):
        end += 1
    return fields, at, end


def _margin(marker: str) -> int:
    """Where the paragraph begins that announces a block, be it an entry of a list or not."""
    found = re.match(r"\s*([*+-] +|(\d+|#)\. +)?", marker)
    return found.end() if found else 0


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _included(path: Path, line: int, name: str) -> Block:
    """A file that is shown as it is; its kind is that of its name."""
    if name.startswith("/_static/"):  # made by the build itself
        return Block(path, line, "text", "")
    shown = (path.parent / name).resolve()
    kind = {".py": "python", ".json": "sample", ".yaml": "yaml", ".ini": "ini", ".conf": "ini"}
    text = shown.read_text() if shown.is_file() else ""
    return Block(path, line, kind.get(shown.suffix, "text") if text else MISSING, text)


def plain(text: str) -> str:
    """The kind of a text that does not say it; empty where nobody can tell."""
    found = [line for line in text.split("\n") if line.strip() and not line.startswith("# ")]
    first = found[0] if found else ""
    for pattern, kind in _PLAIN.items():
        if re.match(pattern, first):
            return kind
    return "shell" if programs(first) else ""
