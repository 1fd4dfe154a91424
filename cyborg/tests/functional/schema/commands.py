# SPDX-License-Identifier: Apache-2.0
"""cyborg-dbsync and cyborg-status as an operator runs them, on a configuration in a directory."""

import json
from dataclasses import dataclass
from pathlib import Path

from cyborg.db.engine import Database
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.functional import programs
from cyborg.tests.functional.deployments import merged


def run(
    db: Database, directory: Path, program: str, *words: str, more: Options | None = None
) -> tuple[int, str, str]:
    """Exit status, output and complaints; ``more`` are options besides the database's."""
    url = db.engine.url.render_as_string(hide_password=False)
    own: Options = {"database": {"connection": url, "max_retries": 0}}
    deployment = Deployment(directory, merged(own, more or {}))
    done = programs.run_on(deployment, f"cyborg-{program}", *words)
    return done.returncode, done.stdout, done.stderr


@dataclass(frozen=True)
class Checked:
    """What ``cyborg-status upgrade check`` found, by the name of the check; 0, 1 or 2."""

    status: int
    results: dict[str, int]
    details: dict[str, str]


def checked(db: Database, directory: Path, *, more: Options | None = None) -> Checked:
    """The command's own answer in JSON."""
    status, out, err = run(db, directory, "status", "upgrade", "check", "--json", more=more)
    assert out.startswith("{"), err
    found = json.loads(out)["checks"]
    return Checked(
        status,
        {one["check"]: one["result"] for one in found},
        {one["check"]: one["details"] or "" for one in found},
    )
