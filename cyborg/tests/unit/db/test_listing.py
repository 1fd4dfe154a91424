# SPDX-License-Identifier: Apache-2.0
"""Test errors, pages, markers and the number of statements of keyset paging."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db.engine import Database
from cyborg.db.listing import Page, Sortable, paged
from cyborg.db.models import METADATA, Event
from cyborg.db.transaction import Transaction

EVENTS = Sortable(
    Event.id, Event.subject_uuid, {"hostname": Event.hostname, "action": Event.action}
)
VISIBLE = sa.select(Event.subject_uuid).where(Event.noun == "arq")


@pytest.fixture
def tx(tmp_path: Path) -> Iterator[Transaction]:
    """Return a connection to a table with the events a, b, c and d; c is not visible."""
    db = Database(f"sqlite:///{tmp_path}/list.sqlite")
    with db.writer() as connection:
        METADATA.create_all(connection.connection)
        connection.execute(
            sa.insert(Event),
            [
                {"at_ms": 1, "noun": noun, "subject_uuid": uuid, "action": "made"}
                for noun, uuid in (("arq", "a"), ("arq", "b"), ("device", "c"), ("arq", "d"))
            ],
        )
    with db.reader() as connection:
        yield connection
    db.close()


def _page(tx: Transaction, page: Page) -> list[str]:
    return list(tx.scalars(paged(tx, VISIBLE, EVENTS, page)))


@pytest.mark.parametrize(
    ("page", "field"),
    [
        (Page(sort_key="id; DROP TABLE"), "sort_key"),
        (Page(sort_key="uuid"), "sort_key"),
        (Page(sort_dir="up"), "sort_dir"),
        (Page(limit=-1), "limit"),
        (Page(marker="nobody"), "marker"),
        (Page(marker="c"), "marker"),
    ],
)
def test_invalid_page_names_the_field(tx: Transaction, page: Page, field: str) -> None:
    with pytest.raises(exception.Invalid) as caught:
        _page(tx, page)
    assert caught.value.fields["field"] == field


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (Page(), ["a", "b", "d"]),
        (Page(limit=2), ["a", "b"]),
        (Page(limit=0), []),
        (Page(limit=2, marker="b"), ["d"]),
        (Page(sort_dir="desc", marker="d"), ["b", "a"]),
        (Page(sort_key="action", marker="a", limit=1), ["b"]),
        (Page(sort_key="hostname", sort_dir="desc", marker="d"), ["b", "a"]),
        (Page(marker="d"), []),
    ],
)
def test_page_has_the_expected_rows(tx: Transaction, page: Page, expected: list[str]) -> None:
    assert _page(tx, page) == expected


def test_marker_is_found_without_the_filters(tx: Transaction) -> None:
    query = paged(tx, VISIBLE, EVENTS, Page(marker="a")).where(Event.subject_uuid != "a")
    assert list(tx.scalars(query)) == ["b", "d"]


def test_marker_executes_one_select(tx: Transaction) -> None:
    statements: list[str] = []
    sa.event.listen(
        tx.connection, "before_cursor_execute", lambda *args: statements.append(args[2])
    )
    paged(tx, VISIBLE, EVENTS, Page(limit=1))
    assert statements == []
    paged(tx, VISIBLE, EVENTS, Page(limit=1, marker="a", sort_key="action"))
    assert [text[:6] for text in statements if text != "BEGIN"] == ["SELECT"]
