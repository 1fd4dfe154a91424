# SPDX-License-Identifier: Apache-2.0
"""cyborg-dbsync and cyborg-status as an operator runs them, on a configuration in a directory."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from oslo_config import cfg

import cyborg
from cyborg.cmd.status import CHECKS, Checks
from cyborg.conf import opts
from cyborg.db.engine import Database
from cyborg.tests.fixtures.processes import Options

_ROOT = Path(cyborg.__file__).parent.parent


def run(
    db: Database, directory: Path, program: str, *words: str, more: Options | None = None
) -> tuple[int, str, str]:
    """Exit status, output and complaints; ``more`` are options besides the database's."""
    config = _configured(db, directory, more)
    done = subprocess.run(
        [sys.executable, "-m", f"cyborg.cmd.{program}", "--config-file", str(config), *words],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@dataclass(frozen=True)
class Checked:
    """What ``cyborg-status upgrade check`` found, by the name of the check; 0, 1 or 2."""

    status: int
    results: dict[str, int]
    details: dict[str, str]


def by_command(db: Database, directory: Path, *, more: Options | None = None) -> Checked:
    """The command's own answer in JSON."""
    status, out, err = run(db, directory, "status", "upgrade", "check", "--json", more=more)
    assert out.startswith("{"), err
    found = json.loads(out)["checks"]
    return Checked(
        status,
        {one["check"]: one["result"] for one in found},
        {one["check"]: one["details"] or "" for one in found},
    )


def checked(db: Database, directory: Path, *, more: Options | None = None) -> Checked:
    """The same in this process, which costs a tenth."""
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf(
        [],
        default_config_files=[str(_configured(db, directory, more))],
        default_config_dirs=[],
    )
    site = Checks(conf)
    found = {name: check(site) for name, check in CHECKS}
    return Checked(
        max(int(one.code) for one in found.values()),
        {name: int(one.code) for name, one in found.items()},
        {name: one.details or "" for name, one in found.items()},
    )


def _configured(db: Database, directory: Path, more: Options | None) -> Path:
    url = db.engine.url.render_as_string(hide_password=False)
    options: dict[str, dict[str, object]] = {"database": {"connection": url, "max_retries": 0}}
    for group, values in (more or {}).items():
        options.setdefault(group, {}).update(values)
    config = directory / "cyborg.conf"
    lines = []
    for group, values in options.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in values.items())]
    config.write_text("\n".join(lines))
    return config
