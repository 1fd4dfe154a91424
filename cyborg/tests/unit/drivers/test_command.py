# SPDX-License-Identifier: Apache-2.0
"""Commands end in time, keep their output short, and leave nothing behind."""

import os
import pathlib
import sys

import pytest

from cyborg import exception
from cyborg.drivers import command


def python(script: str) -> list[str]:
    return [sys.executable, "-I", "-c", script]


def test_tells_status_and_both_streams() -> None:
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert command.run(python(script), timeout=30) == command.Completed(3, "out\n", "err\n")


def test_passes_input_and_a_plain_environment() -> None:
    script = "import os, sys; print(sys.stdin.read().upper(), os.environ['LC_ALL'])"
    assert command.run(python(script), timeout=30, stdin=b"words").stdout == "WORDS C\n"


def test_leaves_the_agents_environment_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_PASSWORD", "secret")
    script = "import os; print('OS_PASSWORD' in os.environ)"
    assert command.run(python(script), timeout=30).stdout == "False\n"


def test_a_command_that_ignores_its_input_is_no_trouble() -> None:
    assert command.run(python("pass"), timeout=30, stdin=b"x" * 1_000_000).status == 0


def test_undecodable_output_is_still_text() -> None:
    script = r"import sys; sys.stdout.buffer.write(b'a\xff')"
    assert command.run(python(script), timeout=30).stdout == "a\ufffd"


def test_a_missing_command_is_a_host_error() -> None:
    with pytest.raises(exception.HostError, match=r"running /no/such/tool failed: .*No such file"):
        command.run(["/no/such/tool"], timeout=1)


def test_too_much_output_is_cut_off_with_the_command() -> None:
    script = "import sys\nwhile True: sys.stdout.write('x' * 4096)"
    with pytest.raises(exception.HostError, match="it printed more than 10000 bytes"):
        command.run(python(script), timeout=30, cap=10_000)


def test_output_up_to_the_cap_is_kept() -> None:
    assert len(command.run(python("print('x' * 99)"), timeout=30, cap=100).stdout) == 100


def test_the_whole_group_dies_at_the_time_out(tmp_path: pathlib.Path) -> None:
    """A grandchild that outlives its parent would hold the device that the parent was to free."""
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


def test_closed_streams_do_not_outwit_the_time_out() -> None:
    script = "import os, signal; os.close(1); os.close(2); signal.pause()"
    with pytest.raises(exception.HostError, match="did not end within"):
        command.run(python(script), timeout=0.5)
