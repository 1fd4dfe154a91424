# SPDX-License-Identifier: Apache-2.0
"""``instance-move``: what it checks, what it lets Nova do, and where the server is in the end."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.unit.cli.compute import OFFLOADED, PREFIX, SERVER, Nova, State
from cyborg.tests.unit.cli.conftest import CommandResult, Run
from cyborg.tests.unit.cli.service import EXPLANATION, Answer, Service, error_body

EXPLAIN = "/device_profiles/fpga/explain"
UNSHELVE = ("unshelve", {"host": "c2"})
FITS = {"explanation": EXPLANATION | {"fits": True, "summary": "1 host can."}}
FULL = {"explanation": EXPLANATION | {"fits": False, "summary": "All units are in use."}}


@pytest.fixture
def nova() -> Nova:
    return Nova()


@pytest.fixture
def move(program: Run, url: str, nova: Nova, tmp_path: Path, service: Service) -> Iterator[Run]:
    """Run the command for the server and host c2; hosts have room unless a test says otherwise."""
    service.answers[EXPLAIN] = [Answer(200, FITS) for _ in range(8)]
    with Loopback(nova) as compute:
        cloud = {
            "auth_type": "none",
            "accelerator_endpoint_override": f"{url}/v2",
            "compute_endpoint_override": f"{compute.url}{PREFIX}",
        }
        (tmp_path / "clouds.yaml").write_text(yaml.safe_dump({"clouds": {"cloud": cloud}}))

        def run(*options: str, server: str = SERVER) -> CommandResult:
            line = ("--os-cloud", "cloud", "instance-move", server, "--host", "c2")
            return program(*line, "-f", "json", *options)

        yield run


def explained(service: Service, *answers: Any) -> None:
    service.answers[EXPLAIN] = [Answer(200, answer) for answer in answers]


def test_server_is_shelved_and_unshelved_on_the_host(
    move: Run, nova: Nova, service: Service
) -> None:
    moved = move()
    assert {name: moved.json[name] for name in ("from", "to", "status")} == {
        "from": "c1",
        "to": "c2",
        "status": "ACTIVE",
    }
    assert nova.performed == [("shelve", None), UNSHELVE]
    asked = [request for request in service.requests if request.path == EXPLAIN]
    # Before the server is shelved, and after.
    assert [request.query for request in asked] == [{"host": "c2", "flavor": "g.small"}] * 2
    assert "ACTIVE, task shelveing" in moved.err


def test_dry_run_changes_nothing(move: Run, nova: Nova) -> None:
    shown = move("--dry-run")
    assert shown.json["from"] == "c1"
    assert "Would shelve and unshelve the server." in shown.err
    assert nova.performed == []


def test_server_is_found_by_its_name(move: Run, nova: Nova) -> None:
    assert move("--dry-run", server="vm").json["server"] == SERVER
    nova.names.append({"id": "other", "name": "vm"})
    assert "Several servers have the name vm" in move(server="vm").err
    assert "No server has the ID or the name v" in move(server="v").err


def test_server_without_accelerators_moves(move: Run, nova: Nova, service: Service) -> None:
    nova.profile = None
    assert move().json["accelerators"] == []
    assert service.requests == []


def test_server_that_was_off_is_stopped_again(move: Run, nova: Nova) -> None:
    nova.state = State("SHUTOFF")
    assert move().json["status"] == "SHUTOFF"
    assert nova.performed == [("shelve", None), UNSHELVE, ("os-stop", None)]


def test_shelved_server_is_removed_from_its_host(move: Run, nova: Nova) -> None:
    """With ``shelved_offload_time`` Nova leaves it there for a while."""
    nova.actions["shelve"] = lambda state, _arguments: replace(state, status="SHELVED")
    assert move().status == 0
    assert nova.performed == [("shelve", None), ("shelveOffload", None), UNSHELVE]


def test_server_that_nova_removes_itself_meanwhile_moves(move: Run, nova: Nova) -> None:
    nova.state, nova.pending = OFFLOADED, [State("SHELVED")]
    nova.refusals["shelveOffload"] = [(409, "Cannot 'shelveOffload' while it is offloaded")]
    assert move().status == 0


def test_interrupted_move_goes_on(move: Run, nova: Nova) -> None:
    nova.state, nova.pending = OFFLOADED, [State(task="shelving")]
    assert move().status == 0
    assert nova.performed == [UNSHELVE]


@pytest.mark.parametrize("task", ["spawning", None])
@pytest.mark.parametrize("history", [["unshelve", "shelve"], ["stop", "unshelve", "shelve"]])
def test_interrupted_move_that_nova_ends_itself_succeeds(
    move: Run, nova: Nova, task: str | None, history: list[str]
) -> None:
    nova.state, nova.history = State(host="c2"), history
    nova.pending = [replace(OFFLOADED, task=task)] if task else []
    moved = move()
    assert (moved.json["status"], moved.json["from"]) == ("ACTIVE", "c1")
    assert "Server vm has moved to host c2." in moved.err
    assert nova.performed == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": State("ERROR")}, "has the status ERROR"),
        ({"state": State("VERIFY_RESIZE")}, "has the status VERIFY_RESIZE"),
        ({"state": State(task="rebooting")}, "is busy (ACTIVE, task rebooting)"),
        ({"state": State(host="c2")}, "is on host c2 already"),
        ({"state": State("SHELVED", "c2")}, "is on host c2 already"),
        ({"is_admin": False}, "only an administrator"),
        ({"services": []}, "No nova-compute runs on host c2"),
        ({"services": [{"state": "down", "status": "enabled"}]}, "is down"),
        ({"services": [{"state": "up", "status": "disabled"}]}, "is disabled"),
        ({"refusals": {f"GET /servers/{SERVER}": [(406, "no 2.91")]}}, "Nova is too old"),
        ({"refusals": {"GET /os-services": [(403, "Policy")]}}, "Only an administrator"),
    ],
)
def test_move_is_refused_before_anything_changes(
    move: Run, nova: Nova, changes: dict[str, Any], reason: str
) -> None:
    vars(nova).update(changes)
    refused = move()
    assert refused.status == 1
    assert reason in refused.err
    assert nova.performed == []


def test_full_host_is_refused_before_anything_changes(
    move: Run, nova: Nova, service: Service
) -> None:
    explained(service, FULL)
    refused = move()
    assert refused.status == 1
    assert "Host c2 cannot give the accelerators of fpga: All units are in use." in refused.err
    assert nova.performed == []


def test_server_returns_if_the_host_is_full_meanwhile(
    move: Run, nova: Nova, service: Service
) -> None:
    """Its own host cleans the units first."""
    explained(service, FITS, FULL, FULL, FITS)
    failed = move()
    assert failed.status == 1
    assert failed.out == ""
    assert "Server vm is on host c1 (ACTIVE) again." in failed.err
    assert nova.performed == [("shelve", None), ("unshelve", {"host": "c1"})]


def test_server_returns_if_nova_does_not_start_it(move: Run, nova: Nova) -> None:
    nova.actions["unshelve"] = lambda state, arguments: (
        State(host="c1") if arguments["host"] == "c1" else state
    )
    failed = move()
    assert failed.status == 1
    assert "Nova did not start the server on host c2" in failed.err
    assert nova.performed[-1] == ("unshelve", {"host": "c1"})


def test_server_that_can_not_return_stays_shelved(move: Run, nova: Nova) -> None:
    nova.actions["unshelve"] = lambda state, _arguments: state
    failed = move()
    assert failed.status == 1
    assert "It cannot return" in failed.err
    assert "Server vm is on no host (SHELVED_OFFLOADED)" in failed.err


def test_server_that_was_shelved_stays_so_after_a_failure(move: Run, nova: Nova) -> None:
    nova.state = OFFLOADED
    nova.refusals["unshelve"] = [(409, "the host is not in the availability zone")]
    failed = move()
    assert failed.status == 1
    assert "Nova refuses: the host is not in the availability zone (HTTP 409)." in failed.err
    assert "with another host, or --host c1, where it was" in failed.err
    assert nova.state == OFFLOADED


def test_shelve_that_fails_leaves_the_server(move: Run, nova: Nova) -> None:
    nova.actions["shelve"] = lambda state, _arguments: state
    failed = move()
    assert failed.status == 1
    assert "Nova did not shelve server vm; it is on host c1 (ACTIVE)" in failed.err


def test_command_gives_up_waiting_and_does_not_return_the_server(
    move: Run, nova: Nova, pauses: list[float]
) -> None:
    nova.actions["unshelve"] = lambda state, _arguments: replace(state, task="spawning")
    failed = move("--step-timeout", "20s")
    assert failed.status == 1
    assert "Gave up waiting after 20 s" in failed.err
    assert nova.performed == [("shelve", None), UNSHELVE]
    assert sum(pauses) >= 20


def test_flavor_that_is_gone_is_left_out(move: Run, nova: Nova, service: Service) -> None:
    gone = Answer(404, error_body("Flavor g.small could not be found."))
    service.answers[EXPLAIN] = [gone, Answer(200, FITS), gone, Answer(200, FITS)]
    assert move().status == 0


@pytest.mark.parametrize("answer", [(500, "boom"), (503, "later")])
def test_nova_that_fails_is_named(move: Run, nova: Nova, answer: tuple[int, str]) -> None:
    nova.refusals["GET /os-services"] = [answer]
    failed = move()
    assert failed.status == 1
    assert f"Nova refuses: {answer[1]} (HTTP {answer[0]})." in failed.err
