# SPDX-License-Identifier: Apache-2.0
"""Drains of hosts and accelerators: what is printed, and how the command ends."""

from typing import Any

import pytest

from cyborg.tests.unit.cli.conftest import Run
from cyborg.tests.unit.cli.service import (
    AGENT,
    DEVICE,
    DRAIN,
    INSTANCE,
    Answer,
    Service,
    error_body,
)

SERVER = DRAIN["servers"][0]
OTHER = SERVER | {"uuid": DEVICE, "name": None, "movable": False, "target": None, "reason": "Full."}


def drains(service: Service, path: str, *answers: dict[str, Any]) -> None:
    """Let the next requests for a drain have these answers."""
    service.answers[path] = [Answer(200, {"drain": DRAIN | answer}) for answer in answers]


def test_dry_run_names_the_servers_that_cannot_move(cyborg: Run, service: Service) -> None:
    drains(service, f"/services/{AGENT}/drain", {"status": "enabled", "servers": [SERVER, OTHER]})
    outcome = cyborg("host-drain compute-1 --dry-run -f json")
    assert outcome.status == 0
    assert {request.method for request in service.requests} == {"GET"}
    assert [(row["server"], row["movable"], row["target"]) for row in outcome.json] == [
        (INSTANCE, True, "compute-2"),
        (DEVICE, False, None),
    ]
    assert outcome.err.splitlines() == [
        "Note: Nova's filters are not asked.",
        f"compute-1: 1 of 2 servers cannot move now: {DEVICE}.",
        "Dry run: nothing was changed.",
    ]
    assert "cannot move" not in cyborg("host-drain compute-1 --dry-run").err


@pytest.mark.parametrize(
    ("command", "path", "change"),
    [
        (
            "host-drain compute-1 --reason fans",
            f"/services/{AGENT}",
            {"status": "draining", "disabled_reason": "fans"},
        ),
        (
            f"accelerator-drain {DEVICE} --reason fans",
            f"/devices/{DEVICE}",
            {"status": "draining", "status_reason": "fans"},
        ),
        (f"accelerator-drain {DEVICE}", f"/devices/{DEVICE}", {"status": "draining"}),
    ],
)
def test_drain_lists_what_is_left(
    command: str, path: str, change: dict[str, str], cyborg: Run, service: Service
) -> None:
    outcome = cyborg(f"{command} -f value -c server")
    (request,) = (request for request in service.requests if request.method != "GET")
    assert (request.method, request.path, request.body) == ("PATCH", path, change)
    assert service.last.path == f"{path}/drain"
    assert (outcome.status, outcome.out) == (0, f"{INSTANCE}\n")
    assert "is draining: 1 server is left (web-1)." in outcome.err


def test_wait_shows_the_progress_and_ends_when_it_is_drained(
    cyborg: Run, service: Service, pauses: list[float]
) -> None:
    path = f"/services/{AGENT}/drain"
    drains(
        service,
        path,
        *({"servers": [SERVER, OTHER]}, {"servers": [SERVER]}, {"servers": [SERVER]}),
        {"status": "drained", "servers": []},
    )
    service.answers[path].insert(2, Answer(503, error_body("Not now.")))
    outcome = cyborg("host-drain compute-1 --wait -f value")
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err.splitlines() == [
        f"compute-1 is draining: 2 servers are left (web-1, {DEVICE}).",
        "compute-1 is draining: 1 server is left (web-1).",
        "compute-1 is drained: no server has a unit of it.",
    ]
    assert len(pauses) == 4


def test_wait_fails_when_the_drain_is_called_off(cyborg: Run, service: Service) -> None:
    drains(service, f"/devices/{DEVICE}/drain", {}, {"status": "enabled"})
    outcome = cyborg(f"accelerator-drain {DEVICE} --wait")
    assert outcome.status == 1
    assert f"The drain was called off: {DEVICE} is enabled." in outcome.err


def test_interrupt_leaves_the_drain(program: Run, url: str, service: Service) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    options = ("--os-auth-type", "none", "--os-endpoint", url)
    outcome = program(*options, "host-drain", "compute-1", "--wait", pause=interrupt)
    assert outcome.status == 130
    assert outcome.err.splitlines()[-1] == (
        "The drain continues: cyborg host-resume compute-1 ends it."
    )
    assert [request.method for request in service.requests].count("PATCH") == 1
