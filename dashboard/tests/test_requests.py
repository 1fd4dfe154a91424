# SPDX-License-Identifier: Apache-2.0
"""The panel of accelerator requests."""

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from cyborg.db.models import Arq
from dashboard.tests.browser import Browser
from dashboard.tests.cloud import Cloud, Seen

INDEX = "/admin/accelerator_requests/"
FAULT = "Driver pci_driver: the function 0000:1b:00.0 cannot be reset"


@pytest.fixture
def failed(cloud: Cloud) -> Iterator[str]:
    """A request that failed; it is bound again afterwards."""
    arq = cloud.send("GET", "/accelerator_requests", hostname="gpu-2.example.org")["arqs"][0]
    with cloud.database.writer() as tx:
        tx.execute(
            sa.update(Arq).where(Arq.uuid == arq["uuid"]).values(state="BindFailed", fault=FAULT)
        )
    yield arq["uuid"]
    with cloud.database.writer() as tx:
        tx.execute(sa.update(Arq).where(Arq.uuid == arq["uuid"]).values(state="Bound", fault=None))


def test_list_shows_requests_by_server_and_state(
    admin: Browser, counted: Callable[[], list[Seen]]
) -> None:
    admin.open(INDEX)
    rows = admin.cells()
    assert [row["State"] for row in rows] == ["Bound"] * 4
    assert {row["Device Profile"] for row in rows} == {"h200", "h100"}
    assert len(counted()) == 3
    admin.open(f"{INDEX}?instance={rows[0]['Server']}")
    assert [row["Server"] for row in admin.cells()] == [rows[0]["Server"]]
    admin.open(f"{INDEX}?state=Initial")
    assert admin.cells() == []
    admin.open(f"{INDEX}?instance=nonsense")
    assert "Enter a valid UUID" in admin.text


def test_failed_requests_come_first(
    admin: Browser, failed: str, picture: Callable[[str], None]
) -> None:
    admin.open(INDEX)
    (row,) = admin.cells("#failed_requests")
    assert (row["Request"], row["Host"]) == ("h100", "gpu-2.example.org")
    assert row["Fault"] == FAULT
    picture("requests")
    admin.press("#failed_requests a")
    assert admin.path == f"{INDEX}{failed}/"
    assert "BindFailed" in admin.text
    assert "BindStarted" in admin.text or "Initial" in admin.text
