# SPDX-License-Identifier: Apache-2.0
"""The table of commands and roles on the operators' page: what the tests take for promised."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cyborg

_PAGE = Path(cyborg.__file__).resolve().parent.parent / "doc/source/configuration/policy.rst"
#: The columns that are people.
PEOPLE: Final = ("admin", "operator", "manager", "member", "reader")
YES: Final = "yes"
OWN: Final = "own"
NO: Final = r"\-"
#: The commands about which Nova decides.
OF_NOVA: Final = frozenset({"instance-move"})


@dataclass(frozen=True)
class Row:
    """One command: the rule behind it, and what it is to people, YES, OWN or NO."""

    rule: str
    people: Mapping[str, str]


def table() -> dict[str, Row]:
    """The rows by command."""
    rows = re.findall(r"^``([\w-]+)`` +``(\S+)`` +(.+)$", _PAGE.read_text(), re.MULTILINE)
    return {
        command: Row(rule, dict(zip(PEOPLE, words.split(), strict=True)))
        for command, rule, words in rows
    }
