# SPDX-License-Identifier: Apache-2.0
"""Print headings, requests and responses, and results."""

from collections.abc import Sequence
from typing import Any, TextIO

from cyborg.tests.fixtures.accelerators import Exchange
from cyborg_cli import terminal
from cyborg_tools.quickstart.layout import compact

#: Columns of a line, as far as words can be broken: at most, and at least.
WIDTH = 100
_NARROWEST = 72
#: Where requests, answers and verdicts begin.
_MARGIN = 12
_GREY = "90"


class Screen:
    """Prints to ``out``; in colours where that is a terminal and NO_COLOR is not set.

    Lines have the width of the terminal, but 72 to 100 columns; 100 where ``out`` is no terminal.
    A ``brief`` screen shows no requests, and each step of the walk in one line.
    """

    def __init__(self, out: TextIO, *, brief: bool = False) -> None:
        self._out = out
        self._coloured = terminal.supports_colours(out)
        columns = terminal.width_of(out, WIDTH) if out.isatty() else WIDTH
        self.width = min(max(columns, _NARROWEST), WIDTH)
        self.brief = brief
        self._room = self.width - _MARGIN - 1
        self._step = 0
        self._title = ""

    def say(self, text: str = "") -> None:
        """Plain words, broken into lines."""
        self._put("\n".join(terminal.wrapped(text, self.width)))

    def raw(self, lines: Sequence[str]) -> None:
        """Lines that stay as they are: tables, and what people copy."""
        self._put("\n".join(lines))

    def log(self, name: str, lines: Sequence[str]) -> None:
        """What a program wrote, each line behind its name."""
        for line in lines:
            self._put(f"{self._in(terminal.CYAN, f'{name:>16} |')} {line}")

    def heading(self, text: str) -> None:
        if self.brief:
            return
        self._put(f"\n{self._in(terminal.BOLD, text)}\n{self._in(terminal.BOLD, '=' * len(text))}")

    def fact(self, name: str, text: str) -> None:
        """One line of progress: what is ready, and what to know about it."""
        if self.brief:
            return
        self._hang(f"  {name:<{_MARGIN}}", text, terminal.CYAN)

    def step(self, text: str) -> None:
        self._step += 1
        self._title = text
        if not self.brief:
            self._put("\n" + self._in(terminal.BOLD, f"{self._step}. {text}"))

    def ok(self, text: str) -> None:
        """What the step has shown."""
        if self.brief:
            self._hang(f"{'ok':>4}  {self._step:>2}. ", self._title, terminal.GREEN)
            return
        self._hang(f"{'ok':>{_MARGIN - 2}}  ", text, terminal.GREEN)

    def verdict(self, text: str) -> None:
        self._put(("" if self.brief else "\n") + self._in(terminal.GREEN, text))

    def problem(self, text: str) -> None:
        self._hang(f"{'failed':>{_MARGIN - 2}}  ", text, terminal.RED)

    def exchange(self, peer: str, one: Exchange) -> None:
        """A request to ``peer`` and what came back."""
        if self.brief:
            return
        asked = self._target(one.method, one.path)
        self._message(f"{peer:>{_MARGIN - 2}} >", asked, one.body, terminal.CYAN)
        colour = terminal.GREEN if one.status < 400 else terminal.RED
        self._message(f"{'<':>{_MARGIN}}", [str(one.status)], one.answer, colour)

    def command(self, line: str, status: int, said: str, answer: Any) -> None:
        """A command line, what it ``said`` beside its output, how it ended, and its output.

        The output is a JSON value, or text as it is.
        """
        *first, last = self._wrapped(line, self._room - 2)
        lines = [*(f"{part} \\" for part in first), last]
        self._message(f"{'$':>{_MARGIN}}", lines, None, terminal.CYAN)
        for sentence in said.splitlines():
            self._message(f"{'!':>{_MARGIN}}", self._wrapped(sentence, self._room), None, _GREY)
        text = answer.splitlines() if isinstance(answer, str) else []
        colour = terminal.GREEN if status == 0 else terminal.RED
        mark, body = f"{'<':>{_MARGIN}}", None if isinstance(answer, str) else answer
        self._message(mark, [str(status)], body, colour)
        self._put("".join(f"{' ' * (_MARGIN + 1)}{one}\n" for one in text), end="")

    def _wrapped(self, text: str, room: int) -> list[str]:
        return terminal.wrapped(text, room) or [""]

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
        lines = terminal.wrapped(text, self.width - len(mark))
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
        return terminal.coloured(text, colour) if self._coloured else text

    def _put(self, text: str, end: str = "\n") -> None:
        print(text, file=self._out, end=end, flush=True)
