# SPDX-License-Identifier: Apache-2.0
"""A process that the tests did not start: it counts as one that uses devices."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def another_process(code: str, path: str) -> Iterator[int]:
    """Let a process that this one did not start run Python code about a path."""
    script = f"{code}; print(os.getpid(), flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", f"import mmap, os, sys; path = sys.argv[1]; {script}", path]
    # The parent ends, so the process is not one of those that this process has started.
    parent = subprocess.Popen(
        ["sh", "-c", 'exec 3<&0; "$@" <&3 &', "sh", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    number = int(parent.stdout.readline())
    parent.wait()
    try:
        yield number
    finally:
        parent.stdin.close()
        assert parent.stdout.read() == ""
