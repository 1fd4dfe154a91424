# SPDX-License-Identifier: Apache-2.0
"""The programs of this service as child processes of a test, on a configuration in a directory.

They are the installed console scripts beside the running interpreter, and uWSGI. Their standard
output and error go to a file each; every one is stopped by its process id.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from cyborg import service
from cyborg.model import names

#: Options by group, as in a configuration file.
Options = Mapping[str, Mapping[str, object]]

#: Seconds within which a program must have started, or have ended when told to.
PATIENCE = 30.0


class Program:
    """One child process, running since the constructor returned."""

    def __init__(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """False once it has ended."""
        return self._child.poll() is None

    @property
    def output(self) -> str:
        """All it has written so far on standard output and error."""
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str, timeout: float = PATIENCE) -> re.Match[str]:
        """Return where the output matches; RuntimeError when it ends, or ``timeout`` passes."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            ended = not self.running
            match = re.search(pattern, self.output)
            if match:
                found.append(match)
            return ended or bool(match)

        service.wait_until(look, timeout=timeout)
        if not found:
            raise RuntimeError(f"{pattern!r} is not in the output of {self.log}:\n{self._tail}")
        return found[0]

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for its end by itself; answers the exit status (RuntimeError if it goes on)."""
        try:
            return self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{self.log} goes on after {timeout} s:\n{self._tail}") from None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._child.send_signal(number)

    def stop(self, timeout: float = PATIENCE) -> int:
        """Tell it to end (SIGTERM) and wait; stopping twice does no harm.

        Answers the exit status; kills it and raises RuntimeError when it does not end in time.
        """
        if self.running:
            self.signal(signal.SIGTERM)
        try:
            return self.wait(timeout)
        except RuntimeError:
            self.kill()
            raise

    def kill(self) -> int:
        """End it, and what it started, as a crash would; answers the exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._child.wait()

    @property
    def _tail(self) -> str:
        return "\n".join(self.output.splitlines()[-40:])


class Deployment:
    """A configuration file in ``directory``, and the programs that run on it.

    Each start may add options of its own, which win over those of the whole. A context manager:
    what still runs at its end is stopped, the last first.
    """

    def __init__(self, directory: Path, options: Options) -> None:
        self.directory = directory.resolve()
        self._options = options
        self._programs: list[Program] = []
        self.conf = self.write("cyborg", options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.stop()

    def write(self, name: str, options: Options) -> Path:
        """Write ``<name>.conf`` with exactly these options; returns its path."""
        file = self.directory / f"{name}.conf"
        file.write_text("\n".join(_lines(options)) + "\n")
        return file

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program on the configuration to its end; the caller looks at its status."""
        return subprocess.run(
            [script(name), "--config-file", str(self.conf), *arguments],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=2 * PATIENCE,
            check=False,
        )

    def start(self, command: str, *arguments: str, log: str = "", **more: str) -> Program:
        """Start a program of this environment; ``more`` are environment variables."""
        number = len(self._programs)
        program = Program(
            [script(command), *arguments],
            log=self.directory / f"{log or command}-{number}.out",
            environment={**self.environment, **more},
        )
        self._programs.append(program)
        return program

    def begin(self, command: str, options: Options | None = None) -> Program:
        """Start one of our daemons, without waiting for it."""
        return self.start(command, *self._arguments(command, options or {}))

    def daemon(self, command: str, options: Options | None = None) -> Program:
        """Start one of our daemons, and wait until it runs."""
        program = self.begin(command, options)
        program.wait_for(f"{command} is running")
        return program

    def conductor(self, options: Options | None = None) -> Program:
        """A running ``cyborg-conductor``."""
        return self.daemon(names.CONDUCTOR, options)

    def agent(self, options: Options | None = None) -> Program:
        """A running ``cyborg-agent``."""
        return self.daemon(names.AGENT, options)

    def api(self, options: Options | None = None) -> tuple[Program, str]:
        """A running ``cyborg-api`` on a free port, and its URL without a version."""
        merged = {**(options or {}), "api": {"port": 0, **(options or {}).get("api", {})}}
        program = self.daemon(names.API, merged)
        port = program.wait_for(r"Listening on .*:(\d+)")[1]
        return program, f"http://127.0.0.1:{port}"

    def uwsgi(self, *, processes: int, lazy: bool = False, mount: str = "") -> tuple[Program, str]:
        """uWSGI with ``cyborg.wsgi.api:application`` on a free port, and the URL of the service.

        ``lazy`` lets each process load the application after the fork; ``mount`` is a path to
        serve it below.
        """
        door = "cyborg.wsgi.api:application"
        where = (
            ["--mount", f"{mount}={door}", "--manage-script-name"] if mount else ["--module", door]
        )
        program = self.start(
            "uwsgi",
            *("--master", "--enable-threads", "--die-on-term", "--need-app"),
            # A worker of several threads may overlook that it is told to end.
            *("--worker-reload-mercy", "10"),
            *("--http-socket", "127.0.0.1:0", "--virtualenv", sys.prefix),
            # It closes each connection and says so only when told to, as deployers do.
            *("--add-header", "Connection: close"),
            *where,
            *("--processes", str(processes), "--threads", "4"),
            *(["--lazy-apps"] if lazy else []),
        )
        address = program.wait_for(r"bound to TCP address (127\.0\.0\.1:\d+)")[1]
        # One that is told to end while it loads does not listen, or misses its application.
        ready = "WSGI app 0 " if lazy else "spawned uWSGI worker "
        program.wait_for(rf"(?s)({ready}.*){{{processes}}}")
        return program, f"http://{address}{mount}"

    def stop(self) -> None:
        """Stop every program that runs, the last first; RuntimeError if one had to be killed."""
        with contextlib.ExitStack() as stopping:
            while self._programs:
                program = self._programs.pop(0)
                if program.running:
                    stopping.callback(program.stop)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the programs: our directory is their home, no more of ours is theirs.

        A ``cyborg.conf`` in the home directory is read where no other file is named.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
        return {**kept, "HOME": str(self.directory)}

    def _arguments(self, command: str, options: Options) -> list[str]:
        arguments = ["--config-file", str(self.conf)]
        if options:
            name = f"{command}-{len(self._programs)}"
            arguments += ["--config-file", str(self.write(name, options))]
        return arguments


def script(name: str) -> str:
    """The path of an installed program of this environment."""
    return str(Path(sys.executable).with_name(name))


def _lines(options: Options) -> Iterator[str]:
    for group, values in options.items():
        yield f"[{group}]"
        for name, value in values.items():
            # Several values of one option stand on lines of their own.
            for one in value if isinstance(value, list) else [value]:
                yield f"{name} = {one}"
