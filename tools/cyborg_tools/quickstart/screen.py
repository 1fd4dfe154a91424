# SPDX-License-Identifier: Apache-2.0
"""Print headings, requests and responses, and results."""

import os
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

from cyborg.tests.fixtures.accelerators import Exchange
from cyborg_tools.quickstart.layout import compact

#: Columns of a line, as far as words can be broken: at most, and at least.
WIDTH = 100
_NARROWEST = 72
#: Where requests, answers and verdicts begin.
_MARGIN = 12
_BOLD, _RED, _GREEN, _CYAN, _GREY = "1", "31", "32", "36", "90"


class Screen:
    """Prints to ``out``; in colours where that is a terminal and NO_COLOR is not set.

    Lines have the width of the terminal, but 72 to 100 columns; 100 where ``out`` is no terminal.
    A ``brief`` screen shows no requests, and each step of the walk in one line.
    """

    def __init__(self, out: TextIO, *, brief: bool = False) -> None:
        self._out = out
        self._coloured = out.isatty() and not os.environ.get("NO_COLOR")
        columns = shutil.get_terminal_size((WIDTH, 24)).columns if out.isatty() else WIDTH
        self.width = min(max(columns, _NARROWEST), WIDTH)
        self.brief = brief
        self._room = self.width - _MARGIN - 1
        self._step = 0
        self._title = ""

    def say(self, text: str = "") -> None:
        """Plain words, broken into lines."""
        self._put(textwrap.fill(text, self.width, break_long_words=False, break_on_hyphens=False))

    def raw(self, lines: Sequence[str]) -> None:
        """Lines that stay as they are: tables, and what people copy."""
        self._put("\n".join(lines))

    def log(self, name: str, lines: Sequence[str]) -> None:
        """What a program wrote, each line behind its name."""
        for line in lines:
            self._put(f"{self._in(_CYAN, f'{name:>16} |')} {line}")

    def heading(self, text: str) -> None:
        if self.brief:
            return
        self._put(f"\n{self._in(_BOLD, text)}\n{self._in(_BOLD, '=' * len(text))}")

    def fact(self, name: str, text: str) -> None:
        """One line of progress: what is ready, and what to know about it."""
        if self.brief:
            return
        self._hang(f"  {name:<{_MARGIN}}", text, _CYAN)

    def step(self, text: str) -> None:
        self._step += 1
        self._title = text
        if not self.brief:
            self._put("\n" + self._in(_BOLD, f"{self._step}. {text}"))

    def ok(self, text: str) -> None:
        """What the step has shown."""
        if self.brief:
            self._hang(f"{'ok':>4}  {self._step:>2}. ", self._title, _GREEN)
            return
        self._hang(f"{'ok':>{_MARGIN - 2}}  ", text, _GREEN)

    def verdict(self, text: str) -> None:
        self._put(("" if self.brief else "\n") + self._in(_GREEN, text))

    def problem(self, text: str) -> None:
        self._hang(f"{'failed':>{_MARGIN - 2}}  ", text, _RED)

    def exchange(self, peer: str, one: Exchange) -> None:
        """A request to ``peer`` and what came back."""
        if self.brief:
            return
        asked = self._target(one.method, one.path)
        self._message(f"{peer:>{_MARGIN - 2}} >", asked, one.body, _CYAN)
        colour = _GREEN if one.status < 400 else _RED
        self._message(f"{'<':>{_MARGIN}}", [str(one.status)], one.answer, colour)

    def command(self, line: str, status: int, said: str, answer: Any) -> None:
        """A command line, what it ``said`` beside its output, how it ended, and its output.

        The output is a JSON value, or text as it is.
        """
        *first, last = self._wrapped(line, self._room - 2)
        self._message(f"{'$':>{_MARGIN}}", [*(f"{one} \\" for one in first), last], None, _CYAN)
        for sentence in said.splitlines():
            self._message(f"{'!':>{_MARGIN}}", self._wrapped(sentence, self._room), None, _GREY)
        text = answer.splitlines() if isinstance(answer, str) else []
        colour = _GREEN if status == 0 else _RED
        mark, body = f"{'<':>{_MARGIN}}", None if isinstance(answer, str) else answer
        self._message(mark, [str(status)], body, colour)
        self._put("".join(f"{' ' * (_MARGIN + 1)}{one}\n" for one in text), end="")

    def _wrapped(self, text: str, room: int) -> list[str]:
        return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]

    def _message(self, mark: str, head: list[str], body: Any, colour: str) -> None:
        """A head and its body, begun on the head's last line where that fits."""
        lines = [self._in(colour, line) for line in head]
        rest = [] if body is None else compact(body, self._room)
        if rest and len(f"{head[-1]} {rest[0]}") <= self._room:
            lines[-1] += f" {rest.pop(0)}"
        first, *others = [*lines, *rest]
        shown = [f"{self._in(_GREY, mark)} {first}"]
        self._put("\n".join(shown + [" " * (_MARGIN + 1) + line for line in others]))

    def _hang(self, mark: str, text: str, colour: str) -> None:
        lines = textwrap.wrap(
            text, self.width - len(mark), break_long_words=False, break_on_hyphens=False
        )
        rest = [" " * len(mark) + line for line in lines[1:]]
        self._put("\n".join([self._in(colour, mark) + "".join(lines[:1]), *rest]))

    def _target(self, method: str, path: str) -> list[str]:
        """What a request is for; a long query goes below it, one parameter a line."""
        line = f"{method} {path}"
        if len(line) <= self._room:
            return [line]
        head, _, query = line.partition("?")
        first, *rest = query.split("&")
        return [head, f"  ?{first}", *(f"  &{more}" for more in rest)]

    def _in(self, colour: str, text: str) -> str:
        return f"\033[{colour}m{text}\033[0m" if self._coloured else text

    def _put(self, text: str, end: str = "\n") -> None:
        print(text, file=self._out, end=end, flush=True)
