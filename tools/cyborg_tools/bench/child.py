# SPDX-License-Identifier: Apache-2.0
"""A child process of the benchmark: starts parts, does what it is told, ends with its parent.

One JSON document per line each way: the first line on standard input names the parts, every other
is a command; each is answered by one line. The end of standard input is the end.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Any, Self

from cyborg import conf as configuration
from cyborg_tools import program
from cyborg_tools.bench.parts import Parts


class Child:
    """The parent's end; a context manager.

    ``parts`` run in one process with ``setting`` (see ``Parts``). Raises RuntimeError when the
    child fails; its output is on standard error.
    """

    def __init__(self, parts: Sequence[str], setting: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=program.child_environment(),
        )
        self._send({"parts": list(parts), "setting": setting})

    def ask(self, **command: Any) -> Any:
        """Have a command carried out, and wait for its answer."""
        self._send(command)
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()

    def answer(self) -> Any:
        """Wait for an answer; the first one tells where the parts are reached, by name."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a child of the benchmark ended with {self._process.wait(30)}")
        return json.loads(line)

    def _send(self, document: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps(document), file=self._process.stdin, flush=True)


def main() -> int:
    """Run the child's end."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # Whatever else is printed must not come between the replies.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    wanted = json.loads(sys.stdin.readline())
    conf = configuration.prepare([], prog="bench", default_config_files=[])
    # Threads log alike in every run, and nobody reads them here.
    logging.disable(logging.WARNING)
    conf.set_override("auth_strategy", "noauth", group="api")
    conf.set_override("port", 0, group="api")
    running = Parts(conf, wanted["setting"])
    try:
        address: dict[str, str] = {}
        for part in wanted["parts"]:
            address |= running.start(part)
        _say(replies, address)
        for line in sys.stdin:
            _say(replies, running.ask(json.loads(line)))
    finally:
        running.stop()
    return 0


def _say(replies: IO[str], document: Any) -> None:
    print(json.dumps(document), file=replies, flush=True)


if __name__ == "__main__":
    sys.exit(main())
