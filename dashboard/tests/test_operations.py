# SPDX-License-Identifier: Apache-2.0
"""The panels of hosts, drivers and operations: what starts an operation, and its progress."""

from collections.abc import Callable
from typing import Any

from cyborg.tests.fixtures.waiting import eventually
from dashboard.tests.browser import Browser
from dashboard.tests.cloud import HOSTS, Cloud

HOST_INDEX = "/admin/accelerator_hosts/"
DRIVER_INDEX = "/admin/accelerator_drivers/"
OPERATION_INDEX = "/admin/accelerator_operations/"
HOST = "fpga-1.example.org"


def followed(browser: Browser) -> str:
    """Wait on the page of an operation until the page itself shows its end; return the state."""
    assert browser.path.startswith(OPERATION_INDEX)
    eventually(
        lambda: not browser.all("[data-accelerator-refresh]"), "the page follows the operation"
    )
    return browser.find("#operation dd").text


def agent_of(cloud: Cloud) -> Any:
    (agent,) = [
        process
        for process in cloud.send("GET", "/services", host=HOST, kind="process")["services"]
        if process["binary"] == "cyborg-agent"
    ]
    return agent


def driver(cloud: Cloud, name: str) -> dict[str, object] | None:
    drivers = cloud.send("GET", "/drivers", host=HOST, name=name)["drivers"]
    return drivers[0] if drivers else None


def test_host_is_taken_out_of_service_and_put_back(admin: Browser, cloud: Cloud) -> None:
    admin.open(HOST_INDEX)
    rows = admin.cells()
    assert set(HOSTS) <= {row["Host"] for row in rows}
    assert {row["State"] for row in rows} == {"up"}
    uuid = agent_of(cloud)["uuid"]
    admin.open(f"{HOST_INDEX}{uuid}/disable/")
    admin.submit()
    assert "This field is required" in admin.text
    admin.fill(reason="Power is replaced")
    admin.submit()
    assert agent_of(cloud)["disabled_reason"] == "Power is replaced"
    assert "Power is replaced" in admin.text
    admin.open(f"{HOST_INDEX}{uuid}/enable/")
    admin.submit()
    assert agent_of(cloud)["status"] == "enabled"


def test_discovery_is_followed_to_its_end(admin: Browser) -> None:
    admin.open(f"{HOST_INDEX}discover/")
    admin.fill(hosts="nowhere.example.org")
    admin.submit()
    assert "nowhere.example.org" in admin.text
    assert admin.path == f"{HOST_INDEX}discover/"
    admin.fill(hosts=f"{HOST}, gpu-1.example.org")
    admin.submit()
    assert followed(admin) == "succeeded"
    assert "2 of 2" in admin.text


def test_driver_is_installed_changed_and_removed(
    admin: Browser, cloud: Cloud, picture: Callable[[str], None]
) -> None:
    admin.open(DRIVER_INDEX)
    assert {row["Host"] for row in admin.cells()} >= set(HOSTS)
    admin.open(f"{DRIVER_INDEX}install/")
    admin.fill(driver="fake_driver", hosts="nowhere.example.org")
    admin.submit()
    assert admin.path == f"{DRIVER_INDEX}install/"
    assert "nowhere.example.org" in admin.find("[role=alert]").text
    admin.fill(hosts=HOST, options="no sign")
    admin.submit()
    assert "Line 1 does not have the form NAME=VALUE" in admin.text
    admin.fill(options="")
    admin.submit()
    assert followed(admin) == "succeeded"
    picture("operation")
    installed = driver(cloud, "fake_driver")
    assert installed is not None
    admin.open(f"{DRIVER_INDEX}?host={HOST}")

    admin.open(f"{DRIVER_INDEX}{installed['uuid']}/update/")
    admin.find("#id_enabled").click()
    admin.submit()
    assert followed(admin) == "succeeded"
    changed = driver(cloud, "fake_driver")
    assert changed is not None
    assert changed["enabled"] is False

    admin.open(f"{DRIVER_INDEX}{installed['uuid']}/uninstall/")
    admin.submit()
    assert followed(admin) == "succeeded"
    removed = driver(cloud, "fake_driver")
    assert removed is None or removed["state"] != "READY"


def test_operation_that_is_sent_twice_starts_once(admin: Browser, cloud: Cloud) -> None:
    before = len(cloud.send("GET", "/operations", verb="discover")["operations"])
    admin.open(f"{HOST_INDEX}discover/")
    admin.fill(hosts=HOST)
    page = admin.path
    key = admin.find("[name=request_key]").get_attribute("value")
    admin.submit()
    first = admin.path
    followed(admin)
    admin.open(page)
    admin.fill(hosts=HOST)
    admin.script("document.querySelector('[name=request_key]').value = arguments[0]", key)
    admin.submit()
    assert admin.path == first
    after = len(cloud.send("GET", "/operations", verb="discover")["operations"])
    assert after == before + 1


def test_operations_are_listed_and_filtered(admin: Browser) -> None:
    admin.open(OPERATION_INDEX)
    assert {row["State"] for row in admin.cells()} <= {"succeeded", "failed", "running"}
    admin.open(f"{OPERATION_INDEX}?state=running")
    assert {row["State"] for row in admin.cells()} <= {"running"}
