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


def _situations() -> dict[str, tuple[str, str]]:
    """URLs that cannot be used, and the reason that each program must give."""
    if not SERVER:
        reason = "SQLite cannot open the file /nonexistent/"
        return {"account": ("sqlite:////nonexistent/cyborg.sqlite", reason)}
    server = sa.make_url(SERVER).set(database="x")
    if SERVER.startswith("mysql"):
        account = server.set(password=_PASSWORD), "Access denied for user '"
        missing = f"Unknown database '{_MISSING}' (1049)"
    else:
        # The server of the tests trusts every password, but knows no such account.
        unknown = server.set(username="cyborg-nobody", password=_PASSWORD)
        account = unknown, 'role "cyborg-nobody" does not exist'
        missing = f'database "{_MISSING}" does not exist'
    found = {
        "account": account,
        "database": (server.set(database=_MISSING), missing),
        "port": (server.set(port=1), "connection refused at 127.0.0.1:1"),
    }
    return {
        name: (url.render_as_string(hide_password=False), reason)
        for name, (url, reason) in found.items()
    }


SITUATIONS = _situations()
PEERS: Options = {
    "placement": {"auth_type": "none", "endpoint": "http://127.0.0.1:1"},
    "nova": {"auth_type": "none", "endpoint": "http://127.0.0.1:1"},
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_program_states_why_database_refuses_it(tmp_path: Path, situation: str) -> None:
    url, reason = SITUATIONS[situation]
    for status, program, *words in (
        (1, "dbsync", "version"),
        (3, "audit"),
        (2, "status", "upgrade", "check", "--json"),
    ):
        ended, out, err = run(Database(url), tmp_path, program, *words, more=PEERS)
        assert ended == status, program
        assert reason in (out + err).replace('\\"', '"'), program
        assert _PASSWORD not in out + err, program


def test_conductor_logs_why_database_refuses_it(tmp_path: Path) -> None:
    url, reason = SITUATIONS["account"]
    options: Options = {
        "DEFAULT": {"transport_url": "fake://", "host": "control-1", "state_path": tmp_path},
        "database": {"connection": url},
        **PEERS,
    }
    with Deployment(tmp_path, options) as deployment:
        conductor = deployment.begin(CONDUCTOR)
        conductor.wait_for("The database is not available: ")
        assert reason in conductor.output
        conductor.stop()
        assert _PASSWORD not in conductor.output
