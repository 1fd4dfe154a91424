# SPDX-License-Identifier: Apache-2.0
"""Commands that go on: watch, --watch of lists, and top."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cyborg.tests.fixtures.processes import at_home, script
from cyborg.tests.fixtures.waiting import ended
from cyborg.tests.unit.cli.conftest import CommandResult, Run
from cyborg.tests.unit.cli.service import (
    ARQ,
    DEVICE,
    RESOURCES,
    Answer,
    Service,
    error_body,
    following,
)
from cyborg_cli.base import ListCommand
from cyborg_cli.shell import COMMANDS
from cyborg_cli.terminal import CLEAR

EVENT = RESOURCES["events"][0]
LISTS = [
    name
    for name, entry in COMMANDS.items()
    if issubclass(entry.command, ListCommand) and entry.command.can_watch
]


def event(**more: Any) -> dict[str, Any]:
    return EVENT | more


Watch = Callable[..., CommandResult]


@pytest.fixture
def watch(program: Run, url: str, pauses: list[float]) -> Watch:
    """Run a command on a terminal until it has paused so many times."""

    def run(command: str, limit: int = 1, *, terminal: bool = True) -> CommandResult:
        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) >= limit:
                raise KeyboardInterrupt

        options = ("--os-auth-type", "none", "--os-endpoint", f"{url}/v2")
        return program(*options, *command.split(), terminal=terminal, pause=pause)

    return run


def test_watch_prints_a_line_for_each_event(cyborg: Run, service: Service) -> None:
    first = event(
        at="2026-11-01T10:00:00+00:00",
        noun="arq",
        subject_uuid=ARQ,
        action="BindFailed",
        state="BindFailed",
        reason="the image\nis missing",
        device_uuid=DEVICE,
        host="compute-1",
        instance_uuid=None,
        request_id="req-7",
    )
    second = event(noun="device", subject_uuid=DEVICE, device_uuid=DEVICE, action="lost")
    service.answers["/events"] = [
        Answer(200, following(marker=5)),
        Answer(200, following(first, marker=5, seen="3,7-9")),
        Answer(200, following(second, second)),
    ]
    result = cyborg("watch --count 2")
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == (
        f"2026-11-01T10:00:00+00:00 arq {ARQ} BindFailed device={DEVICE} host=compute-1 "
        "request=req-7: the image\\nis missing"
    )
    assert len(lines) == 2
    assert f"device {DEVICE} lost" in lines[1]
    assert [dict(request.query) for request in service.requests] == [
        {"wait": "50"},
        {"wait": "50", "marker": "5"},
        {"wait": "50", "marker": "5", "seen": "3,7-9"},
    ]


def test_watch_prints_json_lines(cyborg: Run, service: Service) -> None:
    service.answers["/events"] = [Answer(200, following(event(id=1), event(id=2)))]
    result = cyborg("watch --count 2 -f json")
    assert [json.loads(line)["id"] for line in result.out.splitlines()] == [1, 2]


def test_watch_goes_on_when_the_service_is_back(
    cyborg: Run, service: Service, pauses: list[float]
) -> None:
    gone = Answer(503, error_body("The database is not available."))
    service.answers["/events"] = [
        Answer(200, following(marker=5)),
        *[gone] * 20,
        Answer(200, following(event(id=6), marker=6)),
    ]
    result = cyborg("watch --count 1 -f json")
    assert (result.status, json.loads(result.out)["id"]) == (0, 6)
    gone_line, back_line = result.err.splitlines()
    assert gone_line.startswith("The database is not available (HTTP 503).")
    assert gone_line.endswith("Trying again, without losing events.")
    assert back_line == "The service answers again."
    assert len(pauses) == 20
    assert {request.query.get("marker") for request in service.requests[1:]} == {"5"}


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([Answer(503, error_body("Down."))], "Down (HTTP 503)"),
        ([Answer(403, error_body("No."))], "No (HTTP 403)"),
        ([Answer(200, following()), Answer(403, error_body("No."))], "No (HTTP 403)"),
        ([Answer(200, {"events": []})], "does not answer like the accelerator service"),
        (
            [Answer(200, {"events": [], "events_links": [{"rel": "next", "href": "http://a/b"}]})],
            "does not answer like the accelerator service",
        ),
        ([Answer(200, following()), *[Answer(502)] * 101], "HTTP 502"),
    ],
)
def test_watch_fails_when_it_cannot_go_on(
    cyborg: Run, service: Service, answers: list[Answer], words: str
) -> None:
    service.answers["/events"] = answers
    result = cyborg("watch")
    assert (result.status, result.out) == (1, "")
    assert words in result.err


def test_watch_pauses_when_the_service_cannot_wait(
    watch: Watch, service: Service, pauses: list[float]
) -> None:
    service.answers["/events"] = [
        Answer(200, following(), {"Retry-After": "5"}),
        Answer(200, following(), {"Retry-After": "99999"}),
        Answer(200, following(), {"Retry-After": "soon"}),
        Answer(200, following(), {"Retry-After": "1"}),
    ]
    result = watch("watch", limit=3)
    assert result.status == 130
    assert pauses == [5, 60, 1]


@pytest.mark.parametrize("command", LISTS)
def test_list_is_drawn_again_after_each_answer(
    watch: Watch, service: Service, pauses: list[float], command: str
) -> None:
    result = watch(f"{command} --watch", limit=3)
    assert result.status == 130
    assert result.out.count(CLEAR) == 3
    assert result.out.startswith(CLEAR)
    waits = [request for request in service.requests if "wait" in request.query]
    # The first position is known before the first list.
    assert service.requests[0] is waits[0]
    assert len(service.requests) - len(waits) >= 3
    assert pauses == [1.0] * 3


def test_list_is_drawn_regularly_for_users_without_events(
    watch: Watch, service: Service, pauses: list[float]
) -> None:
    service.answers["/events"] = [Answer(403, error_body("No."))]
    result = watch("arq-list --watch", limit=3)
    assert (result.status, result.out.count(CLEAR)) == (130, 3)
    assert pauses == [5.0] * 3


def test_list_stays_while_the_service_is_away(watch: Watch, service: Service) -> None:
    service.answers["/devices"] = [Answer(503, error_body("Down."))]
    result = watch("accelerator-list --watch", limit=2)
    assert result.out.count(CLEAR) == 1
    assert "Trying again." in result.err
    service.answers["/devices"] = [Answer(403, error_body("No."))]
    assert watch("accelerator-list --watch", limit=99).status == 1


def test_watch_of_a_list_needs_a_terminal(cyborg: Run, service: Service) -> None:
    result = cyborg("arq-list --watch")
    assert (result.status, result.out) == (1, "")
    assert "cyborg watch prints events as lines" in result.err
    assert service.requests == []


def device(name: str, **figures: float) -> dict[str, Any]:
    reading = {"at": "2026-11-01T10:00:00+00:00", "figures": figures} if figures else None
    return RESOURCES["devices"][0] | {"hostname": name, "reading": reading}


DEVICES = [
    device("none"),
    device("cold", utilization_ratio=0.1, temperature_celsius=30, power_watts=500),
    device(
        "hot",
        utilization_ratio=0.956,
        temperature_celsius=90,
        power_watts=99.54,
        memory_used_bytes=20 * 2**30,
        memory_total_bytes=80 * 2**30,
    ),
]


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ("", ["hot", "cold", "none"]),
        ("--sort-column power_W", ["cold", "hot", "none"]),
        ("--sort-column TEMP_C --sort-ascending", ["cold", "hot", "none"]),
        ("--sort-column hostname", ["cold", "hot", "none"]),
        ("--sort-column hostname --sort-descending", ["none", "hot", "cold"]),
        ("--sort-column memory_% --rows 1", ["hot"]),
    ],
)
def test_top_is_sorted(cyborg: Run, service: Service, options: str, order: list[str]) -> None:
    service.answers["/devices"] = [Answer(200, {"devices": DEVICES})]
    rows = cyborg(f"top -f json {options}").json
    assert [row["hostname"] for row in rows] == order


def test_top_shows_figures_in_their_units(cyborg: Run, service: Service) -> None:
    service.answers["/devices"] = [Answer(200, {"devices": DEVICES[2:]})]
    (row,) = cyborg("top -f json").json
    assert {name: row[name] for name in ("util_%", "memory_GiB", "memory_%", "temp_C")} == {
        "util_%": 95.6,
        "memory_GiB": 20.0,
        "memory_%": 25.0,
        "temp_C": 90,
    }
    assert (row["power_W"], row["measured_at"]) == (99.5, "2026-11-01T10:00:00+00:00")


def test_top_without_readings_says_why(cyborg: Run, service: Service) -> None:
    service.answers["/devices"] = [Answer(200, {"devices": DEVICES[:1]})]
    result = cyborg("top")
    assert result.status == 0
    assert "usage_interval" in result.err


def test_top_refuses_a_column_that_does_not_exist(cyborg: Run) -> None:
    result = cyborg("top --sort-column fans")
    assert result.status == 1
    assert "There is no column fans. The columns are hostname, address" in result.err


def test_top_is_drawn_again_on_a_terminal_only(
    watch: Watch, service: Service, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "8")
    service.answers["/devices"] = [Answer(200, {"devices": DEVICES})] * 3
    result = watch("top --interval 9", limit=2)
    assert (result.status, result.out.count(CLEAR)) == (130, 2)
    assert pauses == [9, 9]
    assert "1 more accelerators are not shown." in result.err
    once = watch("top --once", limit=9)
    assert (once.status, CLEAR in once.out) == (0, False)


def test_watch_ends_when_its_output_is_not_read_any_more(url: str, tmp_path: Path) -> None:
    """As with head; here, the service has events at each request."""
    command = [script("cyborg"), "--os-auth-type", "none", "--os-endpoint", f"{url}/v2", "watch"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=at_home(tmp_path)
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert b"Bound" in child.stdout.readline()
        child.stdout.close()
        assert (ended(child), child.stderr.read()) == (0, b"")
