# SPDX-License-Identifier: Apache-2.0
"""What the documents say of metrics and notifications is what the code shows and sends."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cyborg.drivers.fake import FakeDriver
from cyborg.model import notification
from cyborg.model.health import action as health_action
from cyborg.model.notification import DeviceFacts, HistoryEvent, Notification
from cyborg.model.report import FIGURES, Reading
from cyborg.testing.servers import bare
from cyborg.tests.fixtures import pages
from cyborg.tests.unit.drivers.configured import configured

DOC = Path(__file__).parents[3] / "doc" / "source"
MONITORING = (DOC / "admin" / "monitoring.rst").read_text()
NOTIFICATIONS = (DOC / "reference" / "notifications.rst").read_text()
METRICS = {*pages.API_METRICS, *pages.CONDUCTOR_METRICS, *pages.AGENT_METRICS}


def rows() -> dict[str, tuple[str, str, str]]:
    """The tables of the page: kind, labels and meaning by metric."""
    found = {}
    for row in MONITORING.split("\n   * - ")[1:]:
        cells = [" ".join(cell.split()) for cell in row.split("\n\n")[0].split("\n     - ")]
        if cells[0].startswith("``cyborg_"):
            assert cells[0] not in found
            found[cells[0].strip("`")] = (cells[1], cells[2], cells[3])
    return found


def test_metric_tables_equal_the_catalogue():
    table = rows()
    assert table.keys() == {one.name for one in METRICS}
    for one in METRICS:
        kind, labels, meaning = table[one.name]
        assert (kind, labels) == (one.kind, ", ".join(one.labels) or "-"), one.name
        assert meaning.startswith(one.help), one.name


def test_expressions_use_existing_metrics():
    named = set(re.findall(r"cyborg_[a-z_]+", MONITORING))
    assert named <= {one.name for one in METRICS}


def examples() -> dict[str, dict[str, Any]]:
    """The messages of the page by their event type."""
    found = {}
    for block in re.findall(r"\.\. code-block:: json\n\n((?: {3}.*\n|\n)+)", NOTIFICATIONS):
        message = json.loads(block)
        assert f"\n{message['event_type']}\n==" in NOTIFICATIONS
        found[message["event_type"]] = message["payload"]
    return found


def sent() -> list[Notification | None]:
    """One of each, from the values of the examples."""
    shown = examples()
    arq, device = shown["arq.state"], shown["device.state"]
    (user,) = device["users"]
    health = shown["device.health"]
    facts = DeviceFacts(
        device["type"],
        device["driver"],
        device["vendor"],
        device["model"],
        ((user["arq"], user["instance"], user["project_id"]),),
    )
    down = shown["service.down"]
    driver = FakeDriver(bare(), configured(host="compute-1"))
    devices = [("fake_driver", one) for one in driver.discover()]
    key = devices[0][1].key
    return [
        notification.arq_state(happening("arq", arq), arq["project_id"]),
        notification.device_state(happening("device", device), facts),
        notification.device_health(
            happening("device", {**health, "state": health_action(health["health"])}), facts
        ),
        *(
            notification.service(
                "cyborg-agent", down["host"], up=up, at_ms=1_772_366_460_000, seen_ms=1
            )
            for up in (False, True)
        ),
        notification.usage(
            "compute-1", 0, [Reading("fake_driver", key, driver.stats(key))], devices
        ),
    ]


def happening(noun: str, shown: dict[str, Any]) -> HistoryEvent:
    """The line of history that an example is about."""
    return HistoryEvent(
        shown["event_id"],
        1_772_366_400_250,
        noun,
        shown["uuid"],
        shown["state"],
        shown.get("instance"),
        shown["host"],
        shown["reason"],
        shown["request_id"],
    )


#: What is another moment, or follows from it.
MOMENTS = {"occurred_at", "last_seen_at", "measured_at"}


def test_notification_examples_equal_sent_messages():
    messages = [one for one in sent() if one is not None]
    assert {one.event_type for one in messages} == examples().keys()
    for one in messages:
        shown = examples()[one.event_type]
        assert list(shown) == list(one.payload), one.event_type
        for name, value in one.payload.items():
            if name in MOMENTS:
                assert len(value) == len(shown[name]), name
            elif name != "accelerators":
                assert value == shown[name], name


def test_usage_example_is_from_the_fake_driver():
    (told,) = [one for one in sent() if one and one.event_type == "accelerator.usage"]
    (device,) = told.payload["accelerators"]
    (shown,) = examples()["accelerator.usage"]["accelerators"]
    assert device == shown


def test_every_reading_is_explained():
    assert set(FIGURES) <= set(re.findall(r"``(\w+)``", NOTIFICATIONS))


@pytest.mark.parametrize(
    "action", ["labelled", "ordered", "nova not told", "handle taken by audit"]
)
def test_event_without_state_change_is_not_notified(action: str):
    one = HistoryEvent(1, 0, "", "u", action, None, None, None, None)
    if action in ("labelled", "ordered"):
        assert notification.device_state(one, None) is None
        assert notification.device_health(one, None) is None
    else:
        assert notification.arq_state(one, None) is None


def test_health_change_is_not_a_state_change():
    one = HistoryEvent(1, 0, "device", "u", health_action("drain"), None, None, "hot", None)
    assert notification.device_state(one, None) is None
    told = notification.device_health(one, None)
    assert told is not None
    assert (told.payload["health"], told.payload["reason"]) == ("drain", "hot")


@pytest.mark.parametrize(
    ("action", "noted", "state"),
    [
        ("discovered", "inactive", "inactive"),
        ("created", "enabled", "enabled"),
        ("found again", "failed", "failed"),
        ("lost", None, "lost"),
        ("failed", None, "failed"),
        ("retired", None, "gone"),
    ],
)
def test_device_state_follows_from_events(action: str, noted: str | None, state: str):
    one = HistoryEvent(1, 0, "device", "u", action, None, None, None, None, noted)
    told = notification.device_state(one, None)
    assert told is not None
    assert told.payload["state"] == state
