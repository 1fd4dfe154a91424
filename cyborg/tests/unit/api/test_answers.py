# SPDX-License-Identifier: Apache-2.0
"""Tables of answers: what they render for whom, and which of their members hide something."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import jsonschema
import pytest

from cyborg.api import answers, types
from cyborg.api.answers import Answer, Member, Source
from cyborg.api.microversion import BASE, EXTENDED
from cyborg.api.viewer import Links, Viewer
from cyborg.model.scope import EVERYWHERE, Scope
from cyborg.tests.unit.api.test_shapes import VALUES

LINKS: Final = Links("https://cloud/accelerator")
OPERATOR: Final = Viewer(minor=EXTENDED, scope=EVERYWHERE, links=LINKS)
MEMBER: Final = Viewer(minor=EXTENDED, scope=Scope.of_project("p"), links=LINKS)
OLDER: Final = Viewer(minor=BASE, scope=EVERYWHERE, links=LINKS)
ALIAS: Final = MEMBER.scope.host("h1")


@dataclass(frozen=True)
class Row:
    host: str | None = "h1"
    slot: str | None = "0000:3b:00.0"
    text: str | None = "h1 lost 0000:3b:00.0"
    options: dict[str, Any] | None = None
    state: str = "new"
    colour: int = 7
    seen: int | datetime | None = 1500


@dataclass(frozen=True)
class Pair:
    row: Row
    number: int


VIEW: Final = Answer[Row](
    "Row",
    "A row.",
    Source(hosts=lambda row: [row.host]),
    host=Member(answers.HOST_OR_NULL),
    slot=Member(answers.PLACED_TEXT),
    text=Member(answers.SAID_OR_NULL),
    options=Member(answers.PLACED_OBJECT),
    state=Member(answers.Before(EXTENDED, types.Word("old"), types.Word("new"))),
    colour=Member(types.INTEGER, since=EXTENDED, placed=True),
    seen=Member(answers.TIME_OR_NULL),
    links=Member(answers.Links("rows"), lambda row: str(row.colour)),
)
PAIR: Final = Answer[Pair](
    "Pair",
    "A row with a number.",
    **VIEW.members(lambda pair: pair.row),
    number=Member(types.INTEGER),
    rows=Member(types.Items(VIEW), lambda pair: [pair.row]),
)

_DEVICE: Final = {
    "std_board_info",
    "vendor_board_info",
    "hostname",
    "status_reason",
    "backend",
    "address",
    "numa_node",
    "identity",
    "topology",
    "pools",
    "providers",
    "units",
    "health_reasons",
    "reading",
}
_ARQ: Final = {"hostname", "device_rp_uuid", "attach_handle_info"}
#: The members of each table whose values projects do not get as operators do.
HIDING: Final = {
    "DeviceView": _DEVICE,
    "DeviceDetail": _DEVICE | {"cleaning", "events"},
    "CapacityView": {
        *("host", "type", "numa_node", "zone", "further", "limits", "total", "used", "free"),
        *("unattached", "reserved", "largest", "headroom", "hosts", "notes"),
    },
    "Explanation": {"further", "steps", "hosts", "suggestion"},
    "ArqView": _ARQ,
    "ArqDetail": _ARQ | {"fault"},
    "ArqEvent": {"hostname", "reason"},
    "BackendServiceView": {"host", "backend"},
    "BackendView": {"host", "name", "capabilities"},
    "DeployableView": {"name", "rp_uuid"},
    "DriverView": {"host", "endpoint", "options", "error"},
    "EventView": {"reason", "host"},
    "HardwareView": {"hostname", "key", "acc_specs", "acc_status"},
    "OperationView": {"error", "subject"},
    "ProcessView": {
        "host",
        "disabled_reason",
        "endpoint",
        "bus_error",
        "publish_error",
        "cause",
        "remedy",
    },
    "ResultView": {"host", "result", "error"},
}


def test_operator_gets_every_member() -> None:
    row = Row(options={"a": 1})
    assert VIEW.render(row, OPERATOR) == {
        "host": "h1",
        "slot": "0000:3b:00.0",
        "text": "h1 lost 0000:3b:00.0",
        "options": {"a": 1},
        "state": "new",
        "colour": 7,
        "seen": "1970-01-01T00:00:01.500+00:00",
        "links": [{"href": "https://cloud/accelerator/v2/rows/7", "rel": "self"}],
    }


def test_project_gets_no_place() -> None:
    shown = VIEW.render(Row(options={"a": 1}), MEMBER)
    assert "colour" not in shown
    assert (shown["host"], shown["slot"], shown["options"]) == (ALIAS, None, {})
    assert shown["text"] == f"{ALIAS} lost (hidden)"


def test_older_microversion_lacks_later_members() -> None:
    assert "colour" not in VIEW.render(Row(), OLDER)
    assert VIEW.at(BASE).schema["properties"].keys() == VIEW.render(Row(), OLDER).keys()


@pytest.mark.parametrize("viewer", [OPERATOR, MEMBER, OLDER])
def test_answer_is_as_its_table_describes(viewer: Viewer) -> None:
    state = "new" if viewer.minor >= EXTENDED else "old"
    for row in (Row(state=state), Row(None, None, None, None, state, 0, datetime(2026, 1, 1))):
        rendered = PAIR.render(Pair(row, 1), viewer)
        jsonschema.validate(rendered, PAIR.at(viewer.minor).schema)
        assert rendered["rows"] == [VIEW.render(row, viewer)]


def test_stored_time_is_utc() -> None:
    shown = VIEW.render(Row(seen=datetime(2026, 1, 2, 3, 4, 5)), OPERATOR)
    assert shown["seen"] == "2026-01-02T03:04:05+00:00"


def hides(kind: types.Strict) -> bool:
    """Whether the values of a type differ between operators and projects."""
    if isinstance(kind, answers.Placed | answers.PlacedObject | answers.Said | answers.HostName):
        return True
    return isinstance(kind, types.Container) and hides(kind.item)


def test_these_members_hide_something_from_projects() -> None:
    hiding: dict[str, set[str]] = {}
    for answer in VALUES:
        if isinstance(answer, Answer):
            members = answer.members(lambda value: value)
            names = {name for name in members if members[name].placed or hides(members[name].kind)}
            if names:
                hiding[answer.schema["title"]] = names
    assert hiding == HIDING
