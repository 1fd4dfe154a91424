# SPDX-License-Identifier: Apache-2.0
"""Commands that start operations: waiting, progress, exit status and unknown outcomes."""

from typing import Any
from uuid import UUID

import pytest

from cyborg import exception
from cyborg.tests.unit.cli.conftest import Run
from cyborg.tests.unit.cli.service import (
    AGENT,
    DEVICE,
    INSTANCE,
    OPERATION,
    Answer,
    Service,
    error_body,
    operation,
    result,
)

OPERATION_COMMANDS = [
    "install-driver fake_driver",
    "uninstall-driver fake_driver",
    "update-driver fake_driver",
    "discover-services",
    f"attach-instance {INSTANCE}",
    f"detach-instance {INSTANCE}",
    f"service-delete {AGENT}",
]
CREATE = (
    "accelerator-create --host a --driver d --backend b --model m --type FPGA --resource-class FPGA"
)
OPERATION_COMMANDS.append(CREATE)
POLL_PATH = f"/operations/{OPERATION}"
ENDED = operation("succeeded", result("a", "succeeded"))


@pytest.fixture
def two_hosts(service: Service) -> None:
    """Let the operation run on two hosts that end one after the other."""
    service.operation_states = [
        operation("running", result("a", "running"), result("b", "waiting")),
        operation("running", result("a", "succeeded", result={"found": 1}), result("b", "running")),
        operation("running", result("a", "succeeded", result={"found": 1}), result("b", "running")),
        operation(
            "succeeded",
            result("a", "succeeded", result={"found": 1}),
            result("b", "succeeded", result={"found": 0}),
            finished_at="2026-11-01T10:00:09Z",
        ),
    ]


@pytest.mark.usefixtures("two_hosts")
@pytest.mark.parametrize("command", OPERATION_COMMANDS)
def test_operation_is_polled_until_it_ends_with_a_line_per_change(
    command: str, cyborg: Run, service: Service, pauses: list[float]
):
    states = list(service.operation_states)
    outcome = cyborg(f"{command} --no-wait -f value -c uuid -c state")
    assert (outcome.status, outcome.out.split(), outcome.err) == (0, [OPERATION, "running"], "")
    assert (len(service.requests), pauses) == (1, [])
    service.operation_states = states
    outcome = cyborg(f"{command} -f json")
    assert outcome.json["state"] == "succeeded"
    assert outcome.json["finished_at"] == "2026-11-01T10:00:09Z"
    # There is a line for each changed state only, and none of them is in the output.
    assert outcome.err.splitlines() == [
        "a: running",
        "b: waiting",
        "a: succeeded, found 1",
        "b: running",
        "b: succeeded, found 0",
    ]
    assert len(pauses) == 3
    assert pauses == sorted(pauses)


@pytest.mark.usefixtures("two_hosts")
def test_progress_has_colours_on_a_terminal(cyborg: Run):
    outcome = cyborg("discover-services -f value -c state", terminal=True)
    assert outcome.err.splitlines()[-1] == "b: \033[32msucceeded\033[0m, found 0"
    assert outcome.out == "succeeded\n"


@pytest.mark.usefixtures("two_hosts")
def test_quiet_prints_no_progress(cyborg: Run):
    outcome = cyborg("-q discover-services -f value -c state")
    assert (outcome.status, outcome.out, outcome.err) == (0, "succeeded\n", "")


FAILED = result("b", "failed", error="fake_driver is not installed.")
#: Command, final state of its operation, and the last line of the errors.
FAILURES = [
    (
        "install-driver d",
        operation("succeeded", result("a", "succeeded"), FAILED),
        "b: fake_driver",
    ),
    ("install-driver d", operation("failed", result("a", "succeeded"), FAILED), "b: fake_driver"),
    (CREATE, operation("failed", FAILED), "b: fake_driver is not installed."),
    (
        f"operation-show {OPERATION}",
        operation("failed", FAILED),
        "b: fake_driver is not installed.",
    ),
    (f"attach-instance {INSTANCE}", operation("failed", error="No reboot."), "No reboot."),
    ("discover-services --no-wait", operation("failed"), "The operation failed without a reason."),
]


@pytest.mark.parametrize(("command", "ended", "message"), FAILURES)
def test_command_fails_when_its_operation_or_one_host_failed(
    command: str, ended: dict[str, Any], message: str, cyborg: Run, service: Service
):
    service.operation_states = [ended]
    outcome = cyborg(f"{command} -f value -c state")
    # The results of the other hosts are shown.
    assert (outcome.status, outcome.out) == (1, f"{ended['state']}\n")
    assert outcome.err.splitlines()[-1].startswith(message)


def test_polling_continues_after_transient_errors(
    cyborg: Run, service: Service, pauses: list[float]
):
    service.operation_states = [operation("running", result("a", "running")), ENDED]
    service.answers[POLL_PATH] = [Answer(503, error_body("Not now.")), Answer(502, b"<html>")] * 3
    outcome = cyborg("discover-services")
    assert outcome.status == 0
    assert len(pauses) == 7


