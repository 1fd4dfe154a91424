# SPDX-License-Identifier: Apache-2.0
"""Pages put together are the whole list in its order, whatever the database thinks of NULL."""

from itertools import product

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


def test_pages_cover_the_list(current: Database) -> None:
    with current.writer() as tx:
        rows = [
            {"at_ms": number // 2, "subject_uuid": f"u{number}", "hostname": value}
            for number, value in enumerate(VALUES)
        ]
        tx.execute(sa.insert(Event).values(noun="arq", action="made"), rows)
    everything = sa.select(Event.subject_uuid, Event.hostname)
    for sort_key, sort_dir in product([None, "hostname", "uuid", "at"], ["asc", "desc"]):
        with current.reader() as tx:
            page = Page(sort_key=sort_key, sort_dir=sort_dir)
            whole = tx.execute(paged(tx, everything, EVENTS, page)).all()
            seen: list[sa.Row[str, str | None]] = []
            marker = None
            while True:
                page = Page(2, marker, sort_key, sort_dir)
                found = tx.execute(paged(tx, everything, EVENTS, page)).all()
                if not found:
                    break
                seen += found
                marker = found[-1].subject_uuid
        assert seen == whole, (sort_key, sort_dir)
        assert len(whole) == len(VALUES)
        if sort_key == "hostname":
            empty = [row.hostname is None for row in whole]
            assert empty == sorted(empty, reverse=sort_dir == "desc")
