# SPDX-License-Identifier: Apache-2.0
"""Our programs as processes that are forked from one that has imported them all.

A new interpreter would spend two seconds on its imports for each of them.
``daemons/test_unconfigured`` also starts one in the usual way, with ``CYBORG_TEST_FULL`` all.
"""

import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from cyborg.tests.fixtures.processes import Deployment, at_home, script
from cyborg.tests.fixtures.waiting import PATIENCE, NotInTime

_NAMES = ("agent", "api", "audit", "conductor", "dbsync", "status")
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, *(f"cyborg.cmd.{name}" for name in _NAMES)])


def run(
    program: str, *words: str, environment: Mapping[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; the caller looks at its status and output."""
    with TemporaryDirectory() as directory:
        files = [Path(directory) / name for name in ("out", "err")]
        line = [script(program), *words]
        process = _FORKS.Process(target=_main, args=(line, dict(environment), cwd, files))
        process.start()
        process.join(PATIENCE)
        ended = process.exitcode
        if ended is None:
            process.kill()
            raise NotInTime(f"the end of {program}: {files[1].read_text()}")
        out, err = (file.read_text() for file in files)
        return subprocess.CompletedProcess(line, ended, out, err)


def run_on(deployment: Deployment, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program on the configuration of a deployment to its end."""
    conf = ("--config-file", str(deployment.conf))
    return run(program, *conf, *words, environment=at_home(deployment.directory))


def _main(
    line: list[str], environment: dict[str, str], cwd: Path | None, files: list[Path]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    if cwd is not None:
        os.chdir(cwd)
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = line
    name = Path(line[0]).name.removeprefix("cyborg-")
    sys.exit(importlib.import_module(f"cyborg.cmd.{name}").main())
