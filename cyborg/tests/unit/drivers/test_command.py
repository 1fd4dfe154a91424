# SPDX-License-Identifier: Apache-2.0
"""Commands are limited in time and output, and leave no process behind."""

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers import command
from cyborg.tests.fixtures.waiting import PATIENCE, NotInTime

#: A process that nobody kills ends after its test has failed.
HANG = f"signal.alarm({2 * PATIENCE:.0f}); signal.pause()"


def python(script: str) -> list[str]:
    return [sys.executable, "-I", "-c", script]


def test_run_succeeds_when_the_command_ignores_its_input() -> None:
    assert command.run(python("pass"), timeout=PATIENCE, stdin=b"x" * 1_000_000).status == 0


def test_a_missing_command_raises_host_error() -> None:
    with pytest.raises(exception.HostError, match=r"running /no/such/tool failed: .*No such file"):
        command.run(["/no/such/tool"], timeout=1)


def test_a_command_with_too_much_output_is_killed() -> None:
    script = "import sys\nwhile True: sys.stdout.write('x' * 4096)"
    with pytest.raises(exception.HostError, match="it printed more than 10000 bytes"):
        command.run(python(script), timeout=PATIENCE, cap=10_000)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """Return a fifo, and its open end to read from."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, reader
    os.close(reader)


def received(reader: int) -> bytes:
    """Return the next byte from the fifo; none if all that had it open are dead."""
    if not select.select([reader], [], [], PATIENCE)[0]:
        raise NotInTime("something comes out of the fifo")
    return os.read(reader, 1)


def test_the_process_group_is_killed_at_the_timeout(fifo: tuple[Path, int]) -> None:
    """A grandchild that survives its parent would keep the device busy."""
    path, reader = fifo
    script = (
        f"import os, signal; fifo = os.open({str(path)!r}, os.O_WRONLY); os.fork();"
        f"os.write(fifo, b'x'); {HANG}"
    )

    def clock() -> Iterator[float]:
        yield 0.0
        # The limit is over when both processes run.
        assert received(reader) + received(reader) == b"xx"
        yield PATIENCE

    with pytest.raises(exception.HostError, match=f"did not end within {PATIENCE:g} seconds"):
        command.run(python(script), timeout=PATIENCE, clock=clock().__next__)
    assert received(reader) == b""


def test_the_timeout_applies_after_both_streams_are_closed(fifo: tuple[Path, int]) -> None:
    path, reader = fifo
    script = (
        "import os, signal; os.close(1); os.close(2);"
        f"os.write(os.open({str(path)!r}, os.O_WRONLY), b'x'); {HANG}"
    )

    def clock() -> Iterator[float]:
        yield 0.0
        assert received(reader) == b"x"
        yield 0.0
        # The end of both streams was read.
        yield PATIENCE

    with pytest.raises(exception.HostError, match="did not end within"):
        command.run(python(script), timeout=PATIENCE, clock=clock().__next__)
    assert received(reader) == b""


def test_run_passes_input_and_a_minimal_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_PASSWORD", "secret")
    script = (
        "import os, sys; print(sys.stdin.read().upper(), os.environ['LC_ALL']);"
        "print('OS_PASSWORD' in os.environ, flush=True); sys.stdout.buffer.write(b'a\\xff');"
        "print('err', file=sys.stderr); sys.exit(3)"
    )
    output = "WORDS C\nFalse\na\ufffd"
    # All that it prints is returned up to the cap.
    ended = command.run(python(script), timeout=PATIENCE, stdin=b"words", cap=len(output) - 1 + 5)
    assert ended == command.Completed(3, output, "err\n")


@pytest.mark.parametrize(
    ("ended", "sentence"),
    [
        (command.Completed(1, "", ""), "it ended with status 1"),
        (command.Completed(1, "said\n", ""), "it ended with status 1: said"),
        (command.Completed(-9, "", "x" * 999), f"it ended with status -9: {'x' * 200}"),
    ],
)
def test_summary_has_status_and_last_line(ended: command.Completed, sentence: str) -> None:
    assert command.summary(ended) == sentence
