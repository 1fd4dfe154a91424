# SPDX-License-Identifier: Apache-2.0
"""A host with 1,000 devices: pages have a bounded number of rows, and of requests."""

from collections.abc import Callable
from urllib.parse import parse_qs

import pytest

from cyborg.tests.fixtures.host_reports import report_of
from cyborg.tests.fixtures.placement import shared
from dashboard.tests.browser import Browser
from dashboard.tests.cloud import Cloud, Seen

HOST = "wide-1.example.org"
INDEX = "/admin/accelerator_devices/"
#: Rows of a page of Horizon, unless a user chooses another number.
ROWS = 20


@pytest.fixture(scope="module")
def _wide(cloud: Cloud) -> None:
    shared().make_compute(HOST)
    cloud.stack.report(HOST, report_of(HOST, 1000))


@pytest.mark.usefixtures("_wide")
def test_list_is_read_page_by_page_in_both_directions(
    admin: Browser, counted: Callable[[], list[Seen]]
) -> None:
    admin.open(f"{INDEX}?hostname={HOST}")
    first = [row["Address"] for row in admin.cells()]
    assert len(first) == ROWS
    assert len(counted()) == 2
    pages = [first]
    for _ in range(3):
        admin.press("tfoot a[href*='marker']")
        pages.append([row["Address"] for row in admin.cells()])
        assert len(counted()) == 2
    assert len({address for page in pages for address in page}) == 4 * ROWS
    assert f"hostname={HOST}" in admin.path
    for page in reversed(pages[:-1]):
        admin.press("tfoot a[href*='before']")
        assert [row["Address"] for row in admin.cells()] == page
        assert len(counted()) == 2
    assert admin.all("tfoot a[href*='before']") == []


@pytest.mark.usefixtures("_wide")
@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/admin/accelerator_overview/", 10),
        ("/admin/accelerator_requests/", 3 + 5),
        ("/admin/accelerator_profiles/create/", 3),
        ("/admin/accelerator_hosts/", 2),
        ("/admin/accelerator_drivers/", 2),
        ("/project/accelerators/", 4),
    ],
)
def test_number_of_requests_does_not_depend_on_the_number_of_devices(
    admin: Browser, counted: Callable[[], list[Seen]], path: str, most: int
) -> None:
    admin.open(path)
    seen = counted()
    assert len(seen) <= most
    limits = [int(text) for request in seen for text in parse_qs(request.query).get("limit", ())]
    assert max(limits) <= 200
