# SPDX-License-Identifier: Apache-2.0
"""Markup in names, forged forms, and addresses of other hosts."""

from collections.abc import Callable, Iterator

import pytest

from dashboard.tests.browser import Browser
from dashboard.tests.cloud import Cloud
from dashboard.tests.scenery import FPGA, MARKUP

DEVICES = "/admin/accelerator_devices/"
PROFILES = "/admin/accelerator_profiles/"


@pytest.fixture
def marked(cloud: Cloud) -> Iterator[str]:
    """A device whose status has markup as its reason, and a profile that has it as description."""
    device = cloud.devices(hostname="fpga-1.example.org")[0]
    body = {"status": "maintaining", "status_reason": MARKUP, "labels": {"note": MARKUP[:200]}}
    cloud.send("PATCH", f"/devices/{device['uuid']}", body)
    cloud.profile("marked", FPGA, description=MARKUP)
    yield device["uuid"]
    cloud.send("DELETE", "/device_profiles/marked")
    cloud.send(
        "PATCH", f"/devices/{device['uuid']}", {"status": "enabled", "labels": {"note": None}}
    )


def test_markup_is_text_on_every_page(admin: Browser, cloud: Cloud, marked: str) -> None:
    profile = cloud.send("GET", "/device_profiles/marked")["device_profile"]["uuid"]
    for path in (
        DEVICES,
        f"{DEVICES}{marked}/",
        f"{DEVICES}change/label/?device={marked}",
        f"{DEVICES}{marked}/drain/",
        f"{DEVICES}{marked}/resume/",
        PROFILES,
        f"{PROFILES}{profile}/",
        f"{PROFILES}{profile}/update/",
        "/admin/accelerator_overview/",
        "/project/accelerator_profiles/",
        f"{DEVICES}?hostname={MARKUP}",
        f"/admin/accelerator_operations/?verb={MARKUP}",
    ):
        admin.open(path)
        assert admin.driver.title != "mine", path
        assert admin.all(".accelerators img") == [], path
        assert admin.all(".accelerators script") == [], path
        # Angular would show the product in the place of an expression.
        assert "1235234" not in admin.find(".accelerators").text, path
    admin.open(PROFILES)
    (row,) = [row for row in admin.cells() if row["Name"] == "marked"]
    assert row["Description"].startswith("<script>document.title='mine'</script>")


def test_markup_in_a_group_is_text_while_one_types(admin: Browser) -> None:
    admin.open(f"{PROFILES}create/")
    admin.fill(groups=f"resources:{MARKUP}=1")
    verdict = admin.find("#verdict")
    before = verdict.text
    for _ in range(100):
        if verdict.text != before:
            break
        admin.script("return 0")
    assert admin.all("#verdict img, #groups_json img, #verdict script") == []
    assert admin.driver.title != "mine"


@pytest.mark.parametrize(
    "path",
    [f"{DEVICES}change/enable/", f"{PROFILES}create/", f"{PROFILES}check/", DEVICES],
)
def test_form_without_its_token_is_refused(admin: Browser, cloud: Cloud, path: str) -> None:
    admin.open(DEVICES)
    kind = admin.driver.execute_async_script(
        "const [path, done] = arguments; fetch(path, {method: 'POST', redirect: 'manual',"
        " body: new URLSearchParams({name: 'forged', groups: 'resources:FPGA=1'})})"
        ".then(answer => done(answer.type))",
        path,
    )
    # Horizon sends the user to the page where one signs in.
    assert kind == "opaqueredirect"
    profiles = cloud.send("GET", "/device_profiles")["device_profiles"]
    assert "forged" not in {profile["name"] for profile in profiles}


@pytest.mark.parametrize("target", ["https://example.com/", "//example.com/", "/\\example.com/"])
def test_pages_lead_to_no_other_host(
    sign_in: Callable[[str], Browser], cloud: Cloud, target: str
) -> None:
    browser = sign_in("admin")
    uuid = cloud.devices()[0]["uuid"]
    query = f"device={uuid}&next={target}&success_url={target}&redirect={target}"
    browser.open(f"{DEVICES}change/label/?{query}")
    browser.fill(label="note", value="")
    browser.submit()
    assert browser.path == DEVICES
    assert browser.driver.current_url.startswith(browser.base)
