# SPDX-License-Identifier: Apache-2.0
"""Fit tables to the width of a terminal.

cliff's ``--fit-width`` shrinks columns to equal widths and breaks words, UUIDs included. Here the
columns of a list that have no value in any row are left out, text wraps between words, and a column
for which there is no room moves below the first column of its row, as ``name: value``. A UUID is
never broken, even where the terminal is too narrow for it.
"""

import argparse
import contextlib
import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final, TextIO

from cliff.columns import FormattableColumn
from cliff.formatters.table import TableFormatter

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
#: What a column takes beside its content: two blanks and a border. A table has one border more.
_PADDING: Final = 3
#: A width that no table reaches: it keeps cliff from shrinking a table that fits already.
_UNLIMITED: Final = 1_000_000
#: The columns of a terminal that does not tell.
_USUAL: Final = 80
_INDENT: Final = "  "
#: A longer word may be broken where there is no room for it.
_WORD: Final = 30


class FittedTable(TableFormatter):
    """Write tables that fit the terminal, or ``--max-width`` where that is given.

    ``essential`` names the columns of a list that get room before all others.
    """

    def __init__(self, essential: Sequence[str] = ()) -> None:
        self._essential = essential

    def emit_list(
        self,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        """Write a list."""
        rows = [list(row) for row in data]
        names = list(column_names)
        width = _width(stdout, parsed_args)
        if width:
            # A column that the command line names is shown, even without values.
            if not parsed_args.columns:
                names, rows = _without_empty(names, rows)
            names, rows = _fitted(names, rows, width, self._essential)
        super().emit_list(names, rows, stdout, _as_it_is(parsed_args))

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        """Write the fields of one object."""
        values = list(data)
        width = _width(stdout, parsed_args)
        if width and column_names:
            field = max(map(_size, ("Field", *column_names)))
            room = width - field - 2 * _PADDING - 1
            values = [_wrapped(value, room) for value in values]
        super().emit_one(column_names, values, stdout, _as_it_is(parsed_args))


def _width(stdout: TextIO, parsed: argparse.Namespace) -> int:
    """The width to fit, in characters; 0 where there is none."""
    if parsed.max_width > 0:
        return int(parsed.max_width)
    if not (stdout.isatty() or parsed.fit_width):
        return 0
    # COLUMNS overrules the terminal.
    if not os.environ.get("COLUMNS"):
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(stdout.fileno()).columns or _USUAL
    return shutil.get_terminal_size((_USUAL, 24)).columns


def _as_it_is(parsed: argparse.Namespace) -> argparse.Namespace:
    """The same arguments for a table whose width is decided."""
    return argparse.Namespace(**{**vars(parsed), "max_width": _UNLIMITED})


def _without_empty(names: list[str], rows: list[list[Any]]) -> tuple[list[str], list[list[Any]]]:
    """The same list without the columns that have no value in any row."""
    kept = [
        index
        for index in range(len(names))
        if not rows or index == 0 or any(_text(row[index]) for row in rows)
    ]
    return [names[index] for index in kept], [[row[index] for index in kept] for row in rows]


def _fitted(
    names: list[str], rows: list[list[Any]], width: int, essential: Sequence[str]
) -> tuple[list[str], list[list[Any]]]:
    """The same list, at most this wide: columns without room go below the first one."""
    natural = [
        max([_size(name), *(_size(row[index]) for row in rows)]) for index, name in enumerate(names)
    ]
    least = [
        max([_size(name), *(_longest_word(row[index]) for row in rows)])
        for index, name in enumerate(names)
    ]
    order = sorted(range(1, len(names)), key=lambda index: names[index] not in essential)
    kept, moved, first = _placed(names, rows, least, order=order, width=width)
    widths = {index: least[index] for index in kept} | {0: first}
    room = width - 1 - sum(one + _PADDING for one in widths.values())
    # The columns that lack least get all they lack.
    for index in sorted(kept, key=lambda one: natural[one] - widths[one]):
        more = min(max(natural[index] - widths[index], 0), max(room, 0))
        widths[index] += more
        room -= more
    shown = []
    for row in rows:
        cells = [_wrapped(row[index], widths[index]) for index in kept]
        below = _below(
            [(names[index], row[index]) for index in moved if _text(row[index])], widths[0]
        )
        if below:
            cells[0] = "\n".join([str(cells[0]), *below])
        shown.append(cells)
    return [names[index] for index in kept], shown


def _placed(
    names: list[str], rows: list[list[Any]], least: list[int], *, order: list[int], width: int
) -> tuple[list[int], list[int], int]:
    """Which columns stay and which move below the first one, and the least width of that."""
    moved: list[int] = []
    while True:
        labels = [_size(names[index]) + 1 + len(_INDENT) for index in moved]
        words = [_longest_word(row[index]) for row in rows for index in moved]
        first = max([least[0], *labels, *words])
        kept, room = [0], width - 1 - first - _PADDING
        for index in order:
            if index not in moved and least[index] + _PADDING <= room:
                kept.append(index)
                room -= least[index] + _PADDING
        left = sorted(set(order) - set(kept))
        if left == moved:
            return sorted(kept), moved, first
        moved = left


def _below(fields: Sequence[tuple[str, Any]], width: int) -> list[str]:
    """Lines that tell the values of columns that have no room of their own."""
    lines: list[str] = []
    for name, value in fields:
        text = f"{name}: {', '.join(_text(value).splitlines())}"
        if lines and len(lines[-1]) + 2 + len(text) <= width - len(_INDENT):
            lines[-1] += f", {text}"
        else:
            lines += _lines(text, width - len(_INDENT))
    # A UUID may be as wide as the column: it gets no indent.
    return [_INDENT + line if len(line) + len(_INDENT) <= width else line for line in lines]


def _wrapped(value: Any, width: int) -> Any:
    """A value with line ends between its words, where it is wider than that."""
    if isinstance(value, FormattableColumn) or _size(value) <= width:
        return value
    return "\n".join(_lines(_text(value), width))


def _lines(text: str, width: int) -> list[str]:
    wrapper = textwrap.TextWrapper(
        max(width, 1), break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    lines: list[str] = []
    for paragraph in text.splitlines():
        for line in wrapper.wrap(paragraph) or [""]:
            if len(line) <= width or _UUID.search(line):
                lines.append(line)
            else:
                lines += textwrap.wrap(line, max(width, 1), break_on_hyphens=False)
    return lines


def _text(value: Any) -> str:
    """A value as it is read, without the colour of its state."""
    if isinstance(value, FormattableColumn):
        return str(value.machine_readable() or "")
    return "" if value is None else str(value)


def _size(value: Any) -> int:
    return max((len(line) for line in _text(value).splitlines()), default=0)


def _longest_word(value: Any) -> int:
    """The width below which a value cannot go without a break in a word."""
    words = _text(value).split()
    return max(
        (len(one) if _UUID.search(one) else min(len(one), _WORD) for one in words), default=0
    )
