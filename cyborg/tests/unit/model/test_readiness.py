# SPDX-License-Identifier: Apache-2.0
"""The health view: state, cause and remedy of each process, judged together with all conductors."""

from datetime import UTC, datetime

import pytest

from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.model.readiness import (
    BUS,
    DATABASE,
    Cloud,
    Component,
    Level,
    Look,
    Process,
    State,
    bus_remedy,
    view,
    worst,
)

DOWN_AFTER = {AGENT: 30_000, API: 30_000, CONDUCTOR: 10_000}
NOW = int(datetime(2026, 3, 4, 13, 10, tzinfo=UTC).timestamp() * 1000)
#: Five minutes before NOW: 13:05.
SINCE = NOW - 300_000
REFUSED = "the message bus refuses the connection (530 NOT_ALLOWED - vhost cyborg not found)"


def process(
    binary: str, silent: int = 1, *, host: str = "h", error: str | None = None, since: int = SINCE
) -> Process:
    """A process that was heard ``silent`` seconds ago, deaf since ``since`` if it is."""
    ms = silent * 1000
    return Process(binary, host, ms, NOW - ms, error, since if error else None)


def judge(subject: Process, *others: Process) -> Component:
    return Cloud([subject, *others], DOWN_AFTER).process(subject)


FINE = process(CONDUCTOR, host="c1")
DEAF = process(CONDUCTOR, host="c1", error=REFUSED)
OTHER_DEAF = process(CONDUCTOR, host="c2", error=REFUSED, since=SINCE - 60_000)
DEAD = process(CONDUCTOR, 3600, host="c1")


@pytest.mark.parametrize(
    ("subject", "others", "state", "level", "words"),
    [
        (process(AGENT), [FINE], State.UP, Level.OK, []),
        (process(API), [FINE], State.UP, Level.OK, []),
        (FINE, [], State.UP, Level.OK, []),
        # It was killed and started again: the row of the killed process is left.
        (
            DEAD,
            [FINE],
            State.DOWN,
            Level.WARNING,
            ["60 minutes; another cyborg-conductor on this host is up", "cyborg service-delete"],
        ),
        # It lives, and no driver works.
        (
            Process(AGENT, "h", 1, NOW, status_reason="No driver works: a: b."),
            [FINE],
            State.FAILED,
            Level.WARNING,
            ["No driver works: a: b.", "Correct the configuration of the drivers"],
        ),
        # It lives, and receives nothing.
        (
            process(AGENT, error="403 ACCESS_REFUSED"),
            [FINE],
            State.NOT_RECEIVING,
            Level.WARNING,
            ["receives no requests since 2026-03-04 13:05:00 UTC: 403 ACCESS_REFUSED."],
        ),
        (DEAF, [process(CONDUCTOR, host="c2")], State.NOT_RECEIVING, Level.WARNING, [REFUSED]),
        (DEAF, [], State.NOT_RECEIVING, Level.FAILURE, [REFUSED, "virtual host"]),
        # It is silent, and the conductors are well.
        (
            process(AGENT, 3600),
            [FINE],
            State.DOWN,
            Level.WARNING,
            ["No heartbeat for 60 minutes.", "Start cyborg-agent on h."],
        ),
        (process(API, 3600), [FINE], State.DOWN, Level.WARNING, ["Start cyborg-api on h."]),
        (process(AGENT, 120), [DEAF, process(CONDUCTOR, host="c2")], State.DOWN, Level.WARNING, []),
        # It is silent since about the time at which the conductors became deaf.
        (
            process(AGENT, 290),
            [DEAF, OTHER_DEAF],
            State.NOT_HEARD,
            Level.WARNING,
            [f"the conductors receive nothing ({REFUSED})", "virtual host"],
        ),
        (process(API, 290), [DEAF], State.NOT_HEARD, Level.WARNING, ["receive nothing"]),
        (process(AGENT, 325), [DEAF], State.NOT_HEARD, Level.WARNING, ["receive nothing"]),
        # It was silent before: the bus is not the reason.
        (process(AGENT, 3600), [DEAF], State.DOWN, Level.WARNING, ["Start cyborg-agent"]),
        # Nobody is there who could hear it.
        (process(AGENT, 3590), [DEAD], State.NOT_HEARD, Level.WARNING, ["no conductor is up"]),
        (process(AGENT, 7200), [DEAD], State.DOWN, Level.WARNING, ["Start cyborg-agent"]),
        (process(AGENT, 60), [], State.NOT_HEARD, Level.WARNING, ["no conductor is up"]),
        (DEAD, [], State.DOWN, Level.FAILURE, ["Start cyborg-conductor on c1."]),
        (DEAD, [process(CONDUCTOR, host="c2")], State.DOWN, Level.WARNING, ["60 minutes"]),
    ],
)
def test_state_of_a_process_follows_from_its_row_and_the_conductors(
    subject: Process, others: list[Process], state: State, level: Level, words: list[str]
) -> None:
    component = judge(subject, *others)
    assert (component.state, component.level) == (state, level)
    for word in words:
        assert word in component.sentence
    assert bool(component.cause) is bool(component.remedy) is (state is not State.UP)


