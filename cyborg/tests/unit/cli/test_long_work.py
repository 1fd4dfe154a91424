# SPDX-License-Identifier: Apache-2.0
"""Long verbs: waited for with a line per host, or not; and what their end means for a script."""

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
    fault,
    operation,
    result,
)

LONG = [
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
LONG.append(CREATE)
LOOK = f"/operations/{OPERATION}"
DONE = operation("succeeded", result("a", "succeeded"))


@pytest.fixture
def course(service: Service) -> None:
    """Two hosts, one of which is done before the other."""
    service.course = [
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


@pytest.mark.usefixtures("course")
@pytest.mark.parametrize("command", LONG)
def test_long_work_is_seen_to_its_end(command: str, cyborg: Run, pauses: list[float]):
    ran = cyborg(f"{command} -f json")
    assert ran.shown["state"] == "succeeded"
    assert ran.shown["finished_at"] == "2026-11-01T10:00:09Z"
    # A line for what changed, none for what did not; and none of it in the output.
    assert ran.err.splitlines() == [
        "a: running",
        "b: waiting",
        "a: succeeded, found 1",
        "b: running",
        "b: succeeded, found 0",
    ]
    assert len(pauses) == 3
    assert pauses == sorted(pauses)


@pytest.mark.usefixtures("course")
@pytest.mark.parametrize("command", LONG)
def test_nobody_waits_who_does_not_want_to(
    command: str, cyborg: Run, service: Service, pauses: list[float]
):
    ran = cyborg(f"{command} --no-wait -f value -c uuid -c state")
    assert (ran.status, ran.out.split(), ran.err) == (0, [OPERATION, "running"], "")
    assert (len(service.asked), pauses) == (1, [])


@pytest.mark.usefixtures("course")
def test_progress_has_colours_on_a_terminal(cyborg: Run):
    ran = cyborg("discover-services -f value -c state", terminal=True)
    assert ran.err.splitlines()[-1] == "b: \033[32msucceeded\033[0m, found 0"
    assert ran.out == "succeeded\n"


@pytest.mark.usefixtures("course")
def test_quiet_means_no_progress(program: Run, url: str):
    options = ("-q", "--os-auth-type", "none", "--os-endpoint", url)
    ran = program(*options, "discover-services", "-f", "value", "-c", "state")
    assert (ran.status, ran.out, ran.err) == (0, "succeeded\n", "")


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_one_host_that_failed_fails_the_command(state: str, cyborg: Run, service: Service):
    service.course = [
        operation("running", result("a", "running"), result("b", "running")),
        operation(
            state,
            result("a", "succeeded"),
            result("b", "failed", error="fake_driver is not installed."),
        ),
    ]
    ran = cyborg("install-driver fake_driver -f value -c state")
    assert (ran.status, ran.out) == (1, f"{state}\n")  # what became of the others is shown
    assert ran.err.splitlines()[-1] == "b: fake_driver is not installed."


def test_work_that_failed_as_a_whole_tells_why(cyborg: Run, service: Service):
    service.course = [operation("failed", error="The reboot failed.")]
    ran = cyborg(f"attach-instance {INSTANCE}")
    assert ran.status == 1
    assert ran.err == "The reboot failed.\n"


def test_work_that_failed_before_it_was_waited_for_fails_too(cyborg: Run, service: Service):
    service.course = [operation("failed")]
    ran = cyborg("discover-services --no-wait")
    assert (ran.status, ran.err) == (1, "It failed without a reason.\n")


def test_a_service_that_restarts_meanwhile_is_waited_for(
    cyborg: Run, service: Service, pauses: list[float]
):
    service.course = [operation("running", result("a", "running")), DONE]
    service.answers[LOOK] = [Answer(503, fault("Not now.")), Answer(502, b"<html>")] * 3
    ran = cyborg("discover-services")
    assert ran.status == 0
    assert len(pauses) == 7


def test_a_service_that_stays_away_is_not_waited_for_forever(cyborg: Run, service: Service):
    service.course = [operation("running", result("a", "running"))]
    service.answers[LOOK] = [Answer(503, fault("Not now."))] * 50
    ran = cyborg("discover-services")
    assert ran.status == 1
    assert f"The work goes on without this command: see operation {OPERATION}." in ran.err
    assert len(service.asked) == 12


def test_an_operation_that_is_refused_while_waiting_ends_it(cyborg: Run, service: Service):
    service.course = [operation("running", result("a", "running"))]
    service.answers[LOOK] = [Answer(403, fault("Not yours."))]
    ran = cyborg("discover-services")
    assert ran.status == 1
    assert "Not yours (HTTP 403)." in ran.err
    assert OPERATION in ran.err
    assert len(service.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        Answer(503, fault(str(exception.OutcomeUnknown(peer="cyborg-conductor")))),
        Answer(502, b"<html>Bad gateway</html>"),
        Answer(504, b"<html>Gateway time-out</html>"),
    ],
    ids=lambda answer: str(answer.status),
)
def test_an_unknown_outcome_names_the_id_that_makes_repeating_safe(
    answer: Answer, cyborg: Run, service: Service
):
    service.answers["/services/discover"] = [answer]
    ran = cyborg("discover-services")
    assert ran.status == 1
    used = service.last.operation
    assert used is not None
    assert f"--operation-id {used}" in ran.err
    assert cyborg("discover-services", "--operation-id", used).status == 0
    assert service.asked[1].operation == str(UUID(used))


def test_an_agent_that_is_down_is_no_unknown_outcome(cyborg: Run, service: Service):
    down = exception.Unavailable(peer="cyborg-agent on compute-1", reason="it is down")
    service.answers["/services/discover"] = [Answer(503, fault(str(down)))]
    ran = cyborg("discover-services")
    assert ran.err == (
        "cyborg-agent on compute-1 is not available: it is down (HTTP 503). Repeating the command "
        "later is safe.\n"
    )


@pytest.mark.parametrize("status", [400, 403, 404, 409])
def test_a_refusal_is_no_unknown_outcome(status: int, cyborg: Run, service: Service):
    service.answers["/drivers/d"] = [Answer(status, fault("ARQ 1 is bound."))]
    ran = cyborg("uninstall-driver d")
    assert ran.status == 1
    assert "ARQ 1 is bound (HTTP" in ran.err
    assert "--operation-id" not in ran.err


def test_an_operation_can_be_waited_for_later(cyborg: Run, service: Service, pauses: list[float]):
    service.course = [operation("running", result("a", "running")), DONE]
    ran = cyborg(f"operation-show {OPERATION} --wait -f value -c state")
    assert (ran.status, ran.out) == (0, "succeeded\n")
    assert len(pauses) == 1


def test_showing_an_operation_that_failed_fails(cyborg: Run, service: Service):
    service.course = [operation("failed", result("b", "failed", error="gone"))]
    ran = cyborg(f"operation-show {OPERATION} -f value -c state")
    assert (ran.status, ran.out, ran.err) == (1, "failed\n", "b: gone\n")


@pytest.mark.parametrize(("end", "status"), [("enabled", 0), ("failed", 1)])
def test_the_set_up_of_an_accelerator_can_be_waited_for(
    end: str, status: int, cyborg: Run, service: Service, pauses: list[float]
):
    path = f"/devices/{DEVICE}"
    ended = {"uuid": DEVICE, "status": end, "status_reason": "No firmware." * (end == "failed")}
    installing = Answer(200, {"uuid": DEVICE, "status": "installing"})
    service.answers[path] = [installing, installing, Answer(503, fault("Not now.")), installing]
    service.answers[path].append(Answer(200, ended))
    ran = cyborg(f"accelerator-update {DEVICE} --status ready --wait -f value -c status")
    assert (ran.status, ran.out) == (status, f"{end}\n")
    assert ran.err == (f"{DEVICE}: No firmware.\n" if status else "")
    assert [one.method for one in service.asked] == ["PATCH", "GET", "GET", "GET", "GET"]
    assert len(pauses) == 3


def test_nobody_waits_for_a_set_up_unasked(cyborg: Run, service: Service, pauses: list[float]):
    service.answers[f"/devices/{DEVICE}"] = [Answer(200, {"status": "installing"})]
    ran = cyborg(f"accelerator-update {DEVICE} --status ready -f value")
    assert (ran.status, ran.out, pauses) == (0, "installing\n", [])


def test_what_was_created_is_shown_once_it_is_there(cyborg: Run, service: Service):
    made = operation("succeeded", result("a", "succeeded", result={"device": DEVICE}))
    service.course = [operation("running", result("a", "running")), made]
    assert cyborg(f"{CREATE} -f value -c uuid").out == f"{DEVICE}\n"
    service.course = [made]
    assert cyborg(f"{CREATE} --no-wait -f value -c uuid").out == f"{OPERATION}\n"


def test_what_a_host_cannot_have_is_not_created(cyborg: Run, service: Service):
    service.course = [operation("failed", result("a", "failed", error="it is not on the bus"))]
    ran = cyborg(f"{CREATE} -f value -c state")
    assert (ran.status, ran.out) == (1, "failed\n")
    assert "a: it is not on the bus" in ran.err


def test_who_interrupts_is_told_that_the_work_goes_on(program: Run, url: str, service: Service):
    service.course = [operation("running", result("a", "running"))]

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    options = ("--os-auth-type", "none", "--os-endpoint", url)
    ran = program(*options, "discover-services", pause=interrupted)
    assert ran.status == 130
    assert ran.err.splitlines()[-1] == f"The work goes on: see operation {OPERATION}."
