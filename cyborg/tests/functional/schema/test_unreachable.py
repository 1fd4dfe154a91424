# SPDX-License-Identifier: Apache-2.0
"""The programs on a database that refuses them: each says the reason, and no password."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.model.process import CONDUCTOR
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.functional.schema.commands import run
from cyborg.tests.functional.schema.databases import SERVER

_PASSWORD = "not-the-password-4711"
_MISSING = "cyborg_no_such_database"


def _on_server(**changes: object) -> str:
    url = sa.make_url(SERVER).set(**{"database": "x", **changes})  # type: ignore[arg-type]
    return url.render_as_string(hide_password=False)


def _situations() -> list[tuple[str, str]]:
    """URLs that cannot be used, and the reason that each program must give."""
    if SERVER.startswith("mysql"):
        return [
            (_on_server(password=_PASSWORD), "Access denied for user '"),
            (_on_server(database=_MISSING), f"Unknown database '{_MISSING}' (1049)"),
            (_on_server(port=1), "connection refused at 127.0.0.1:1"),
        ]
    if SERVER.startswith("postgresql"):
        return [
            # The server of the tests trusts every password, but knows no such account.
            (
                _on_server(username="cyborg-nobody", password=_PASSWORD),
                'role "cyborg-nobody" does not exist',
            ),
            (_on_server(database=_MISSING), f'database "{_MISSING}" does not exist'),
            (_on_server(port=1), "connection refused at 127.0.0.1:1"),
        ]
    return [("sqlite:////nonexistent/cyborg.sqlite", "SQLite cannot open the file /nonexistent/")]


@pytest.mark.parametrize(("url", "reason"), _situations())
def test_each_program_states_why_database_refuses_it(tmp_path: Path, url: str, reason: str) -> None:
    db = Database(url)
    said = {
        "dbsync": run(db, tmp_path, "dbsync", "version"),
        "audit": run(
            db,
            tmp_path,
            "audit",
            more={
                "placement": {"auth_type": "none", "endpoint": "http://127.0.0.1:1"},
                "nova": {"auth_type": "none", "endpoint": "http://127.0.0.1:1"},
            },
        ),
        "status": run(db, tmp_path, "status", "upgrade", "check", "--json"),
    }
    assert {name: status for name, (status, _, _) in said.items()} == {
        "dbsync": 1,
        "audit": 3,
        "status": 2,
    }
    for name, (_, out, err) in said.items():
        assert reason in (out + err).replace('\\"', '"'), name
        assert _PASSWORD not in out + err, name


@pytest.mark.parametrize(("url", "reason"), _situations())
def test_conductor_logs_why_database_refuses_it(tmp_path: Path, url: str, reason: str) -> None:
    options: Options = {
        "DEFAULT": {"transport_url": "fake://", "host": "control-1", "state_path": tmp_path},
        "database": {"connection": url},
        "placement": {"auth_type": "none", "endpoint": "http://127.0.0.1:1"},
        "nova": {"auth_type": "none", "endpoint": "http://127.0.0.1:1"},
    }
    with Deployment(tmp_path, options) as deployment:
        conductor = deployment.start(CONDUCTOR, "--config-file", str(deployment.conf))
        conductor.wait_for("The database is not available: ")
        assert reason in conductor.output
        conductor.stop()
        assert _PASSWORD not in conductor.output
