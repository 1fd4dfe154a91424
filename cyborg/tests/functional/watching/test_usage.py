# SPDX-License-Identifier: Apache-2.0
"""Live usage: measured by drivers, broadcast by agents, kept by a conductor's memory alone."""

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db.models import Deployable, Host
from cyborg.model.process import AGENT
from cyborg.model.provider import provider_uuid
from cyborg.model.report import FIGURES as KNOWN
from cyborg.model.report import Reading
from cyborg.rpc.verbs import SendReadings
from cyborg.tests.fixtures.pages import ReadableMeters
from cyborg.tests.functional.life.cards import CARD, OTHER
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import everything
from cyborg.tests.functional.watching.cards import FIGURES, SecondMeasuringDriver
from cyborg.tests.functional.watching.conftest import (
    Watched,
    administrator,
    soon,
    watched_agent,
    watched_page,
)

USAGE = "accelerator.usage"


@pytest.fixture
def measuring(watched: Watched) -> Watched:
    """The same, whose agents measure all the time."""
    watched.stack.times = replace(watched.stack.times, usage=0.3)
    return watched


def accelerators(watched: Watched, host: str) -> list[dict[str, Any]]:
    """What was broadcast last of a host."""
    told = watched.listener.of(USAGE, host=host)
    return list(told[-1]["accelerators"]) if told else []


def one_device(admin: Client) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def look() -> bool:
        found[:] = admin.get("/devices")["devices"]
        return len(found) == 1

    soon(look)
    return found[0]


def test_readings_are_broadcast_and_shown(measuring: Watched):
    page = watched_page(measuring)
    rack = measuring.rack()
    watched_agent(measuring, rack)
    device = one_device(administrator(measuring))
    # The provider is known when the report has been applied.
    soon(lambda: any(item["providers"] for item in accelerators(measuring, rack.compute)))
    (told,) = accelerators(measuring, rack.compute)
    assert told == {
        "driver": "card_driver",
        "key": CARD,
        "type": "FPGA",
        "vendor": "1d22",
        "model": "card",
        "providers": [rack.provider()],
        "figures": dict(sorted(FIGURES.items())),
    }
    publishers = {
        one["publisher_id"] for one in measuring.listener.heard if one["event_type"] == USAGE
    }
    assert publishers == {f"cyborg-agent:{rack.compute}"}
    labels = {
        "host": rack.compute,
        "driver": "card_driver",
        "type": "FPGA",
        "device": device["uuid"],
    }
    soon(lambda: page.value("cyborg_accelerator_temperature_celsius", **labels) == 61.5)
    assert page.value("cyborg_accelerator_utilization_ratio", **labels) == 0.5
    # What a driver measures beyond that has no metric of its own.
    assert page.samples("cyborg_accelerator_fan_rpm") == []
    # Each value says of when it is.
    (sample,) = page.samples("cyborg_accelerator_power_watts")
    assert sample.timestamp is not None
    # The API shows the latest ones, to those who may see where the device is.
    shown = one_device(administrator(measuring))["reading"]
    assert shown["figures"] == {name: value for name, value in FIGURES.items() if name in KNOWN}
    path = f"/devices/{device['uuid']}"
    assert administrator(measuring).get(path)["reading"]["figures"] == shown["figures"]
    manager = replace(administrator(measuring), role="manager", project="other", service=False)
    assert "reading" not in one_device(manager)
    assert "reading" not in one_device(replace(administrator(measuring), version="2.3"))
    # What a driver measures beyond that is not stored.
    assert "fan_rpm" not in str(everything(measuring.database))
    # Readings follow the devices.
    rack.plug("0000:82:00.0", 1)
    soon(lambda: len(page.samples("cyborg_accelerator_power_watts")) == 2)
    rack.pull(CARD)
    soon(lambda: len(page.samples("cyborg_accelerator_power_watts")) == 1)

    def measured() -> int:
        listed = administrator(measuring).get("/devices")["devices"]
        return sum(item["reading"] is not None for item in listed)

    soon(lambda: measured() == 1)


def test_readings_of_a_moved_card_name_its_provider(measuring: Watched) -> None:
    """The provider keeps the name of the first place, which another card may have now."""
    watched_page(measuring)
    rack = measuring.rack()
    watched_agent(measuring, rack)
    one_device(administrator(measuring))
    here = f"{rack.compute}_{CARD}"
    name = f"{rack.compute}_{OTHER}"
    moved = sa.update(Deployable).where(Deployable.name == here)
    with measuring.database.writer() as tx:
        tx.execute(moved.values(name=name, key=here, rp_uuid=provider_uuid(name)))
        tx.execute(sa.update(Host).values(desired_generation=Host.desired_generation + 1))
    soon(
        lambda: (
            [item["providers"] for item in accelerators(measuring, rack.compute)]
            == [[rack.provider(OTHER)]]
        )
    )


