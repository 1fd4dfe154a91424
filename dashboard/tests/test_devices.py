# SPDX-License-Identifier: Apache-2.0
"""The panel of devices."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from cyborg.tests.fixtures.waiting import eventually
from dashboard.tests.browser import Browser
from dashboard.tests.cloud import HOSTS, Cloud, Seen

INDEX = "/admin/accelerator_devices/"
FPGA_HOST = "fpga-1.example.org"


@pytest.fixture
def fpgas(cloud: Cloud) -> list[dict[str, Any]]:
    return cloud.devices(hostname=FPGA_HOST)


def select(browser: Browser, uuid: str) -> None:
    browser.find(f"table.datatable input[value='{uuid}']").click()


def test_list_shows_the_devices_of_all_hosts(
    admin: Browser, picture: Callable[[str], None], counted: Callable[[], list[Seen]]
) -> None:
    admin.open(INDEX)
    rows = admin.cells()
    assert {row["Host"] for row in rows} == set(HOSTS)
    (spare,) = [row for row in rows if row["Labels"]]
    assert (spare["Status"], spare["Labels"]) == ("maintaining", "rack=7")
    # One for the versions of the service, and one for the page.
    assert len(counted()) == 2
    picture("devices")


@pytest.mark.parametrize(
    ("query", "hosts"),
    [
        ({"hostname": FPGA_HOST}, {FPGA_HOST}),
        ({"type": "FPGA"}, {FPGA_HOST}),
        ({"driver": "generic_driver"}, {FPGA_HOST}),
        ({"status": "maintaining"}, {"gpu-2.example.org"}),
        ({"labels": "rack=7"}, {"gpu-2.example.org"}),
        ({"health": "dead"}, set()),
        ({"hostname": FPGA_HOST, "type": "GPU"}, set()),
    ],
)
def test_filters_leave_the_devices_that_match(
    admin: Browser, query: dict[str, str], hosts: set[str]
) -> None:
    admin.open(INDEX)
    for name, text in query.items():
        admin.fill(**{name: text})
    admin.press(".accelerator-filters button")
    assert {row["Host"] for row in admin.cells()} == hosts
    # The address of the page can be kept, and the form shows what it filters by.
    admin.open(f"{INDEX}?{urlencode(query)}")
    assert {row["Host"] for row in admin.cells()} == hosts
    for name, text in query.items():
        assert admin.find(f".accelerator-filters [name={name}]").get_attribute("value") == text


def test_wrong_filter_is_named(admin: Browser, counted: Callable[[], list[Seen]]) -> None:
    admin.open(f"{INDEX}?status=broken")
    assert "broken is not one of the available choices" in admin.text
    assert admin.cells() == []
    assert [seen for seen in counted() if seen.path.endswith("/devices")] == []
    admin.open(f"{INDEX}?marker=nonsense")
    assert any("marker" in message for message in admin.messages)


def test_devices_are_disabled_with_a_reason_and_enabled_again(
    admin: Browser, cloud: Cloud, fpgas: list[dict[str, Any]]
) -> None:
    admin.open(f"{INDEX}?hostname={FPGA_HOST}")
    for device in fpgas:
        select(admin, device["uuid"])
    admin.press("#devices__action_disable")
    assert admin.text.count(FPGA_HOST) == len(fpgas)
    admin.submit()
    assert "This field is required" in admin.text
    assert {device["status"] for device in cloud.devices(hostname=FPGA_HOST)} == {"enabled"}
    admin.fill(reason="Firmware is replaced")
    admin.submit()
    assert admin.path == INDEX
    assert any(f": {len(fpgas)}" in message for message in admin.messages)
    stored = cloud.devices(hostname=FPGA_HOST)
    assert {(device["status"], device["status_reason"]) for device in stored} == {
        ("maintaining", "Firmware is replaced")
    }
    admin.open(f"{INDEX}{fpgas[0]['uuid']}/")
    assert "Firmware is replaced" in admin.text

    admin.open(f"{INDEX}?hostname={FPGA_HOST}")
    for device in fpgas:
        select(admin, device["uuid"])
    admin.press("#devices__action_enable")
    admin.submit()
    eventually(
        lambda: {device["status"] for device in cloud.devices(hostname=FPGA_HOST)} == {"enabled"},
        "all are enabled",
    )


def test_label_is_set_and_removed(
    admin: Browser, cloud: Cloud, fpgas: list[dict[str, Any]]
) -> None:
    uuid = fpgas[0]["uuid"]
    admin.open(f"{INDEX}change/label/?device={uuid}")
    admin.fill(label="not a label!", value="x")
    admin.submit()
    assert any("label" in message for message in admin.messages)
    admin.open(f"{INDEX}change/label/?device={uuid}")
    admin.fill(label="rack", value="9")
    admin.submit()
    assert cloud.send("GET", f"/devices/{uuid}")["labels"] == {"rack": "9"}
    admin.open(f"{INDEX}change/label/?device={uuid}")
    admin.fill(label="rack")
    admin.submit()
    assert cloud.send("GET", f"/devices/{uuid}")["labels"] == {}


def test_page_of_a_device_has_all_that_is_known(
    admin: Browser, cloud: Cloud, picture: Callable[[str], None]
) -> None:
    device = cloud.devices(hostname="gpu-1.example.org", in_use="true")[0]
    admin.open(f"{INDEX}{device['uuid']}/")
    text = admin.text
    for heading in ("Facts", "Topology", "Health", "Units", "Placement", "Cleaning", "History"):
        assert heading in text
    assert device["address"] in text
    assert device["providers"][0]["name"] in text
    assert device["topology"]["root_port"] in text
    (holder,) = device["holders"]
    assert holder["arq_uuid"] in text
    assert "1 used, 0 free" in text
    assert admin.find(f"a[href='/admin/instances/{holder['instance_uuid']}/detail']").text
    assert "arq: Bound" in text
    assert admin.find(".accelerators a[href*=accelerator_profiles]").text == "h200"
    picture("device")


def test_device_that_does_not_exist_is_named(admin: Browser) -> None:
    uuid = "0c6cbb25-0d29-4f4f-8c39-0d1ee8b3f9c1"
    admin.open(f"{INDEX}{uuid}/")
    assert admin.path == INDEX
    assert any(uuid in message for message in admin.messages)
