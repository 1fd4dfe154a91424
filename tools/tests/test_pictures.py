# SPDX-License-Identifier: Apache-2.0
"""The Sphinx extension ``pictures`` draws what the tables of the code say."""

import importlib
import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from cyborg.model import arq, device
from cyborg.model.health import CONDITIONS
from cyborg.model.moves import Move
from cyborg.model.process import AGENT, API, CONDUCTOR

SOURCE = Path(__file__).parents[2] / "doc" / "source"
NAMES = (
    *("arq-states", "device-states", "unit-states", "health-states"),
    *("processes", "bind", "dashboard"),
)


@pytest.fixture(scope="module")
def pictures() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SOURCE / "_ext"))
    yield importlib.import_module("pictures")
    sys.path.remove(str(SOURCE / "_ext"))


def texts(drawn: str) -> set[str]:
    """Return the texts that a picture shows, without title and description."""
    root = ElementTree.fromstring(drawn)  # noqa: S314 - made here
    return {element.text or "" for element in root.iter() if element.tag.endswith("}text")}


def description(drawn: str) -> str:
    """Return what a screen reader reads."""
    root = ElementTree.fromstring(drawn)  # noqa: S314 - made here
    assert root.get("role") == "img"
    title, text = root[0], root[1]
    assert root.get("aria-labelledby") == f"{title.get('id')} {text.get('id')}"
    assert title.text
    return text.text or ""


@pytest.mark.parametrize(
    ("name", "states", "events"),
    [
        ("arq-states", arq.State, arq.Event),
        ("device-states", device.DeviceStatus, device.DeviceEvent),
        ("unit-states", device.HandleState, device.HandleEvent),
        ("health-states", CONDITIONS, ()),
    ],
)
def test_picture_has_each_state_and_event(
    name: str, states: type[StrEnum], events: type[StrEnum], pictures: ModuleType
) -> None:
    drawn = pictures.PICTURES[name]()
    words = {str(word) for word in (*states, *events)}
    assert words <= texts(drawn)
    assert all(word in description(drawn) for word in words)


def test_new_state_changes_the_picture(
    pictures: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Light(StrEnum):
        RED = "red"
        GREEN = "green"
        BLINKING = "blinking"

    class Event(StrEnum):
        GO = "go"
        BREAK = "break"

    moves = {Event.GO: Move(frozenset({Light.RED}), Light.GREEN)}
    more = {**moves, Event.BREAK: Move(frozenset({Light.RED, Light.GREEN}), Light.BLINKING)}

    def drawn(states: list[Light], table: dict[Event, Move[Light]]) -> str:
        arrows = pictures.arrows_of(table)
        picture: str = pictures.states("Light", dict.fromkeys(states, ()), arrows, name="light")
        return picture

    assert texts(drawn([Light.RED, Light.GREEN], moves)) == {"red", "green", "go"}
    assert texts(drawn(list(Light), more)) == {"red", "green", "blinking", "go", "break"}
    assert "break: from green, red to blinking." in description(drawn(list(Light), more))
    assert "No event concerns blinking." in description(drawn(list(Light), moves))


def test_health_follows_the_rules_of_probation(pictures: ModuleType) -> None:
    arrows = {(arrow.label, arrow.target): arrow.sources for arrow in pictures.health_arrows()}
    assert arrows["ok is reported", "probation"] == ("drain", "dead")
    assert arrows["ok is reported", "ok"] == ("degraded",)
    assert arrows["the time is over", "ok"] == ("probation", "ignored")
    assert "drain" in arrows["operator: --health ignore", "ignored"]


def test_bind_is_the_recorded_one(pictures: ModuleType) -> None:
    participants, calls = pictures.recorded("bind")
    assert participants[:4] == ["Nova", "API", "conductor", "database"]
    first, last = calls[0], calls[-1]
    assert (first.source, first.target, first.text) == (0, 1, "PATCH /v2/accelerator_requests")
    assert (participants[last.source], participants[last.target]) == ("API", "nova-compute")
    assert (first.answer, last.answer, last.text) == (False, True, "200 OK")
    told = [call for call in calls if call.text.startswith("POST /os-server-external-events")]
    assert [(participants[call.source], participants[call.target]) for call in told] == [
        ("conductor", "Nova")
    ]


def test_processes_are_those_of_the_service(pictures: ModuleType) -> None:
    shown = texts(pictures.processes())
    assert {API, CONDUCTOR, AGENT, "cyborg-privileged"} <= shown
    names = {node.name for node in pictures.PARTICIPANTS}
    assert {end for link in pictures.LINKS for end in (link.source, link.target)} == names


def test_dashboard_has_all_panels(pictures: ModuleType) -> None:
    drawn = pictures.dashboard()
    titles = [panel["title"] for panel in json.loads(pictures.DASHBOARD.read_text())["panels"]]
    assert len(titles) > 30
    assert all(f"{title}: " in description(drawn) for title in titles)
    shown = " ".join(texts(drawn))
    assert all(word in shown for title in titles for word in title.split())


@pytest.mark.parametrize("name", NAMES)
def test_each_picture_is_on_a_page(name: str, pictures: ModuleType) -> None:
    assert set(pictures.PICTURES) == set(NAMES)
    pages = (page.read_text() for page in SOURCE.rglob("*.rst"))
    assert any(f".. picture:: {name}\n" in page for page in pages)
    assert len(description(pictures.PICTURES[name]())) > 100
