# SPDX-License-Identifier: Apache-2.0
"""The directive ``picture`` draws a diagram from the tables of the code when documents are built.

``.. picture:: arq-states`` has the states of an ARQ, ``device-states``, ``unit-states`` and
``health-states`` those of a device, a unit and the health of a device. ``processes`` shows who
calls whom, ``bind`` the recorded way of one request, ``dashboard`` the panels of the dashboard.

The picture is a part of the page. Where a page is not HTML, its text alternative stands there.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from html import unescape
from pathlib import Path
from types import MappingProxyType
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from svg import CHARACTER, COLOURS, Arrow, Call, Canvas, Link, Node, grid, sequence, tracks

from cyborg.model import arq, device, health
from cyborg.model.health import CONDITIONS, IGNORED, PROBATION, Condition, DeviceHealth
from cyborg.model.moves import Move
from cyborg.model.probation import AT_ONCE, Rules, State
from cyborg.model.process import AGENT, API, CONDUCTOR

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "etc" / "monitoring" / "dashboard.json"
SEQUENCES = ROOT / "doc" / "source" / "contributor" / "sequences.rst"
_OUTSIDE, _STORE, _RESERVED = "#f6f0e4", "#e9f3ea", "#f9e9e4"

#: What else holds in a state of a unit.
UNIT_NOTES: Mapping[device.HandleState, tuple[str, ...]] = {
    device.HandleState.READY: (
        "an ARQ has it, or the next",
        "bind can claim it;",
        "dirty from the bind on",
    ),
    device.HandleState.RELEASING: (
        "the guest is gone; dirty,",
        "cleaning while the host",
        "removes data: reserved",
    ),
    device.HandleState.QUARANTINED: (
        "dirty; cleaning failed,",
        "the conductor retries:",
        "reserved",
    ),
}

#: Who there is, by column and row.
PARTICIPANTS = (
    Node("Users, operators", 0, 0, "openstack, cyborg, SDK", _OUTSIDE),
    Node("Nova", 0, 2, "asks, is notified", _OUTSIDE),
    Node("Keystone", 0, 1, "tokens, quotas", _OUTSIDE),
    Node(API, 1, 0, "any number"),
    Node(CONDUCTOR, 1, 1.5, "any number"),
    Node("SQL database", 2, 0, "MariaDB, PostgreSQL", _STORE),
    Node("Glance", 2, 2.1, "images of devices", _OUTSIDE),
    Node(AGENT, 1, 3, "one per compute host"),
    Node("Placement", 2, 1.1, "providers, inventories", _OUTSIDE),
    Node("cyborg-privileged", 2, 3, "on the compute host"),
    Node("Accelerators", 1, 4, "drivers read and prepare", _OUTSIDE),
)
#: Who calls whom, and about what.
LINKS = (
    Link("Users, operators", API, "REST"),
    Link("Nova", API, "create, bind,\ndelete ARQs", 0.17),
    Link(API, "Keystone", "validates tokens", 0.6),
    Link(API, "SQL database", "reads"),
    Link(API, CONDUCTOR, "changes, over RabbitMQ"),
    Link(CONDUCTOR, "SQL database", "owns, writes", 0.4),
    Link(CONDUCTOR, "Nova", "events, servers", 0.5),
    Link(CONDUCTOR, "Placement", "for hosts\nthat are down", 0.6),
    Link(AGENT, CONDUCTOR, "reports,\nheartbeats", 0.45),
    Link(CONDUCTOR, AGENT, "desired state,\nprepare, release", 0.55),
    Link(AGENT, "Placement", "publishes", 0.6),
    Link(AGENT, "Glance", "loads images", 0.6),
    Link(AGENT, "cyborg-privileged", "actions that\nneed rights"),
    Link(AGENT, "Accelerators", "discovers, prepares, releases"),
)


def arrows_of(moves: Mapping[StrEnum, Move[StrEnum]]) -> list[Arrow]:
    """Return an arrow for each event of a table, with the sources in the order of the states."""
    return [
        Arrow(event.value, tuple(sorted(state.value for state in move.sources)), move.target.value)
        for event, move in moves.items()
    ]


def sentences_of(arrows: Iterable[Arrow]) -> list[str]:
    """Return a sentence for each arrow."""
    return [
        f"{arrow.label}: from {', '.join(arrow.sources)} to {arrow.target}." for arrow in arrows
    ]


def states(
    title: str,
    boxes: Mapping[str, Sequence[str]],
    arrows: Sequence[Arrow],
    *,
    name: str,
    fills: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Draw a table of states."""
    unmoved = [box for box in boxes if not any(box in (*a.sources, a.target) for a in arrows)]
    sentences = [f"{title}. The states are {', '.join(boxes)}.", *sentences_of(arrows)]
    sentences += [f"No event concerns {box}." for box in unmoved]
    sentences += [f"{box}: {' '.join(notes)}." for box, notes in boxes.items() if notes]
    return tracks(Canvas(name, title, sentences), boxes, arrows, fills)


