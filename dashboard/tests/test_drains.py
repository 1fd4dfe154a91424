# SPDX-License-Identifier: Apache-2.0
"""Hosts and devices that are emptied and put back into service."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db.models import Device
from cyborg.model.device import DeviceStatus
from cyborg.tests.fixtures.waiting import eventually
from dashboard.tests.browser import Browser
from dashboard.tests.cloud import Cloud, Seen

HOST_INDEX = "/admin/accelerator_hosts/"
DEVICE_INDEX = "/admin/accelerator_devices/"
FULL = "gpu-1.example.org"
OTHER = "gpu-2.example.org"
IDLE = "fpga-1.example.org"


def agent_of(cloud: Cloud, host: str) -> Any:
    (agent,) = [
        process
        for process in cloud.send("GET", "/services", host=host, kind="process")["services"]
        if process["binary"] == "cyborg-agent"
    ]
    return agent


@pytest.fixture(autouse=True)
def _all_in_service(cloud: Cloud) -> Iterator[None]:
    yield
    for host in (FULL, OTHER, IDLE):
        agent = agent_of(cloud, host)
        if agent["status"] != "enabled":
            cloud.send("PATCH", f"/services/{agent['uuid']}", {"status": "enabled"})


def test_host_is_drained_after_a_dry_run_and_resumed(
    admin: Browser, cloud: Cloud, counted: Callable[[], list[Seen]], picture: Callable[[str], None]
) -> None:
    uuid = agent_of(cloud, FULL)["uuid"]
    counted()
    admin.open(f"{HOST_INDEX}{uuid}/drain/")
    # One for the versions of the service, and one for the servers.
    assert len(counted()) == 2
    assert FULL in admin.text
    rows = admin.cells("#drain_servers")
    assert {row["Device Profiles"] for row in rows} == {"h200"}
    assert {(row["Can Move"], row["Host with Room"]) for row in rows} == {("no", "-")}
    assert all("No other host has room" in row["Reason"] for row in rows)
    assert "3 servers have units of it" in admin.find("#drain_summary").text
    assert "Servers that cannot move now: 3." in admin.find("#drain_summary").text
    assert admin.fits("#drain_servers")
    picture("drain")
    admin.submit()
    assert "This field is required" in admin.text
    assert agent_of(cloud, FULL)["status"] == "enabled"
    admin.fill(reason="New power supply")
    admin.submit()
    assert admin.path == f"{HOST_INDEX}{uuid}/drain/"
    assert admin.find("#drain_status").text == "draining"
    assert admin.all(".accelerator-form") == []
    agent = agent_of(cloud, FULL)
    assert (agent["status"], agent["disabled_reason"]) == ("draining", "New power supply")

    admin.open(HOST_INDEX)
    picture("hosts")
    admin.open(f"{HOST_INDEX}?host={FULL}")
    (row,) = [row for row in admin.cells() if row["Process"] == "cyborg-agent"]
    assert (row["Service"], row["Reason"]) == ("draining", "New power supply")
    assert admin.fits("table.datatable")
    admin.open(f"{HOST_INDEX}{uuid}/drain/")
    assert admin.find("#drain_title").text == "Servers That Are Left"
    admin.open(HOST_INDEX)
    admin.press(f"a[href='{HOST_INDEX}{uuid}/resume/']")
    assert len(admin.cells("#drain_servers")) == 3
    admin.submit()
    assert admin.path == HOST_INDEX
    assert agent_of(cloud, FULL)["status"] == "enabled"


def test_page_of_a_drain_follows_it_until_no_server_is_left(admin: Browser, cloud: Cloud) -> None:
    server = cloud.server("n6001", IDLE)
    uuid = agent_of(cloud, IDLE)["uuid"]
    admin.open(f"{HOST_INDEX}{uuid}/drain/")
    admin.fill(reason="New firmware")
    admin.submit()
    assert admin.find("#drain_status").text == "draining"
    cloud.delete_server(server)
    status = "return document.getElementById('drain_status').textContent.trim()"
    eventually(lambda: admin.script(status) == "drained", "the page shows the end")
    assert "No server has a unit of it" in admin.find("#drain_summary").text
    assert admin.all("[data-accelerator-refresh]") == []
    admin.press(f"a[href='{HOST_INDEX}{uuid}/resume/']")
    admin.submit()
    assert agent_of(cloud, IDLE)["status"] == "enabled"


def test_device_is_drained_and_resumed(admin: Browser, cloud: Cloud) -> None:
    device = cloud.devices(hostname=OTHER, in_use="true")[0]["uuid"]
    admin.open(f"{DEVICE_INDEX}{device}/")
    admin.press("#drain_verb")
    (row,) = admin.cells("#drain_servers")
    # Another H100 of the host is free.
    assert (row["Can Move"], row["Host with Room"]) == ("yes", OTHER)
    admin.fill(reason="Fan is replaced")
    admin.submit()
    assert admin.find("#drain_status").text == "draining"
    stored = cloud.send("GET", f"/devices/{device}")
    assert (stored["status"], stored["status_reason"]) == ("draining", "Fan is replaced")
    admin.open(f"{DEVICE_INDEX}?status=draining")
    assert [row["Status"] for row in admin.cells()] == ["draining"]
    admin.open(f"{DEVICE_INDEX}{device}/")
    assert admin.find("#drain_verb").text == "Follow Drain"
    admin.press("#drain_verb")
    admin.press(f"a[href='{DEVICE_INDEX}{device}/resume/']")
    admin.submit()
    assert admin.path == DEVICE_INDEX
    eventually(
        lambda: cloud.send("GET", f"/devices/{device}")["status"] == "enabled", "is in service"
    )


@pytest.fixture
def broken(cloud: Cloud) -> Iterator[str]:
    """A device whose set-up failed; it is as before afterwards."""
    (device,) = cloud.devices(status="maintaining")

    def store(state: DeviceStatus) -> None:
        with cloud.database.writer() as tx:
            tx.execute(
                sa.update(Device).where(Device.uuid == device["uuid"]).values(status=state.value)
            )

    store(DeviceStatus.FAILED)
    yield device["uuid"]
    store(DeviceStatus.MAINTAINING)


def test_device_that_is_not_set_up_cannot_be_drained(
    admin: Browser, cloud: Cloud, broken: str
) -> None:
    admin.open(f"{DEVICE_INDEX}{broken}/")
    assert admin.all("#drain_verb") == []
    admin.open(f"{DEVICE_INDEX}{broken}/drain/")
    admin.fill(reason="Fan is replaced")
    admin.submit()
    assert broken in admin.find("[role=alert]").text
    assert cloud.send("GET", f"/devices/{broken}")["status"] == "failed"


def test_process_without_devices_cannot_be_drained(admin: Browser, cloud: Cloud) -> None:
    (conductor,) = [
        process
        for process in cloud.send("GET", "/services", kind="process")["services"]
        if process["binary"] == "cyborg-conductor"
    ]
    admin.open(f"{HOST_INDEX}{conductor['uuid']}/drain/")
    assert admin.path == HOST_INDEX
    assert any("cyborg-agent" in message for message in admin.messages)
