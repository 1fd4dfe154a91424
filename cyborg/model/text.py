# SPDX-License-Identifier: Apache-2.0
"""Refuses characters that must not stand in the texts of requests and reports."""

from cyborg import exception
from cyborg_cli.text import control_character


def refuse_control_characters(text: str, field: str, *, line: bool = False) -> None:
    """Raise exception.Invalid, which names the field, for a control character or lone surrogate.

    Tabs and line ends are allowed, unless the text is one ``line``.
    """
    character = control_character(text, line=line)
    if character is not None:
        raise exception.Invalid(
            field=field, reason=f"the character U+{ord(character):04X} is not allowed"
        )