def test_hanging_or_failing_driver_does_not_affect_others(measuring: Watched):
    measuring.stack.times = replace(measuring.stack.times, poll=0.5)
    page = watched_page(measuring)
    rack = measuring.rack()
    other = measuring.rack(SecondMeasuringDriver)
    other.driver.traits.resource_class = rack.resource_class
    stuck = rack.driver
    stuck.gate.clear()
    watched_agent(measuring, rack, other, meters=ReadableMeters(AGENT))
    soon(lambda: stuck.asked == 1)
    host = rack.compute

    def answered() -> set[str]:
        return {one["driver"] for one in accelerators(measuring, host)}

    soon(lambda: answered() == {"second_driver"})
    # The loop goes on: what changes is reported.
    before = stuck.scans
    soon(lambda: stuck.scans > before + 2)
    soon(lambda: page.value("cyborg_services", binary="cyborg-agent", state="up") == 1)
    assert stuck.asked == 1
    stuck.gate.set()
    soon(lambda: answered() == {"card_driver", "second_driver"})
    # Nor does one that fails affect others.
    for figures in (ValueError("broken"), None, ["garbage"]):
        stuck.figures = figures
        soon(lambda: answered() == {"second_driver"})
        stuck.figures = FIGURES
        soon(lambda: answered() == {"card_driver", "second_driver"})
    # What is no reading is left out.
    stuck.figures = {"power_watts": 1, "odd": float("nan"), 7: 1.0, "word": "12", "b" * 99: 1}

    def told() -> list[Any]:
        mine = [one for one in accelerators(measuring, host) if one["driver"] == "card_driver"]
        return [one["figures"] for one in mine]

    soon(lambda: told() == [{"power_watts": 1.0}])


@pytest.mark.parametrize("drivers", [["noop"], []])
def test_agent_logs_missing_listener_once(
    measuring: Watched, drivers: list[str], caplog: pytest.LogCaptureFixture
):
    page = watched_page(measuring)
    rack = measuring.rack()
    with caplog.at_level("INFO", logger="cyborg.agent.readings"):
        watched_agent(measuring, rack)
        soon(lambda: page.samples("cyborg_accelerator_power_watts") != [])
        asked = rack.driver.asked
        soon(lambda: rack.driver.asked > asked + 3)
    said = [one for one in caplog.messages if "Usage notifications are off" in one]
    assert len(said) == 1
    assert measuring.listener.heard == []


def test_interval_0_disables_readings(watched: Watched):
    watched.stack.start_conductor()
    rack = watched.rack()
    watched_agent(watched, rack)
    soon(lambda: rack.driver.scans > 5)
    assert rack.driver.asked == 0


def test_readings_of_other_hosts_and_old_epochs_are_refused(measuring: Watched):
    page = watched_page(measuring)
    rack = measuring.rack()
    rack.driver.gate.clear()
    watched_agent(measuring, rack)
    one_device(administrator(measuring))
    forged = [Reading("card_driver", CARD, {"power_watts": 9.0})]
    stranger = measuring.stack.conductor_client("cyborg-agent@another-host")
    with pytest.raises(exception.Forbidden):
        stranger.request(SendReadings(rack.compute, 1, forged))
    own = measuring.stack.conductor_client(f"cyborg-agent@{rack.compute}")
    with pytest.raises(exception.StaleEpoch):
        own.request(SendReadings(rack.compute, 0, forged))
    with pytest.raises(exception.NotFound):
        stranger.request(SendReadings("another-host", 1, forged))
    watts: Any = "9"
    odd = [Reading("card_driver", CARD, {"power_watts": watts})]
    with pytest.raises(exception.Invalid):
        own.request(SendReadings(rack.compute, 1, odd))
    assert page.samples("cyborg_accelerator_power_watts") == []
    own.request(
        SendReadings(
            rack.compute, 1, [*forged, Reading("card_driver", "unknown", {"power_watts": 1.0})]
        )
    )
    (sample,) = page.samples("cyborg_accelerator_power_watts")
    assert sample.value == 9.0
