# SPDX-License-Identifier: Apache-2.0
"""Texts that other people read on a terminal: which characters they may have, and how to show them.

A terminal obeys control characters: an escape sequence in a label can hide a row, and an override
of the direction (https://trojansource.codes) can make a name look like another one.
"""

import re
from typing import Final

# The C0 and C1 controls without tab and line ends, DEL, the separators of lines and paragraphs, and
# the overrides and isolates of the direction of writing.
_CONTROL: Final = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_UNFIT: Final = re.compile(rf"[{_CONTROL}\ud800-\udfff]")
_UNFIT_IN_LINE: Final = re.compile(rf"[{_CONTROL}\ud800-\udfff\t\n\r]")
_UNSHOWN: Final = re.compile(rf"[{_CONTROL}\ud800-\udfff\r]")


def control_character(text: str, *, line: bool = False) -> str | None:
    """Return the first control character or lone surrogate of a text; None if it has none.

    Tabs and line ends do not count, unless the text is one ``line``.
    """
    match = (_UNFIT_IN_LINE if line else _UNFIT).search(text)
    return match and match[0]


def escaped(text: str) -> str:
    r"""Return the text with control characters in Python's notation, for example ``\x1b``.

    So are lone surrogates, which no encoding has. Tabs and line ends stay, except for the carriage
    return.
    """
    return _UNSHOWN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def escaped_line(text: str) -> str:
    """Return the text as one line: as ``escaped``, with tabs and line ends in that notation."""
    return _UNFIT_IN_LINE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
