# SPDX-License-Identifier: Apache-2.0
"""Run one command so that nothing it does can hold up or flood the agent."""

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from cyborg import exception

#: Bytes that a command may print, on each of its two streams.
OUTPUT_CAP = 1024 * 1024
_CHUNK = 64 * 1024


@dataclass(frozen=True)
class Completed:
    """How a command ended; a negative ``status`` is the signal that killed it."""

    status: int
    stdout: str
    stderr: str


class _TooMuchError(Exception):
    """The command printed more than it may."""


def run(
    argv: Sequence[str], *, timeout: float, stdin: bytes = b"", cap: int = OUTPUT_CAP
) -> Completed:
    """Run ``argv`` (no shell) in the C locale and in a process group of its own.

    Raises exception.HostError when it cannot be started, takes longer than ``timeout`` seconds
    or prints more than ``cap`` bytes; its whole group has been killed then.
    """
    action = f"running {argv[0]}"
    deadline = time.monotonic() + timeout
    try:
        process = _start(argv, stdin)
    except (OSError, ValueError) as error:
        raise exception.HostError(action=action, reason=str(error)) from error
    with process:
        try:
            stdout, stderr = _drain(process, deadline, cap)
            process.wait(_left(deadline))
        except (TimeoutError, subprocess.TimeoutExpired):
            reason = f"it did not end within {timeout:g} seconds"
        except _TooMuchError:
            reason = f"it printed more than {cap} bytes"
        else:
            return Completed(process.returncode, stdout, stderr)
        finally:
            _kill(process)
    raise exception.HostError(action=action, reason=reason)


def _start(argv: Sequence[str], stdin: bytes) -> subprocess.Popen[bytes]:
    # A file, not a pipe: a command that does not read its input cannot block us.
    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        return subprocess.Popen(
            list(argv),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )


def _drain(process: subprocess.Popen[bytes], deadline: float, cap: int) -> tuple[str, str]:
    """Read both streams to their end.

    Raises TimeoutError past the deadline and _TooMuchError above the cap.
    """
    streams: list[IO[bytes]] = [one for one in (process.stdout, process.stderr) if one]
    seen = [bytearray() for _ in streams]
    with selectors.DefaultSelector() as selector:
        for stream, into in zip(streams, seen, strict=True):
            selector.register(stream, selectors.EVENT_READ, into)
        while selector.get_map():
            ready = selector.select(_left(deadline))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                part = os.read(key.fd, _CHUNK)
                key.data.extend(part)
                if len(key.data) > cap:
                    raise _TooMuchError
                if not part:
                    selector.unregister(key.fileobj)
    stdout, stderr = (bytes(one).decode(errors="replace") for one in seen)
    return stdout, stderr


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the group of a command that has not ended; one that has ended is left alone.

    Its leader is not reaped before the signal, so that its number cannot be another's.
    """
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