@pytest.mark.parametrize(
    ("answer", "requests", "message"),
    [
        (Answer(503, error_body("Not now.")), 12, "The operation continues without this command"),
        (Answer(403, error_body("Not yours.")), 2, "Not yours (HTTP 403)."),
    ],
)
def test_polling_stops_at_a_permanent_error_or_too_many_transient_ones(
    answer: Answer, requests: int, message: str, cyborg: Run, service: Service
):
    service.operation_states = [operation("running", result("a", "running"))]
    service.answers[POLL_PATH] = [answer] * 50
    outcome = cyborg("discover-services")
    assert (outcome.status, len(service.requests)) == (1, requests)
    assert message in outcome.err
    assert f"see operation {OPERATION}." in outcome.err


UNKNOWN = exception.OutcomeUnknown(peer="cyborg-conductor")


@pytest.mark.parametrize(
    "answer",
    [
        Answer(503, error_body(str(UNKNOWN))),
        Answer(502, b"<html>Bad gateway</html>"),
        Answer(504, b"<html>Gateway time-out</html>"),
    ],
    ids=lambda answer: str(answer.status),
)
def test_unknown_outcome_names_the_operation_id_for_repeating(
    answer: Answer, cyborg: Run, service: Service
):
    service.answers["/services/discover"] = [answer]
    outcome = cyborg("discover-services")
    assert outcome.status == 1
    request_key = service.last.request_key
    assert request_key is not None
    assert f"--operation-id {request_key}" in outcome.err
    assert cyborg("discover-services", "--operation-id", request_key).status == 0
    assert service.requests[1].request_key == str(UUID(request_key))


def test_agent_that_is_down_is_not_reported_as_unknown_outcome(cyborg: Run, service: Service):
    down = exception.Unavailable(peer="cyborg-agent on compute-1", reason="it is down")
    service.answers["/services/discover"] = [Answer(503, error_body(str(down)))]
    outcome = cyborg("discover-services")
    assert outcome.err == (
        "cyborg-agent on compute-1 is not available: it is down (HTTP 503). It is safe to repeat "
        "the command later.\n"
    )


def test_client_error_is_not_reported_as_unknown_outcome(cyborg: Run, service: Service):
    for status in (400, 403, 404, 409):
        service.answers["/drivers/d"] = [Answer(status, error_body("ARQ 1 is bound."))]
        outcome = cyborg("uninstall-driver d")
        assert outcome.status == 1
        assert "ARQ 1 is bound (HTTP" in outcome.err
        assert "--operation-id" not in outcome.err


def test_operation_show_wait_polls_until_the_operation_ends(
    cyborg: Run, service: Service, pauses: list[float]
):
    service.operation_states = [operation("running", result("a", "running")), ENDED]
    outcome = cyborg(f"operation-show {OPERATION} --wait -f value -c state")
    assert (outcome.status, outcome.out) == (0, "succeeded\n")
    assert len(pauses) == 1


@pytest.mark.parametrize(("end", "status"), [("enabled", 0), ("failed", 1)])
def test_accelerator_update_wait_polls_until_set_up_ends(
    end: str, status: int, cyborg: Run, service: Service, pauses: list[float]
):
    path = f"/devices/{DEVICE}"
    final = {"uuid": DEVICE, "status": end, "status_reason": "No firmware." * (end == "failed")}
    installing = Answer(200, {"uuid": DEVICE, "status": "installing"})
    service.answers[path] = [
        installing,
        installing,
        Answer(503, error_body("Not now.")),
        installing,
    ]
    service.answers[path].append(Answer(200, final))
    outcome = cyborg(f"accelerator-update {DEVICE} --status ready --wait -f value -c status")
    assert (outcome.status, outcome.out) == (status, f"{end}\n")
    assert outcome.err == (f"{DEVICE}: No firmware.\n" if status else "")
    assert [request.method for request in service.requests] == ["PATCH", "GET", "GET", "GET", "GET"]
    assert len(pauses) == 3


def test_accelerator_update_without_wait_does_not_poll(
    cyborg: Run, service: Service, pauses: list[float]
):
    service.answers[f"/devices/{DEVICE}"] = [Answer(200, {"status": "installing"})]
    outcome = cyborg(f"accelerator-update {DEVICE} --status ready -f value -c status")
    assert (outcome.status, outcome.out, pauses) == (0, "installing\n", [])


def test_accelerator_create_shows_the_new_accelerator(cyborg: Run, service: Service):
    created = operation("succeeded", result("a", "succeeded", result={"device": DEVICE}))
    service.operation_states = [operation("running", result("a", "running")), created]
    assert cyborg(f"{CREATE} -f value -c uuid").out == f"{DEVICE}\n"
    service.operation_states = [created]
    assert cyborg(f"{CREATE} --no-wait -f value -c uuid").out == f"{OPERATION}\n"


def test_interrupt_names_the_operation_that_continues(program: Run, url: str, service: Service):
    service.operation_states = [operation("running", result("a", "running"))]

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    options = ("--os-auth-type", "none", "--os-endpoint", url)
    outcome = program(*options, "discover-services", pause=interrupt)
    assert outcome.status == 130
    assert outcome.err.splitlines()[-1] == f"The operation continues: see operation {OPERATION}."
