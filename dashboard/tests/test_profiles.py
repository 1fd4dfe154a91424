# SPDX-License-Identifier: Apache-2.0
"""The panel of device profiles."""

from collections.abc import Callable, Iterator

import pytest

from cyborg.tests.fixtures.waiting import eventually
from dashboard.tests.browser import Browser
from dashboard.tests.cloud import Cloud, Seen

INDEX = "/admin/accelerator_profiles/"
NAME = "made"
GROUP = "resources:CUSTOM_PCI=1, trait:CUSTOM_PCI_PRODUCT_ID_2335=required"


@pytest.fixture(autouse=True)
def _nothing_remains(cloud: Cloud) -> Iterator[None]:
    yield
    for profile in cloud.send("GET", "/device_profiles")["device_profiles"]:
        if profile["name"].startswith(NAME):
            cloud.send("DELETE", f"/device_profiles/{profile['uuid']}")


def test_list_says_which_profiles_can_be_met_and_how_often(
    admin: Browser, counted: Callable[[], list[Seen]], picture: Callable[[str], None]
) -> None:
    admin.open(INDEX)
    # The versions, the profiles, and the capacity of all of them.
    assert len(counted()) == 3
    assert admin.fits("table.datatable")
    picture("profiles")
    rows = {row["Name"]: row for row in admin.cells()}
    assert {name: row["Can Be Met"] for name, row in rows.items()} == {
        "h200": "now",
        "h100": "now",
        "n6001": "now",
        "gh200": "never",
    }
    assert {name: row["Further Servers"] for name, row in rows.items()} == {
        "h200": "5",
        "h100": "6",
        "n6001": "2",
        "gh200": "0",
    }
    assert rows["n6001"]["For"] == "1 project"
    assert rows["h200"]["For"] == "all projects"
    admin.open(f"{INDEX}?name=h200")
    assert [row["Name"] for row in admin.cells()] == ["h200"]


def test_form_offers_what_exists_and_says_while_one_types_whether_it_can_be_met(
    admin: Browser, cloud: Cloud, picture: Callable[[str], None]
) -> None:
    admin.open(f"{INDEX}create/")
    classes = [option.text for option in admin.all("#builder_class option")]
    traits = [option.text for option in admin.all("#builder_traits option")]
    assert classes == ["CUSTOM_PCI", "FPGA"]
    assert {"CUSTOM_FPGA_INTEL", "CUSTOM_PCI_PRODUCT_ID_2335"} <= set(traits)
    admin.fill(name=NAME, description="One whole H200", groups="resources:CUSTOM_PCI=60")
    verdict, room = admin.find("#verdict"), admin.find("#room")
    eventually(lambda: "accelerator-verdict-never" in str(verdict.get_attribute("class")), "never")
    assert room.text == "No further server fits now."
    admin.fill(groups="resources:CUSTOM_PCI")
    eventually(lambda: "does not have the form KEY=VALUE" in verdict.text, "the line is named")
    assert room.text == ""
    admin.fill(groups="resources:CUSTOM_PCI=0")
    eventually(lambda: "groups[0].resources:CUSTOM_PCI" in verdict.text, "the field is named")
    admin.find("#id_groups").clear()
    trait = "CUSTOM_PCI_PRODUCT_ID_2335"
    admin.find(f"#builder_traits option:nth-child({traits.index(trait) + 1})").click()
    admin.find("#builder_add").click()
    assert admin.find("#id_groups").get_attribute("value") == GROUP
    eventually(lambda: "gpu-1.example.org" in verdict.text, "the host is named")
    assert room.text == "5 further servers fit now."
    assert '"resources:CUSTOM_PCI": "1"' in admin.find("#groups_json").text
    picture("profile-create")
    admin.submit()
    profile = cloud.send("GET", f"/device_profiles/{NAME}")["device_profile"]
    assert admin.path == f"{INDEX}{profile['uuid']}/"
    assert (profile["description"], profile["projects"]) == ("One whole H200", None)
    assert profile["groups"] == [
        {"resources:CUSTOM_PCI": "1", "trait:CUSTOM_PCI_PRODUCT_ID_2335": "required"}
    ]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"name": NAME}, "This field is required"),
        ({"groups": GROUP}, "This field is required"),
        ({"name": NAME, "groups": "a=1, a=2"}, "has the key a twice"),
        ({"name": NAME, "groups": "resources:NOTHING=1"}, "NOTHING"),
        ({"name": "h200", "groups": GROUP}, "h200"),
        ({"name": NAME, "groups": GROUP, "projects": "a b!"}, "projects"),
    ],
)
def test_wrong_profile_is_refused_with_the_field(
    admin: Browser, cloud: Cloud, fields: dict[str, str], sentence: str
) -> None:
    admin.open(f"{INDEX}create/")
    admin.fill(**fields)
    admin.submit()
    assert admin.path == f"{INDEX}create/"
    assert sentence in admin.text
    # What was typed is still there.
    for name, text in fields.items():
        assert admin.find(f".accelerators [name={name}]").get_attribute("value") == text
    names = {
        profile["name"] for profile in cloud.send("GET", "/device_profiles")["device_profiles"]
    }
    assert NAME not in names


