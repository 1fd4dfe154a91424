# SPDX-License-Identifier: Apache-2.0
"""Test what programs print for people, and that there is one module for it."""

import io
import re
from pathlib import Path
from typing import Final

import pytest

from cyborg_cli import terminal

ROOT: Final = Path(__file__).resolve().parents[3]
ROWS: Final = (("NAME", "STATE"), ("a-long-name", "up"), ("b", "down since this morning"))


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_columns_have_the_width_of_their_cells() -> None:
    assert list(terminal.table(ROWS)) == [
        "NAME         STATE",
        "a-long-name  up",
        "b            down since this morning",
    ]


def test_cells_that_do_not_fit_have_several_lines() -> None:
    lines = list(terminal.table(ROWS, width=24, ruled=True))
    assert lines == [
        "NAME         STATE",
        "-----------  -----------",
        "a-long-name  up",
        "b            down since",
        "             this",
        "             morning",
    ]


@pytest.mark.parametrize("column", [0, 1])
def test_colours_do_not_move_columns(column: int) -> None:
    colours = ["", terminal.GREEN, terminal.RED]
    lines = list(terminal.table(ROWS, colours=colours, column=column))
    assert [re.sub(r"\033\[\d+m", "", line) for line in lines] == list(terminal.table(ROWS))
    assert [line.count("\033") for line in lines] == [0, 2, 2]
    assert lines[1].partition("\033")[0].strip() == ("" if column == 0 else "a-long-name")


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colours_need_a_terminal_without_no_color(
    monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    assert terminal.supports_colours(Terminal()) is (not no_color)
    assert not terminal.supports_colours(io.StringIO())


def test_width_is_that_of_the_environment_or_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal.width_of(io.StringIO(), 80) == 72


def test_wrapped_text_breaks_no_name() -> None:
    lines = terminal.wrapped("a vfio-pci " + "x" * 30, 10, indent="  ", hanging="    ")
    assert lines == ["  a", "    vfio-pci", "    " + "x" * 30]


def test_no_other_module_of_the_service_writes_escape_sequences() -> None:
    modules = [*(ROOT / "client/cyborg_cli").rglob("*.py"), *(ROOT / "cyborg").rglob("*.py")]
    paths = [path for path in modules if "tests" not in path.parts]
    assert [
        path.relative_to(ROOT).as_posix()
        for path in sorted(paths)
        if re.search(r"033\[|x1b\[|environ.*NO_COLOR|get_terminal_size", path.read_text())
    ] == ["client/cyborg_cli/terminal.py"]
