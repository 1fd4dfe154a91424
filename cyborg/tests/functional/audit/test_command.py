# SPDX-License-Identifier: Apache-2.0
"""The cyborg-audit program on a database with inconsistencies."""

import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.cmd import audit as command
from cyborg.conductor.audit.auditor import AuditResult
from cyborg.db.models import Event, Host
from cyborg.model.audit_findings import Finding, Kind
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.functional import deployments, programs
from cyborg.tests.functional.audit.cloud import SmallCloud
from cyborg.tests.functional.audit.test_damages import (
    add_orphan,
    delete_server,
    delete_traits,
    kill_agent,
    strand_release,
)

#: So that nothing is excused, or blamed, by how long this takes.
_TIMES: Options = {
    "DEFAULT": {"transport_url": "fake://"},
    "agent": {"heartbeat_interval": 100},
    "conductor": {"lease": 100},
    "database": {"max_retries": 0},
    "nova": {"connect_retries": 0},
}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(cloud: SmallCloud, quiet_url: str, tmp_path: Path) -> Run:
    """Return a function that runs the command and returns status, output and error output."""

    def run(*words: str, **more: Mapping[str, object]) -> tuple[int, str, str]:
        here = deployments.options(
            tmp_path,
            database=quiet_url,
            exchange="audited",
            host="control",
            placement=cloud.placement,
            nova=cloud.nova.url,
        )
        deployment = Deployment(tmp_path, deployments.merged(here, _TIMES, more))
        done = programs.run_on(deployment, "cyborg-audit", *words)
        return done.returncode, done.stdout, done.stderr

    return run


def document(out: str) -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = json.loads(out)["findings"]
    return findings


def test_fix_repairs_the_finding_of_the_table(cloud: SmallCloud, run: Run) -> None:
    handle = strand_release(cloud, cloud.host())
    status, out, err = run()
    head, line, summary = out.splitlines()
    assert (status, err) == (2, "")
    assert head.split() == ["SEVERITY", "INVARIANT", "HOST", "WHAT", "FOUND", "CAUSE", "REMEDY"]
    assert line.split()[:2] == ["error", "one-holder"]
    assert (
        f"handle {handle}  stranded-release  It is to be released, but there is no work for it."
        in line
    )
    assert line.index("stranded-release") == head.index("FOUND")
    assert "--fix" in line
    assert summary == "1 error found; 1 can be repaired with --fix."
    assert "\033" not in out
    status, out, _ = run("--fix")
    assert (status, out.splitlines()[-1]) == (0, "1 error found, 1 repaired.")
    assert out.splitlines()[1].endswith("repaired")
    assert run()[:2] == (0, "Nothing found.\n")


def test_host_limits_the_json_report(cloud: SmallCloud, run: Run) -> None:
    host, other = cloud.host(), cloud.host()
    kill_agent(cloud, host)
    strand_release(cloud, other)
    status, out, _ = run("--host", host, "--format", "json")
    assert status == 1
    (finding,) = document(out)
    assert finding == {
        "severity": "warning",
        "invariant": "parts-work",
        "kind": "silent-agent",
        "host": host,
        "noun": "host",
        "key": host,
        "cause": finding["cause"],
        "remedy": f"Start cyborg-agent on {host}. If it runs, its log says why it cannot "
        "reach the message bus.",
        "fix": None,
        "outcome": None,
    }
    status, out, err = run("--host", "nowhere")
    assert (status, out) == (3, "")
    assert err == "cyborg-audit: Host nowhere could not be found.\n"


def test_fix_exits_with_2_when_an_error_has_no_repair(cloud: SmallCloud, run: Run) -> None:
    host = cloud.host()
    instance, provider = delete_server(cloud, host), add_orphan(cloud, host)
    # Make the events old enough to rule out a boot in progress.
    cloud.cases.execute(sa.update(Event).values(at_ms=1))
    status, out, _ = run("--fix", "--format", "json")
    assert status == 2
    outcomes = {finding["key"]: finding["outcome"] for finding in document(out)}
    assert outcomes == {instance: "repaired", provider: None}


def test_fix_gives_difference_in_placement_to_the_agent(cloud: SmallCloud, run: Run) -> None:
    host = cloud.host()
    delete_traits(cloud, host)
    # The difference is older than the time that the agent has to publish.
    cloud.cases.execute(sa.update(Host).values(updated_ms=1))
    before = cloud.cases.generation(host)
    status, out, _ = run("--fix", "--format", "json")
    assert (status, [finding["outcome"] for finding in document(out)]) == (
        0,
        ["given to its agent"],
    )
    assert cloud.cases.generation(host) == before + 1
    cloud.publish(host)
    assert run()[:2] == (0, "Nothing found.\n")


def test_fix_repairs_nothing_when_nova_does_not_answer(cloud: SmallCloud, run: Run) -> None:
    handle = strand_release(cloud, cloud.host())
    status, out, err = run(
        "--fix", "--format", "json", nova={"endpoint": "http://127.0.0.1:9/v2.1"}
    )
    assert status == 3
    assert [(finding["key"], finding["outcome"]) for finding in document(out)] == [(handle, None)]
    assert json.loads(out)["unasked"][0].startswith("Nova is not available")
    assert err.splitlines()[-1] == "cyborg-audit: Nothing was repaired."
    assert {kind.value for kind, _ in cloud.found()} == {"stranded-release"}


def test_audit_exits_with_3_and_reason_when_it_cannot_start(run: Run, tmp_path: Path) -> None:
    for group, values, message in (
        (
            "database",
            {"connection": "sqlite:////nowhere/at/all.db"},
            "The database is not available",
        ),
        ("nova", {"auth_type": "nonsense"}, "[nova]"),
        ("database", {"connection": f"sqlite:///{tmp_path}/empty.sqlite"}, "The schema is"),
    ):
        status, out, err = run(**{group: values})
        assert (status, out) == (3, "")
        assert err.startswith(f"cyborg-audit: {message}")
        assert ("cyborg-dbsync upgrade" in err) is (group == "database")
        assert "Traceback" not in err
    assert run("--format", "xml")[0] == 2


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_table_has_colours_on_a_terminal_without_no_color(
    monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    finding = Finding(Kind.DRIFT, "provider", "p", "It differs.", host="h")
    out = Terminal()
    command.print_table(command.Report(AuditResult((finding,))), out)
    lines = out.getvalue().splitlines()
    assert ("\033[33mwarning \033[0m" in lines[1]) is (not no_color)
    plain = [re.sub(r"\033\[\d+m", "", line) for line in lines]
    assert plain[0].index("CAUSE") == plain[1].index("It differs.")
    assert plain[2] == "1 warning found; 1 can be repaired with --fix."