def arq_states() -> str:
    """Draw ``cyborg.model.arq.MOVES``."""
    boxes = {state.value: () for state in arq.State}
    title = "States of an accelerator request (ARQ)"
    return states(title, boxes, arrows_of(arq.MOVES), name="arq-states")


def device_states() -> str:
    """Draw ``cyborg.model.device.MOVES``."""
    boxes = {state.value: () for state in device.DeviceStatus}
    return states("States of a device", boxes, arrows_of(device.MOVES), name="device-states")


def unit_states() -> str:
    """Draw ``cyborg.model.device.HANDLE_MOVES``."""
    boxes = {state.value: UNIT_NOTES.get(state, ()) for state in device.HandleState}
    reserved = dict.fromkeys((state.value for state in device.UNRELEASED), _RESERVED)
    arrows = arrows_of(device.HANDLE_MOVES)
    title = "States of a unit (attach handle)"
    return states(title, boxes, arrows, name="unit-states", fills=reserved)


def health_arrows() -> list[Arrow]:
    """Return what each event makes of each word for the health of a device, asked of the rules."""
    parking = Rules(probation=1000, faults=1, window=1000)
    probing = Rules(probation=1000)

    def report(word: Condition, rules: Rules) -> Callable[[State], State]:
        return lambda state: state.after_report(DeviceHealth("", word), 1, rules)

    events: dict[str, Callable[[State], State]] = {
        **{f"{word.value} is reported": report(word, probing) for word in Condition},
        "a fault too often": report(Condition.DRAIN, parking),
        "the time is over": lambda state: state.settled(20, probing),
        "operator: --health ignore": lambda state: state.ignored(100),
        "operator: --health auto": lambda state: state.released(1, AT_ONCE),
    }
    targets: dict[tuple[str, str], list[str]] = {}
    for event, change in events.items():
        for word in CONDITIONS:
            reported = word if word in list(Condition) else Condition.OK.value
            until = 10 if word in (IGNORED, PROBATION) else None
            after = change(State(health=word, reported=reported, until=until)).health
            if after is not None and after != word:
                targets.setdefault((event, after), []).append(word)
    return [
        Arrow(event, tuple(sources), target)
        for (event, target), sources in targets.items()
        # What is reported again after a parking or a release is an effect of the report.
        if event != "a fault too often" or target == health.PARKED
    ]


def health_states() -> str:
    """Draw the rules of ``cyborg.model.probation``."""
    boxes = {
        word: ("units are offered" if health.offered(word) else "units are reserved",)
        for word in CONDITIONS
    }
    reserved = {word: _RESERVED for word in CONDITIONS if not health.offered(word)}
    arrows = health_arrows()
    return states("Health of a device", boxes, arrows, name="health-states", fills=reserved)


def processes() -> str:
    """Draw who talks to whom."""
    title = "Processes, and who calls whom"
    sentences = [f"{title}.", *(_sentence(link) for link in LINKS)]
    return grid(Canvas("processes", title, sentences), PARTICIPANTS, LINKS)


def _sentence(link: Link) -> str:
    return f"{link.source} to {link.target}: {' '.join(link.label.split())}."


def recorded(name: str) -> tuple[list[str], list[Call]]:
    """Return the participants and the calls of a recorded diagram of the page of sequences."""
    text = SEQUENCES.read_text().partition(f".. recorded: {name}\n")[2]
    block = text.partition(".. code-block:: text\n\n")[2].partition("\n\n")[0]
    head, *rows = (line[3:] for line in block.splitlines())
    participants = head.split()
    marks = [match.start() for match in re.finditer(r"\|", rows[0])]
    calls: list[Call] = []
    for row in rows[1:]:
        lines, words = row[: marks[-1] + 1], row[marks[-1] + 1 :].strip()
        arrow = re.search(r"[<-].*[->]", lines)
        if arrow is None:
            if words and calls:
                last = calls.pop()
                calls.append(Call(last.source, last.target, f"{last.text}\n{words}", last.answer))
            continue
        left, right = marks.index(arrow.start() - 1), marks.index(arrow.end())
        ends = (right, left) if arrow[0].startswith("<") else (left, right)
        calls.append(Call(*ends, words, answer=" " in arrow[0]))
    return participants, calls


