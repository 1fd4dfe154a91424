# SPDX-License-Identifier: Apache-2.0
"""Interrupt a verb of a driver at one call of a port: the process ends, or the call fails or hangs.

The calls of a verb are numbered from 0; those of threads that the verb starts are not counted, and
not interrupted. All functions remove their hook from the host again.
"""

import contextlib
import errno
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from cyborg import exception
from cyborg.testing.fake_host import FakeHost

#: How many calls are made to something that hangs before a verb is ended by force.
_PATIENCE = 25
#: Whether a call of a port belongs to the verb; a thread that a driver starts does not have it.
_COUNTED: ContextVar[bool] = ContextVar("counted", default=False)


class Crash(BaseException):
    """The process of the agent ends here. No driver may catch it."""


def failure() -> exception.HostError:
    """Return the error of a port call that the machine refuses."""
    return exception.HostError(
        action="calling the host", reason="Input/output error", errno=errno.EIO
    )


def watch(host: FakeHost, verb: Callable[[], object]) -> list[str]:
    """Return the calls that a verb makes until it ends or fails; see ``FakeHost.on_call``."""
    calls: list[str] = []
    with _hooked(host, calls.append), contextlib.suppress(exception.CyborgError):
        verb()
    return calls


def moments(host: FakeHost, verb: Callable[[], object], others: int) -> list[int]:
    """Run a verb and return the numbers of the calls at which an interruption can do harm.

    These are the calls around each write and each command, and ``others`` of the other calls.
    """
    changes: list[int] = []

    def note(call: str) -> None:
        if _COUNTED.get():
            changes.append(len(host.writes) + len(host.commands))

    with _hooked(host, note):
        verb()
    count = len(changes)
    changes.append(len(host.writes) + len(host.commands))
    numbers = set(range(0, count, max(1, count // others)))
    for number in range(count):
        if changes[number] != changes[number + 1]:
            numbers |= {number, number + 1, number + 2}
    return sorted(number for number in numbers if number < count)


def interrupt(
    host: FakeHost, verb: Callable[[], object], number: int, error: BaseException
) -> bool:
    """Run a verb and raise the error at the call of this number, before the call has an effect.

    Returns whether the verb ended normally. Raises AssertionError for a driver that catches Crash.
    """
    left = number

    def count(call: str) -> None:
        nonlocal left
        if _COUNTED.get():
            left -= 1
            if left == -1:
                raise error

    try:
        with _hooked(host, count):
            verb()
    except (Crash, exception.CyborgError):
        return False
    assert not isinstance(error, Crash), (
        "the driver catches BaseException; catch exception.CyborgError only"
    )
    return True


@contextlib.contextmanager
def hanging(
    host: FakeHost, matches: Callable[[str], bool], seconds: float | None = None
) -> Iterator[None]:
    """Let each matching call fail after ``seconds``, or after the timeout that a command has.

    A verb that repeats the call without limit ends with Crash.
    """
    calls = 0

    def hang(call: str) -> None:
        nonlocal calls
        if not matches(call):
            return
        calls += 1
        host.clock.advance(host.patience[-1] if seconds is None else seconds)
        if calls > _PATIENCE:
            raise Crash(f"{call} is called without limit")
        raise exception.HostError(
            action=f"calling {call}", reason="it did not end in time", errno=errno.ETIMEDOUT
        )

    with _hooked(host, hang):
        yield


@contextlib.contextmanager
def _hooked(host: FakeHost, hook: Callable[[str], None]) -> Iterator[None]:
    host.on_call = hook
    token = _COUNTED.set(True)
    try:
        yield
    finally:
        _COUNTED.reset(token)
        host.on_call = None
