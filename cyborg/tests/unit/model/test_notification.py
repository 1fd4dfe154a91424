# SPDX-License-Identifier: Apache-2.0
"""Notifications: which events are sent, and the fields that the page of notifications shows."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cyborg
from cyborg.drivers.fake import FakeDriver
from cyborg.model import notification
from cyborg.model.health import action as health_action
from cyborg.model.notification import DeviceFacts, HistoryEvent
from cyborg.model.report import Reading
from cyborg.testing.driver_checks import look
from cyborg.testing.servers import bare
from cyborg.tests.unit.drivers.configured import configured

PAGE = Path(cyborg.__file__).parents[1] / "doc" / "source" / "reference" / "notifications.rst"


def event(
    action: str, noted: str | None = None, reason: str | None = None, *, noun: str = "device"
) -> HistoryEvent:
    """An event of the history."""
    return HistoryEvent(1, 0, noun, "u", action, None, None, reason, None, noted)


def shape(value: Any) -> Any:
    """The names of all members; those of the first object of a list."""
    if isinstance(value, dict):
        return {name: shape(member) for name, member in value.items()}
    return [shape(member) for member in value[:1]] if isinstance(value, list) else None


def test_page_shows_every_field_of_every_notification() -> None:
    facts = DeviceFacts("FPGA", "fake_driver", "v", "m", (("arq", "instance", "project"),))
    driver = FakeDriver(bare(), configured(host="compute-1"))
    devices = [("fake_driver", device) for device in look(driver).discover()]
    key = devices[0][1].key
    sent = [
        notification.arq_state(event("Bound", noun="arq"), "project"),
        notification.arq_health(event(health_action("drain"), noun="arq"), "project"),
        notification.device_state(event("lost"), facts),
        notification.device_health(event(health_action("drain")), facts),
        notification.device_cleaning(event("unit cleaned"), replace(facts, users=())),
        notification.driver_health(
            event(health_action("drain"), noun="driver"), "card_driver", {"u": facts}
        ),
        notification.instance_unattached(
            event("without its accelerators", noun="instance"), "project"
        ),
        notification.service("cyborg-agent", "compute-1", up=False, at_ms=2, seen_ms=1),
        notification.service("cyborg-agent", "compute-1", up=True, at_ms=2, seen_ms=1),
        notification.usage(
            *(
                "compute-1",
                0,
                [Reading("fake_driver", key, dict(look(driver).stats(key)))],
                devices,
            ),
            providers={part.name: "uuid" for part in devices[0][1].deployables},
        ),
    ]
    blocks = re.findall(r"\.\. code-block:: json\n\n((?: {3}.*\n|\n)+)", PAGE.read_text())
    shown = {message["event_type"]: message["payload"] for message in map(json.loads, blocks)}
    assert {one.event_type: shape(one.payload) for one in sent if one} == {
        name: shape(payload) for name, payload in shown.items()
    }


@pytest.mark.parametrize(
    "action", ["labelled", "ordered", "nova not told", "handle taken by audit"]
)
def test_event_without_state_change_is_not_notified(action: str) -> None:
    if action in ("labelled", "ordered"):
        assert notification.device_state(event(action), None) is None
        assert notification.device_health(event(action), None) is None
    else:
        assert notification.arq_state(event(action, noun="arq"), None) is None


def test_other_events_of_drivers_are_not_notified() -> None:
    assert notification.driver_health(event("installed", noun="driver"), "d", {}) is None


def test_health_change_is_not_a_state_change() -> None:
    change = event(health_action("drain"), reason="hot")
    assert notification.device_state(change, None) is None
    sent = notification.device_health(change, None)
    assert sent is not None
    assert (sent.payload["health"], sent.payload["reason"]) == ("drain", "hot")


@pytest.mark.parametrize(
    ("action", "result"),
    [("unit cleaned", "cleaned"), ("unit not cleaned", "failed"), ("unit freed", "overridden")],
)
def test_cleaning_of_a_unit_is_sent_with_its_result(action: str, result: str) -> None:
    change = event(action, reason="unit 0000:5e:00.0: NVMe erase (41 s)")
    assert notification.device_state(change, None) is None
    sent = notification.device_cleaning(change, None)
    assert sent is not None
    assert sent.event_type == "device.cleaning"
    assert (sent.payload["result"], sent.payload["reason"]) == (result, change.reason)
    assert notification.device_cleaning(event("lost"), None) is None


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
def test_device_state_follows_from_events(action: str, noted: str | None, state: str) -> None:
    sent = notification.device_state(event(action, noted), None)
    assert sent is not None
    assert sent.payload["state"] == state
