# SPDX-License-Identifier: Apache-2.0
"""Tests of what is printed: colours on terminals only, requests and answers within the margin."""

import io

import pytest

from cyborg.tests.fixtures.accelerators import Exchange
from cyborg_tools.quickstart.screen import WIDTH, Screen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_terminal_has_colours_unless_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured, plain, unwanted = Terminal(), io.StringIO(), Terminal()
    Screen(coloured).verdict("held")
    Screen(plain).verdict("held")
    monkeypatch.setenv("NO_COLOR", "1")
    Screen(unwanted).verdict("held")
    assert coloured.getvalue() == "\n\033[32mheld\033[0m\n"
    assert plain.getvalue() == unwanted.getvalue() == "\nheld\n"


def test_exchange_is_printed_within_the_width() -> None:
    out = io.StringIO()
    screen = Screen(out)
    query = "&".join(f"name{number}={'x' * 20}" for number in range(4))
    screen.exchange("Cyborg", Exchange("POST", "/v2/things", {"a": 1}, 201, {"b": [2]}))
    screen.exchange("Placement", Exchange("GET", f"/candidates?{query}", None, 204, None))
    lines = out.getvalue().splitlines()
    assert lines == [
        '    Cyborg > POST /v2/things {"a": 1}',
        '           < 201 {"b": [2]}',
        " Placement > GET /candidates",
        " " * 15 + "?name0=" + "x" * 20,
        *(" " * 15 + f"&name{number}=" + "x" * 20 for number in (1, 2, 3)),
        "           < 204",
    ]
    body = {f"key{number}": "value" * 4 for number in range(20)}
    screen.exchange("Cyborg", Exchange("PUT", "/x", body, 409, body))
    first, *rest = out.getvalue().splitlines()[len(lines) :]
    assert first == "    Cyborg > PUT /x {"
    assert max(map(len, rest)) <= WIDTH
    assert all(line.startswith(" " * 11) for line in rest)


def test_steps_are_numbered_and_text_is_wrapped() -> None:
    out = io.StringIO()
    screen = Screen(out)
    screen.step("first")
    screen.ok("word " * 40)
    screen.step("second")
    screen.problem("it broke")
    lines = out.getvalue().splitlines()
    assert lines[1] == "1. first"
    assert lines[2].startswith("        ok  word word")
    assert lines[3].startswith("            word")
    assert lines[-2:] == ["2. second", "    failed  it broke"]


@pytest.mark.parametrize(("columns", "width"), [(40, 72), (80, 80), (100, 100), (240, 100)])
def test_lines_have_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    screen = Screen(out)
    screen.say("word " * 100)
    longest = max(map(len, out.getvalue().splitlines()))
    assert width - 5 <= longest <= width


def test_brief_screen_shows_one_line_for_each_step() -> None:
    out = io.StringIO()
    screen = Screen(out, brief=True)
    screen.heading("The walk")
    screen.fact("Placement", "is there")
    screen.step("Nova binds")
    screen.exchange("Cyborg", Exchange("GET", "/v2", None, 200, None))
    screen.ok("It is bound.")
    screen.verdict("Every step held.")
    assert out.getvalue() == "  ok   1. Nova binds\nEvery step held.\n"
