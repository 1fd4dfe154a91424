# SPDX-License-Identifier: Apache-2.0
"""The overview."""

from collections.abc import Callable

from dashboard.tests.browser import Browser
from dashboard.tests.cloud import Cloud, Seen

INDEX = "/admin/accelerator_overview/"


def test_capacity_and_changes_are_shown(
    admin: Browser, counted: Callable[[], list[Seen]], picture: Callable[[str], None]
) -> None:
    admin.open(INDEX)
    rows = {row["Resource Class"]: row for row in admin.cells("#units_table")}
    assert (rows["CUSTOM_PCI"]["Used"], rows["CUSTOM_PCI"]["Total"]) == ("4", "16")
    assert rows["CUSTOM_PCI"]["Out of Service"] == "1 (1 maintaining)"
    assert admin.cells("section[aria-labelledby=events] table")
    profiles = {row["Profile"]: row for row in admin.cells("#capacity_table")}
    assert (profiles["h200"]["Further Servers"], profiles["h200"]["Used"]) == ("5", "3")
    assert profiles["gh200"]["Further Servers"] == "0"
    # The versions, units, capacity, each health, processes and events.
    assert len(counted()) == 1 + 1 + 1 + 5 + 1 + 1
    picture("overview")


def test_host_that_is_not_heard_is_named(admin: Browser, cloud: Cloud) -> None:
    host = cloud.computes["fpga-1.example.org"]
    host.kill(cloud.database)
    try:
        admin.open(INDEX)
        silent = admin.find("section[aria-labelledby=silent]").text
        assert "fpga-1.example.org" in silent
        assert "down" in silent
    finally:
        host.start()
