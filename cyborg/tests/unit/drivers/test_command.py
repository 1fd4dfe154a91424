# SPDX-License-Identifier: Apache-2.0
"""Commands are limited in time and output, and leave no process behind."""

import os
import pathlib
import sys

import pytest

from cyborg import exception
from cyborg.drivers import command


def python(script: str) -> list[str]:
    return [sys.executable, "-I", "-c", script]


def test_run_succeeds_when_the_command_ignores_its_input() -> None:
    assert command.run(python("pass"), timeout=30, stdin=b"x" * 1_000_000).status == 0


def test_a_missing_command_raises_host_error() -> None:
    with pytest.raises(exception.HostError, match=r"running /no/such/tool failed: .*No such file"):
        command.run(["/no/such/tool"], timeout=1)


def test_a_command_with_too_much_output_is_killed() -> None:
    script = "import sys\nwhile True: sys.stdout.write('x' * 4096)"
    with pytest.raises(exception.HostError, match="it printed more than 10000 bytes"):
        command.run(python(script), timeout=30, cap=10_000)


def test_the_process_group_is_killed_at_the_timeout(tmp_path: pathlib.Path) -> None:
    """A grandchild that survives its parent would keep the device busy."""
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    script = f"import os, signal\nos.open({str(fifo)!r}, os.O_WRONLY)\nos.fork()\nsignal.pause()\n"
    try:
        with pytest.raises(exception.HostError, match=r"did not end within 0\.5 seconds"):
            command.run(python(script), timeout=0.5)
        os.set_blocking(reader, True)
        # The end of the file comes when the last process that has it open is dead.
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_the_timeout_applies_after_both_streams_are_closed() -> None:
    script = "import os, signal; os.close(1); os.close(2); signal.pause()"
    with pytest.raises(exception.HostError, match="did not end within"):
        command.run(python(script), timeout=0.5)


def test_run_passes_input_and_a_minimal_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_PASSWORD", "secret")
    script = (
        "import os, sys; print(sys.stdin.read().upper(), os.environ['LC_ALL']);"
        "print('OS_PASSWORD' in os.environ, flush=True); sys.stdout.buffer.write(b'a\\xff');"
        "print('err', file=sys.stderr); sys.exit(3)"
    )
    output = "WORDS C\nFalse\na\ufffd"
    # All that it prints is returned up to the cap.
    ended = command.run(python(script), timeout=30, stdin=b"words", cap=len(output) - 1 + 5)
    assert ended == command.Completed(3, output, "err\n")
