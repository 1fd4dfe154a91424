# SPDX-License-Identifier: Apache-2.0
"""What programs of tools end with, and what they keep."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import environment
from cyborg import exception
from cyborg_tools import program


def raising(error: BaseException) -> Callable[[], int]:
    def body() -> int:
        raise error

    return body


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Restore how this process answers signals."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run, with the logs of two processes."""
    monkeypatch.delenv("CYBORG_KEPT", raising=False)
    place = tmp_path / "run"
    (place / "mariadb").mkdir(parents=True)
    (place / "cyborg-agent-0.out").write_text("".join(f"agent {n}.\n" for n in range(30)))
    (place / "mariadb" / "output").write_text("ready for connections\n")
    (place / "cyborg.conf").write_text("[DEFAULT]\n")
    return place


BROKEN = program.BrokenEnvironment(reason="MariaDB does not start")
FAULT = exception.ConfigError(reason="cyborg-api does not start")


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (BROKEN, 75, "the environment broke, not the service: MariaDB does not start"),
        (FAULT, 1, "cyborg-api does not start"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_status_tells_a_broken_environment_from_a_broken_service(
    error: BaseException, status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.run("test", raising(error)) == status
    assert capsys.readouterr().err.startswith(f"test: {words}")


def test_commands_end_with_the_same_status_without_an_index_of_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unreachable = environment.Trouble("no index.", environment.ENVIRONMENT)
    for trouble, status in ((environment.Trouble("no."), 1), (unreachable, program.ENVIRONMENT)):
        with pytest.raises(SystemExit) as ended:
            environment.finish(raising(trouble))
        assert ended.value.code == status


@pytest.mark.parametrize("error", [FAULT, BROKEN, RuntimeError("not expected")])
def test_failed_run_keeps_its_directory_and_shows_the_end_of_each_log(
    directory: Path, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    if isinstance(error, (exception.CyborgError, program.BrokenEnvironment)):
        assert program.run_in(directory, "test", raising(error), keep=False) in {1, 75}
    else:
        with pytest.raises(RuntimeError, match="not expected"):
            program.run_in(directory, "test", raising(error), keep=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"test: logs, configuration and data are in {directory}"
    assert "  ready for connections" in lines
    assert [line for line in lines if line.startswith("  agent ")] == [
        f"  agent {n}." for n in range(10, 30)
    ]
    assert "the last lines of mariadb/output:" in lines
    assert "  [DEFAULT]" not in lines
    assert (directory / "cyborg.conf").exists()


def test_successful_run_removes_its_directory(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.run_in(directory, "test", lambda: 0, keep=True) == 0
    assert directory.exists()
    said = capsys.readouterr().err
    assert said == f"test: logs, configuration and data are in {directory}\n"
    assert program.run_in(directory, "test", lambda: 0, keep=False) == 0
    assert not directory.exists()


def test_failed_run_without_logs_leaves_nothing(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "cyborg-agent-0.out").unlink()
    (directory / "mariadb" / "output").write_text("")
    assert program.run_in(directory, "test", raising(FAULT), keep=False) == 1
    assert capsys.readouterr().err == f"test: {FAULT}\n"
    assert not directory.exists()


def test_interrupted_run_removes_its_directory(directory: Path) -> None:
    body = raising(KeyboardInterrupt())
    assert program.run_in(directory, "test", body, keep=False) == 130
    assert not directory.exists()


def test_variable_names_where_failed_runs_are_kept(
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = tmp_path / "kept" / "of-this-commit"
    monkeypatch.setenv("CYBORG_KEPT", str(kept))
    # The path of a socket is short, and tmp_path may be long.
    monkeypatch.chdir(directory)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind("socket")
    os.mkfifo("fifo")
    assert program.run_in(directory, "test", lambda: 1, keep=False) == 1
    assert capsys.readouterr().err.endswith(f" are in {kept / 'run'}\n")
    assert (kept / "run" / "mariadb" / "output").read_text() == "ready for connections\n"
    assert not (kept / "run" / "socket").exists()
    assert not directory.exists()