def test_warnings_of_the_service_are_shown(admin: Browser) -> None:
    admin.open(f"{INDEX}create/")
    admin.fill(name=NAME, groups="resources:CUSTOM_PCI=1, trait:CUSTOM_NOBODY_HAS=required")
    admin.submit()
    assert any("CUSTOM_NOBODY_HAS" in message for message in admin.messages)


def test_profile_is_edited_and_made_private(admin: Browser, cloud: Cloud) -> None:
    blue = cloud.keystone.project_id("blue")
    cloud.profile(NAME, {"resources:FPGA": "1"})
    uuid = cloud.send("GET", f"/device_profiles/{NAME}")["device_profile"]["uuid"]
    admin.open(f"{INDEX}{uuid}/update/")
    assert admin.find("#id_groups").get_attribute("value") == "resources:FPGA=1"
    admin.fill(groups="resources:FPGA=2", projects=blue, description="Two")
    admin.submit()
    profile = cloud.send("GET", f"/device_profiles/{uuid}")["device_profile"]
    assert profile["groups"] == [{"resources:FPGA": "2"}]
    assert (profile["projects"], profile["description"]) == ([blue], "Two")
    admin.open(f"{INDEX}{uuid}/update/")
    admin.fill(projects="", description="")
    admin.submit()
    profile = cloud.send("GET", f"/device_profiles/{uuid}")["device_profile"]
    assert (profile["projects"], profile["description"]) == (None, None)


def test_page_of_a_profile_explains_why_it_does_not_fit(
    admin: Browser, cloud: Cloud, picture: Callable[[str], None]
) -> None:
    uuid = cloud.send("GET", "/device_profiles/gh200")["device_profile"]["uuid"]
    admin.open(f"{INDEX}{uuid}/")
    assert "Why a server does not get it now" in admin.text
    assert "the nearest existing one is CUSTOM_PCI_PRODUCT_ID_233" in admin.text
    assert '"resources:CUSTOM_PCI": "1"' in admin.text
    picture("profile")


def test_profile_is_deleted_and_one_in_use_is_kept(admin: Browser, cloud: Cloud) -> None:
    cloud.profile(NAME, {"resources:FPGA": "1"})
    for name, sentence in ((NAME, "Deleted"), ("h200", "used by")):
        uuid = cloud.send("GET", f"/device_profiles/{name}")["device_profile"]["uuid"]
        admin.open(INDEX)
        admin.find(f"input[value='{uuid}']").click()
        admin.find("#profiles__action_delete").click()
        eventually(lambda: admin.all(".modal .btn-danger"), "a question")
        admin.press(".modal .btn-danger")
        assert any(sentence in message for message in admin.messages), admin.messages
