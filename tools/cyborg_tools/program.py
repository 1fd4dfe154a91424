# SPDX-License-Identifier: Apache-2.0
"""What the programs of ``tools`` share: signals, errors in one sentence, and what they start."""

import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Self

from cyborg import exception

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(prog: str, body: Callable[[], int]) -> int:
    """Return the status of ``body``; 1 after an error of Cyborg, 130 after a signal.

    The first signal interrupts; nothing interrupts the stopping.
    """
    # SIGINT as well: a shell starts background processes with SIGINT ignored.
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    try:
        return body()
    except exception.CyborgError as error:
        say(prog, str(error))
        return 1
    except KeyboardInterrupt:
        say(prog, "interrupted; everything that was started is stopped")
        return 130


def ignore_signals() -> None:
    """Let nothing interrupt what follows: the stopping."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def say(prog: str, sentence: str) -> None:
    """Progress goes to standard error, so that the results can be piped."""
    print(f"{prog}: {sentence}", file=sys.stderr, flush=True)


class Environment(ABC):
    """What a program starts: all of it in ``enter``; in ``exit``, or after an error, it ends."""

    def __enter__(self) -> Self:
        with ExitStack() as endings:
            self.start(endings)
            self._endings = endings.pop_all()
        return self

    def __exit__(self, *_details: object) -> None:
        self._endings.close()

    @abstractmethod
    def start(self, endings: ExitStack) -> None:
        """Start everything; ``endings`` is told how each thing ends."""


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    ignore_signals()
    raise KeyboardInterrupt
