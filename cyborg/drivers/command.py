# SPDX-License-Identifier: Apache-2.0
"""Run one command with a limit on its duration and on the size of its output."""

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from cyborg import exception

#: Maximum number of bytes that a command may print on each of its two streams.
OUTPUT_CAP = 1024 * 1024
#: Maximum number of characters of a command's output in an error message.
_OUTPUT_LENGTH = 200
_CHUNK = 64 * 1024


@dataclass(frozen=True)
class Completed:
    """The result of a command; a negative ``status`` is the signal that killed the command."""

    status: int
    stdout: str
    stderr: str


def summary(result: Completed) -> str:
    """Return the exit status of a command with the last line of its output, as a clause."""
    lines = (result.stderr.strip() or result.stdout.strip()).splitlines()
    message = f": {lines[-1][:_OUTPUT_LENGTH]}" if lines else ""
    return f"it ended with status {result.status}{message}"


class _OutputLimitError(Exception):
    """The command printed more bytes than allowed."""


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    stdin: bytes = b"",
    cap: int = OUTPUT_CAP,
    clock: Callable[[], float] = time.monotonic,
) -> Completed:
    """Run ``argv`` (no shell) in the C locale and in a process group of its own.

    Raises exception.HostError when the command cannot be started, takes longer than ``timeout``
    seconds or prints more than ``cap`` bytes on one stream; the process group is then killed.
    """
    action = f"running {argv[0]}"
    deadline = clock() + timeout

    def seconds_left() -> float:
        return max(0.0, deadline - clock())

    try:
        # A file, not a pipe: a command that does not read its input cannot block the agent.
        with tempfile.TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            process = subprocess.Popen(  # noqa: S603 - no shell; callers check each argument
                list(argv),
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        raise exception.HostError(action=action, reason=str(error)) from error
    with process:
        try:
            stdout, stderr = _read_streams(process, seconds_left, cap)
            process.wait(seconds_left())
        except (TimeoutError, subprocess.TimeoutExpired):
            reason = f"it did not end within {timeout:g} seconds"
        except _OutputLimitError:
            reason = f"it printed more than {cap} bytes"
        else:
            return Completed(process.returncode, stdout, stderr)
        finally:
            # The group leader is not reaped before the signal, so that no other process can have
            # its id.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    raise exception.HostError(action=action, reason=reason)


def _read_streams(
    process: subprocess.Popen[bytes], seconds_left: Callable[[], float], cap: int
) -> tuple[str, str]:
    """Return what the command prints on both streams, read to their end.

    Raises TimeoutError when no seconds are left, and _OutputLimitError above ``cap`` bytes on one
    stream.
    """
    streams: list[IO[bytes]] = [pipe for pipe in (process.stdout, process.stderr) if pipe]
    buffers = [bytearray() for _ in streams]
    with selectors.DefaultSelector() as selector:
        for stream, buffer in zip(streams, buffers, strict=True):
            selector.register(stream, selectors.EVENT_READ, buffer)
        while selector.get_map():
            ready = selector.select(seconds_left())
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK)
                key.data.extend(chunk)
                if len(key.data) > cap:
                    raise _OutputLimitError
                if not chunk:
                    selector.unregister(key.fileobj)
    stdout, stderr = (bytes(buffer).decode(errors="replace") for buffer in buffers)
    return stdout, stderr
