# SPDX-License-Identifier: Apache-2.0
"""Print for people: colours, the width of a terminal, wrapped texts and tables without borders."""

import contextlib
import itertools
import os
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final, TextIO

#: Parameters of the escape sequence for colours (ECMA-48, Select Graphic Rendition).
BOLD: Final = "1"
RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"
CYAN: Final = "36"
#: Moves the cursor to the upper left corner and erases the screen.
CLEAR: Final = "\033[H\033[2J"

_GAP: Final = "  "
#: The part of the width that the last column of a table keeps.
_LAST_COLUMN: Final = 0.3


def supports_colours(stream: TextIO) -> bool:
    """Return whether to write colours to a stream: on a terminal, unless NO_COLOR is set.

    Source: https://no-color.org.
    """
    return stream.isatty() and not os.environ.get("NO_COLOR")


def coloured(text: str, colour: str) -> str:
    """Return the text between the escape sequences of a colour."""
    return f"\033[{colour}m{text}\033[0m"


def width_of(stream: TextIO, default: int) -> int:
    """Return the width of a terminal in characters; ``default`` if the stream is no terminal.

    The environment variable COLUMNS takes precedence over the width of the terminal.
    """
    if not os.environ.get("COLUMNS"):
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(stream.fileno()).columns or default
    return shutil.get_terminal_size((default, 24)).columns


def height_of(stream: TextIO, default: int) -> int:
    """Return the number of lines of a terminal; ``default`` if the stream is no terminal."""
    if not os.environ.get("LINES"):
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(stream.fileno()).lines or default
    return shutil.get_terminal_size((80, default)).lines


def wrapped(text: str, width: int, *, indent: str = "", hanging: str | None = None) -> list[str]:
    """Return the text in lines of at most ``width`` characters, unless a word is longer.

    ``indent`` begins each line; ``hanging`` begins all lines after the first instead. Names such as
    vfio-pci stay whole, so that they can be copied.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    ruled: bool = False,
    colours: Sequence[str] = (),
    column: int = 0,
) -> Iterator[str]:
    """Yield the lines of a table, each column as wide as its widest cell.

    With ``width`` no line is longer, and cells that do not fit have several lines. ``ruled`` draws
    a line below the first row. ``colours`` has a colour for ``column`` of each row, empty for none.
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    while width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        *others, last = widths
        shrink_last = last > max(*others, _LAST_COLUMN * width)
        widths[-1 if shrink_last else others.index(max(others))] -= 1
    for number, (row, colour) in enumerate(itertools.zip_longest(rows, colours, fillvalue="")):
        lines = [
            [cell] if width is None else textwrap.wrap(cell, room, break_on_hyphens=False)
            for cell, room in zip(row, widths, strict=True)
        ]
        for parts in itertools.zip_longest(*lines, fillvalue=""):
            *texts, last_text = (
                f"{part:<{room}}" for part, room in zip(parts, widths, strict=True)
            )
            texts.append(last_text.rstrip())
            if colour and texts[column]:
                texts[column] = coloured(texts[column], colour)
            yield _GAP.join(texts).rstrip()
        if ruled and number == 0:
            yield _GAP.join("-" * room for room in widths)
