# SPDX-License-Identifier: Apache-2.0
"""Pages put together are the whole list in its order, whatever the database thinks of NULL."""

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.listing import Page, Sortable, paged
from cyborg.db.models import Event

VALUES = ["b", None, "a", "b", None, "c", "a", "B", None]
EVENTS = Sortable(
    Event.id,
    Event.subject_uuid,
    {"hostname": Event.hostname, "uuid": Event.subject_uuid, "at": Event.at_ms},
)


@pytest.mark.parametrize("sort_dir", ["asc", "desc"])
@pytest.mark.parametrize("sort_key", [None, "hostname", "uuid", "at"])
def test_pages_cover_the_list(current: Database, sort_key: str | None, sort_dir: str) -> None:
    with current.writer() as tx:
        tx.execute(
            sa.insert(Event),
            [
                {
                    "at_ms": number // 2,
                    "noun": "arq",
                    "subject_uuid": f"u{number}",
                    "action": "made",
                    "hostname": value,
                }
                for number, value in enumerate(VALUES)
            ],
        )
    everything = sa.select(Event.subject_uuid, Event.hostname)
    with current.reader() as tx:
        whole = tx.execute(
            paged(tx, everything, EVENTS, Page(sort_key=sort_key, sort_dir=sort_dir))
        ).all()
        seen: list[sa.Row[str, str | None]] = []
        marker = None
        while True:
            page = Page(2, marker, sort_key, sort_dir)
            rows = tx.execute(paged(tx, everything, EVENTS, page)).all()
            if not rows:
                break
            seen += rows
            marker = rows[-1].subject_uuid
    assert seen == whole
    assert len(whole) == len(VALUES)
    if sort_key == "hostname":
        empty = [row.hostname is None for row in whole]
        assert empty == sorted(empty, reverse=sort_dir == "desc")