@pytest.mark.parametrize(
    ("processes", "trouble", "state", "cause"),
    [
        ([FINE], "", State.UP, ""),
        ([FINE], None, State.UNCHECKED, ""),
        (
            [DEAF, OTHER_DEAF, process(AGENT, 290)],
            "no answer",
            State.DOWN,
            f"No conductor answers since 2026-03-04 13:05:00 UTC: {REFUSED}.",
        ),
        (
            [DEAF, process(CONDUCTOR, host="c2")],
            "",
            State.UP,
            "",
        ),
        ([DEAD], "no answer", State.DOWN, "No conductor is up since 2026-03-04 12:10:00 UTC."),
        (
            # The conductor that stored this heartbeat has removed its row.
            [DEAD, process(AGENT, 290)],
            "no answer",
            State.DOWN,
            "No conductor is up since 2026-03-04 13:05:10 UTC.",
        ),
        ([], "no answer", State.DOWN, "No conductor is up."),
        ([FINE], "connection refused", State.DOWN, "No conductor answers: connection refused."),
    ],
)
def test_message_bus_state_combines_conductors_and_caller(
    processes: list[Process], trouble: str | None, state: State, cause: str
) -> None:
    bus = next(one for one in view(processes, DOWN_AFTER, trouble=trouble) if one.name == BUS)
    assert (bus.state, bus.cause) == (state, cause)
    assert bus.level is (Level.FAILURE if state is State.DOWN else Level.OK)


def test_message_bus_is_judged_without_rows_of_the_database() -> None:
    looks = [Look(DATABASE, False, "Access denied.", "Check the account.")]
    database, bus = view([], DOWN_AFTER, looks=looks, trouble="")
    assert (database.state, database.level) == (State.DOWN, Level.FAILURE)
    assert bus.state is State.UP
    _, bus = view([], DOWN_AFTER, looks=looks, trouble="connection refused")
    assert bus.cause == "No conductor answers: connection refused."


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (REFUSED, "virtual host"),
        ("(403) ACCESS_REFUSED - Login was refused using authentication mechanism", "password"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired", "certificates"),
        ("[Errno 111] Connection refused", "Start the message broker"),
        (
            "406 PRECONDITION_FAILED: in vhost '/'. The exchange cyborg has another durability",
            "remove the exchange and the queues",
        ),
        ("something new", "transport_url"),
    ],
)
def test_remedy_follows_from_error_of_the_broker(reason: str, words: str) -> None:
    assert words in bus_remedy(reason)


def test_worst_component_decides_the_level():
    looks = [Look("Nova", None, "No account.")]
    peer, *components = view([FINE, process(AGENT, 3600)], DOWN_AFTER, looks=looks, trouble="")
    assert worst(components) is Level.WARNING
    assert worst([]) is Level.OK
    # What is not checked is no failure.
    assert (peer.state, peer.level, peer.cause) == (State.UNCHECKED, Level.OK, "No account.")
    # No start of an agent is advised while the conductors are deaf.
    assert "Start" not in judge(process(AGENT, 290), DEAF).sentence
