# SPDX-License-Identifier: Apache-2.0
"""cyborg-audit as an operator runs it, on a database that was damaged by hand."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import cyborg
from cyborg.cmd import audit as command
from cyborg.conductor.audit.auditor import Verdict
from cyborg.db.models import Event, Host
from cyborg.model.audit_findings import Finding, Kind
from cyborg.tests.fixtures.placement import TOKEN
from cyborg.tests.functional.audit.cloud import SmallCloud
from cyborg.tests.functional.audit.test_damages import (
    add_orphan,
    delete_server,
    delete_traits,
    kill_agent,
    leak_handle,
)

ROOT = Path(cyborg.__file__).parent.parent
_CONF = """\
[DEFAULT]
periodic_interval = 1
[agent]
heartbeat_interval = 100
[database]
connection = {database}
max_retries = 0
[placement]
auth_type = admin_token
endpoint = {placement}
token = {token}
[nova]
auth_type = none
endpoint = {nova}
connect_retries = 0
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(cloud: SmallCloud, quiet_url: str, tmp_path: Path) -> Run:
    """Run the command; gives exit status, standard output and standard error."""

    def run(*words: str, **values: str) -> tuple[int, str, str]:
        peers = {
            "database": quiet_url,
            "placement": cloud.placement.url,
            "token": TOKEN,
            "nova": cloud.nova.url,
        }
        config = tmp_path / "cyborg.conf"
        config.write_text(_CONF.format(**(peers | values)))
        done = subprocess.run(
            [sys.executable, "-m", "cyborg.cmd.audit", "--config-file", str(config), *words],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def document(out: str) -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = json.loads(out)["findings"]
    return findings


def test_nothing_wrong(cloud: SmallCloud, run: Run) -> None:
    cloud.bind(cloud.host())
    assert run()[:2] == (0, "Nothing found.\n")


def test_a_table_then_the_repair_then_nothing(cloud: SmallCloud, run: Run) -> None:
    handle = leak_handle(cloud, cloud.host())
    status, out, err = run()
    head, line, summary = out.splitlines()
    assert (status, err) == (2, "")
    assert head.split() == ["SEVERITY", "INVARIANT", "HOST", "WHAT", "FOUND", "CAUSE", "REMEDY"]
    assert line.split()[:2] == ["error", "one-holder"]
    assert f"handle {handle}  leaked-handle  It is held, but no ARQ has it." in line
    assert line.index("leaked-handle") == head.index("FOUND")
    assert "--fix" in line
    assert summary == "1 error found; 1 can be repaired with --fix."
    assert "\033" not in out
    status, out, _ = run("--fix")
    assert (status, out.splitlines()[-1]) == (0, "1 error found, 1 repaired.")
    assert out.splitlines()[1].endswith("repaired")
    assert run()[:2] == (0, "Nothing found.\n")


def test_json_and_one_host(cloud: SmallCloud, run: Run) -> None:
    host, other = cloud.host(), cloud.host()
    kill_agent(cloud, host)
    leak_handle(cloud, other)
    status, out, _ = run("--host", host, "--format", "json")
    assert status == 1
    (found,) = document(out)
    assert found == {
        "severity": "warning",
        "invariant": "parts-work",
        "kind": "silent-agent",
        "host": host,
        "noun": "host",
        "key": host,
        "cause": found["cause"],
        "remedy": f"Start cyborg-agent on {host}. If it runs, its log says why it cannot "
        "reach the message bus.",
        "fix": None,
        "outcome": None,
    }
    status, out, err = run("--host", "nowhere")
    assert (status, out) == (3, "")
    assert err == "cyborg-audit: Host nowhere could not be found.\n"


def test_what_cannot_be_repaired_stays_an_error(cloud: SmallCloud, run: Run) -> None:
    host = cloud.host()
    instance, provider = delete_server(cloud, host), add_orphan(cloud, host)
    # It was no boot that has just begun.
    cloud.execute(sa.update(Event).values(at_ms=1))
    status, out, _ = run("--fix", "--format", "json")
    assert status == 2
    outcomes = {one["key"]: one["outcome"] for one in document(out)}
    assert outcomes == {instance: "repaired", provider: None}


def test_what_differs_in_placement_is_given_to_the_agent(cloud: SmallCloud, run: Run) -> None:
    host = cloud.host()
    delete_traits(cloud, host)
    # The agent had time enough.
    cloud.execute(sa.update(Host).values(updated_ms=1))
    before = cloud.generation(host)
    status, out, _ = run("--fix", "--format", "json")
    assert (status, [one["outcome"] for one in document(out)]) == (0, ["given to its agent"])
    assert cloud.generation(host) == before + 1
    cloud.publish(host)
    assert run()[:2] == (0, "Nothing found.\n")


def test_nobody_is_touched_while_a_peer_is_away(cloud: SmallCloud, run: Run) -> None:
    handle = leak_handle(cloud, cloud.host())
    status, out, err = run("--fix", "--format", "json", nova="http://127.0.0.1:9/v2.1")
    assert status == 3
    assert [(one["key"], one["outcome"]) for one in document(out)] == [(handle, None)]
    assert json.loads(out)["unasked"][0].startswith("Nova is not available")
    assert err.splitlines()[-1] == "cyborg-audit: Nothing was repaired."
    assert {kind.value for kind, _ in cloud.found()} == {"leaked-handle"}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"database": "sqlite:////nowhere/at/all/cyborg.sqlite"}, "The database is not available"),
        ({"nova": "x\nauth_type = nonsense"}, "[nova]"),
    ],
)
def test_what_cannot_begin_says_why(run: Run, values: dict[str, str], sentence: str) -> None:
    status, out, err = run(**values)
    assert (status, out) == (3, "")
    assert err.startswith(f"cyborg-audit: {sentence}")
    assert "Traceback" not in err


def test_a_schema_of_another_release(run: Run, tmp_path: Path) -> None:
    status, _, err = run(database=f"sqlite:///{tmp_path}/empty.sqlite")
    assert status == 3
    assert "cyborg-dbsync upgrade" in err


def test_wrong_usage(run: Run) -> None:
    assert run("--format", "xml")[0] == 2


class Terminal(io.StringIO):
    """Standard output with somebody in front of it."""

    def isatty(self) -> bool:
        """Yes."""
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    one = Finding(Kind.DRIFT, "provider", "p", "It differs.", host="h")
    out = Terminal()
    command.show_table(command.Report(Verdict((one,))), out)
    lines = out.getvalue().splitlines()
    assert ("\033[33mwarning \033[0m" in lines[1]) is (not no_color)
    plain = [re.sub(r"\033\[\d+m", "", line) for line in lines]
    assert plain[0].index("CAUSE") == plain[1].index("It differs.")
    assert plain[2] == "1 warning found; 1 can be repaired with --fix."
