# SPDX-License-Identifier: Apache-2.0
"""Fit tables to the width of a terminal.

cliff's ``--fit-width`` shrinks columns to equal widths and breaks words, UUIDs included. This
module omits the columns of a list that have no value in any row, wraps text between words, and
moves a column that does not fit below the first column of its row, as ``name: value``. It never
breaks a UUID, even if the terminal is too narrow for it.
"""

import argparse
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final, TextIO

from cliff.columns import FormattableColumn
from cliff.formatters.table import TableFormatter

from cyborg_cli import terminal

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
#: The width of a column besides its content: two blanks and a border. A table has one more border.
_PADDING: Final = 3
#: A width that no table reaches, so that cliff does not shrink a table that is already fitted.
_UNLIMITED: Final = 1_000_000
#: The width of a terminal that does not report its width, in characters.
_DEFAULT_WIDTH: Final = 80
_INDENT: Final = "  "
#: A longer word may be broken if it does not fit, in characters.
_MAX_WORD: Final = 30


class FittedTable(TableFormatter):
    """Writes tables that fit the terminal, or ``--max-width`` if it is given.

    ``essential`` are the columns of a list that get space before all others.
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
        rows = [list(row) for row in data]
        names = list(column_names)
        width = _target_width(stdout, parsed_args)
        if width:
            # Columns that the user selected are shown even if they have no values.
            if not parsed_args.columns:
                kept = [
                    index
                    for index in range(len(names))
                    if not rows or index == 0 or any(_text(row[index]) for row in rows)
                ]
                names = [names[index] for index in kept]
                rows = [[row[index] for index in kept] for row in rows]
            names, rows = _fit_columns(names, rows, width, self._essential)
        super().emit_list(names, rows, stdout, _unlimited_width(parsed_args))

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        values = list(data)
        width = _target_width(stdout, parsed_args)
        if width and column_names:
            name_width = max(map(_size, ("Field", *column_names)))
            value_width = width - name_width - 2 * _PADDING - 1
            values = [_wrap(value, value_width) for value in values]
        super().emit_one(column_names, values, stdout, _unlimited_width(parsed_args))


def _target_width(stdout: TextIO, parsed: argparse.Namespace) -> int:
    """Return the width of the table, in characters; 0 for an unlimited width."""
    if parsed.max_width > 0:
        return int(parsed.max_width)
    if not (stdout.isatty() or parsed.fit_width):
        return 0
    return terminal.width_of(stdout, _DEFAULT_WIDTH)


def _unlimited_width(parsed: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments without a maximum width, for a table that is already fitted."""
    return argparse.Namespace(**{**vars(parsed), "max_width": _UNLIMITED})


def _fit_columns(
    names: list[str], rows: list[list[Any]], width: int, essential: Sequence[str]
) -> tuple[list[str], list[list[Any]]]:
    """Return the list fitted to a width: columns that do not fit move below the first column."""
    natural = [
        max([_size(name), *(_size(row[index]) for row in rows)]) for index, name in enumerate(names)
    ]
    minimum = [
        max([_size(name), *(_longest_word(row[index]) for row in rows)])
        for index, name in enumerate(names)
    ]
    order = sorted(range(1, len(names)), key=lambda index: names[index] not in essential)
    kept, moved, first = _place_columns(names, rows, minimum, order=order, width=width)
    widths = {index: minimum[index] for index in kept} | {0: first}
    space = width - 1 - sum(column_width + _PADDING for column_width in widths.values())
    # Space that is left goes first to the columns that need least of it.
    for index in sorted(kept, key=lambda index: natural[index] - widths[index]):
        extra = min(max(natural[index] - widths[index], 0), max(space, 0))
        widths[index] += extra
        space -= extra
    fitted = []
    for row in rows:
        cells = [_wrap(row[index], widths[index]) for index in kept]
        below = _moved_lines(
            [(names[index], row[index]) for index in moved if _text(row[index])], widths[0]
        )
        if below:
            cells[0] = "\n".join([str(cells[0]), *below])
        fitted.append(cells)
    return [names[index] for index in kept], fitted


def _place_columns(
    names: list[str], rows: list[list[Any]], minimum: list[int], *, order: list[int], width: int
) -> tuple[list[int], list[int], int]:
    """Return the columns that stay, those that move, and the minimum width of the first column."""
    moved: list[int] = []
    while True:
        labels = [_size(names[index]) + 1 + len(_INDENT) for index in moved]
        words = [_longest_word(row[index]) for row in rows for index in moved]
        first = max([minimum[0], *labels, *words])
        kept, space = [0], width - 1 - first - _PADDING
        for index in order:
            if index not in moved and minimum[index] + _PADDING <= space:
                kept.append(index)
                space -= minimum[index] + _PADDING
        rest = sorted(set(order) - set(kept))
        if rest == moved:
            return sorted(kept), moved, first
        moved = rest


def _moved_lines(fields: Sequence[tuple[str, Any]], width: int) -> list[str]:
    """Return lines with the names and values of columns that moved below the first column."""
    lines: list[str] = []
    for name, value in fields:
        text = f"{name}: {', '.join(_text(value).splitlines())}"
        if lines and len(lines[-1]) + 2 + len(text) <= width - len(_INDENT):
            lines[-1] += f", {text}"
        else:
            lines += _wrap_lines(text, width - len(_INDENT))
    # A line with a UUID may fill the column and gets no indent then.
    return [_INDENT + line if len(line) + len(_INDENT) <= width else line for line in lines]


def _wrap(value: Any, width: int) -> Any:
    """Return a value with line ends between its words if it is wider than ``width``."""
    if isinstance(value, FormattableColumn) or _size(value) <= width:
        return value
    return "\n".join(_wrap_lines(_text(value), width))


def _wrap_lines(text: str, width: int) -> list[str]:
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
    """Return the text of a value, without colour."""
    if isinstance(value, FormattableColumn):
        return str(value.machine_readable() or "")
    return "" if value is None else str(value)


def _size(value: Any) -> int:
    return max((len(line) for line in _text(value).splitlines()), default=0)


def _longest_word(value: Any) -> int:
    """Return the minimum width of a value that breaks no word, except for very long words."""
    words = _text(value).split()
    return max(
        (len(word) if _UUID.search(word) else min(len(word), _MAX_WORD) for word in words),
        default=0,
    )