def bind() -> str:
    """Draw the recorded way of the request that binds an ARQ."""
    participants, calls = recorded("bind")
    title = "The way of one request: a bind"
    sentences = [
        f"{participants[call.source]} {'answers' if call.answer else 'to'} "
        f"{participants[call.target]}: {' '.join(call.text.split())}."
        for call in calls
    ]
    return sequence(Canvas("bind", title, [f"{title}.", *sentences]), participants, calls)


def dashboard() -> str:
    """Draw the panels of ``etc/monitoring/dashboard.json`` at their places."""
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    title = "Panels of the dashboard"
    canvas = Canvas("dashboard", title, [f"{title}.", *_panel_sentences(panels)])
    wide, high = 40.0, 22.0
    for panel in panels:
        place = panel["gridPos"]
        x, y = 8 + place["x"] * wide, 8 + place["y"] * high
        width, height = place["w"] * wide - 6, place["h"] * high - 6
        if panel["type"] == "row":
            canvas.text(x + 2, y + 15, panel["title"], font_weight="bold", font_size="14")
            canvas.path(((x, y + 19), (x + width, y + 19)), "#999")
            continue
        canvas.box((x, y), (width, height), "#fbfbfb")
        most = int((width - 14) / CHARACTER)
        lines = list(_wrapped(panel["title"], most))
        for number, line in enumerate(lines):
            canvas.text(x + 8, y + 17 + 14 * number, line, font_weight="bold")
        _sketch(canvas, panel, (x + 8, y + 24 + 14 * (len(lines) - 1)), (x + width - 8, y + height))
    return canvas.finish()


def _panel_sentences(panels: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for panel in panels:
        yield f"{panel['title']}: {panel.get('description') or 'a row of panels'}".rstrip(".") + "."


def _wrapped(text: str, most: int) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > most:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line


def _sketch(
    canvas: Canvas,
    panel: Mapping[str, Any],
    begin: tuple[float, float],
    end: tuple[float, float],
) -> None:
    """Draw a number, a curve for each query with its legend, or the rows of a table."""
    (left, top), (right, bottom) = begin, end
    targets = panel.get("targets", [])
    if panel["type"] == "stat":
        middle = (left + right) / 2, (top + bottom) / 2 + 8
        canvas.text(*middle, "n", font_size="24", text_anchor="middle", fill="#007A5A")
        return
    if panel["type"] == "table":
        for number in range(1, 5):
            row = top + (bottom - top) * number / 6
            canvas.path(((left, row), (right, row)), "#bbb")
        return
    canvas.path(((left, top + 8), (left, bottom - 26), (right, bottom - 26)), "#999")
    steps = (0.7, 0.5, 0.6, 0.35, 0.45, 0.2, 0.3)
    for number in range(len(targets)):
        colour = COLOURS[number % len(COLOURS)]
        room = bottom - 34 - top
        points = (
            (
                left + (right - left) * place / (len(steps) - 1),
                top + 8 + room * (0.15 * number + 0.8 * step) / (1 + 0.15 * number),
            )
            for place, step in enumerate(steps)
        )
        canvas.path(points, colour)
    legends = ", ".join(
        text.replace("{{", "").replace("}}", "") for text in (t["legendFormat"] for t in targets)
    )
    most = int((right - left) / 5.6)
    canvas.text(left, bottom - 10, legends[:most], font_size="10", fill="#555")


PICTURES: Mapping[str, Callable[[], str]] = {
    "arq-states": arq_states,
    "device-states": device_states,
    "unit-states": unit_states,
    "health-states": health_states,
    "processes": processes,
    "bind": bind,
    "dashboard": dashboard,
}


class Picture(Directive):
    """The directive ``picture``; its argument is one of ``PICTURES``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the picture, and the text that replaces it where there is no HTML."""
        if self.arguments[0] not in PICTURES:
            raise self.error(f"there is no picture {self.arguments[0]}: {', '.join(PICTURES)}")
        drawn = PICTURES[self.arguments[0]]()
        alternative = drawn.partition("<desc")[2].partition(">")[2].partition("</desc>")[0]
        figure = nodes.container(classes=["picture"])
        figure += nodes.raw("", drawn, format="html")
        figure += nodes.raw("", unescape(alternative), format="text man")
        return [figure]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
