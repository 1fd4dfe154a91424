# SPDX-License-Identifier: Apache-2.0
"""What the programs of ``tools`` share: status, signals, errors, logs, and what they start."""

import os
import shutil
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Final, Self

from cyborg import exception

#: The status after BrokenEnvironment: it says nothing about the service, and the program may be run
#: once more. The number is EX_TEMPFAIL of sysexits.h, and tools/environment.py uses it as well.
ENVIRONMENT: Final = os.EX_TEMPFAIL
_INTERRUPTED: Final = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: The logs of servers and daemons below the directory of a run.
_LOGS: Final = ("*.out", "output", "child.log")
#: Lines of each log that are shown after a failure.
_LAST_LINES: Final = 20


class BrokenEnvironment(Exception):
    """Something that is not ours failed: a server, the emulator, an index of packages.

    It is no error of the service, whose errors all have a form for the message bus.
    """

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


def run(prog: str, body: Callable[[], int]) -> int:
    """Return the status of ``body``; 1 after an error of Cyborg, 130 after a signal.

    The status after BrokenEnvironment is ENVIRONMENT. The first signal interrupts; nothing
    interrupts the stopping.
    """
    # SIGINT as well: a shell starts background processes with SIGINT ignored.
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    try:
        return body()
    except BrokenEnvironment as error:
        say(prog, f"the environment broke, not the service: {error}")
        return ENVIRONMENT
    except exception.CyborgError as error:
        say(prog, str(error))
        return 1
    except KeyboardInterrupt:
        say(prog, "interrupted; everything that was started is stopped")
        return _INTERRUPTED


def run_in(directory: Path, prog: str, body: Callable[[], int], *, keep: bool) -> int:
    """Return the status of ``body`` as ``run`` does; remove the directory with its logs.

    With ``keep``, or when ``body`` fails and there are logs, the directory stays, below the one
    that the variable CYBORG_KEPT names if it is set. After a failure the last lines of all logs are
    shown, too.
    """
    status = 1
    try:
        status = run(prog, body)
    finally:
        failed = status not in (0, _INTERRUPTED)
        has_logs = failed and _show_logs(directory)
        if has_logs or keep:
            say(prog, f"logs, configuration and data are in {_kept(directory)}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return status


def ignore_signals() -> None:
    """Let nothing interrupt what follows: the stopping."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def say(prog: str, sentence: str) -> None:
    """Progress goes to standard error, so that the results can be piped."""
    print(f"{prog}: {sentence}", file=sys.stderr, flush=True)


class Started(ABC):
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


def _show_logs(directory: Path) -> bool:
    """Show the end of each log, the one that was written last at the end; False without logs."""
    found = {path for pattern in _LOGS for path in directory.rglob(pattern) if path.is_file()}
    logs = [path for path in found if path.stat().st_size]
    for path in sorted(logs, key=lambda path: path.stat().st_mtime):
        lines = path.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        title = f"the last lines of {path.relative_to(directory)}:"
        print("", title, *(f"  {line}" for line in lines), sep="\n", file=sys.stderr)
    return bool(logs)


def _kept(directory: Path) -> Path:
    """Move the directory where CYBORG_KEPT says; return where it is."""
    parent = os.environ.get("CYBORG_KEPT")
    if not parent:
        return directory
    target = Path(parent).resolve() / directory.name
    # A socket of a server that was killed cannot be copied.
    shutil.copytree(directory, target, symlinks=True, ignore=_special)
    shutil.rmtree(directory, ignore_errors=True)
    return target


def _special(directory: str, names: list[str]) -> list[str]:
    """Return the names of what is neither a file nor a directory nor a link."""
    paths = [Path(directory, name) for name in names]
    return [path.name for path in paths if path.is_socket() or path.is_fifo()]


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    ignore_signals()
    raise KeyboardInterrupt
