# SPDX-License-Identifier: Apache-2.0
"""A row of a whole table is its model; other rows are joins and parts of tables."""

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute

from cyborg import db
from cyborg.db.base import Base
from cyborg.db.engine import Database
from cyborg.db.models import METADATA, Host
from cyborg.db.rows import Result, Row, Shown, column, columns, select, shown
from cyborg.model.scope import EVERYWHERE


class ShownHost(Host, Shown):
    """A host that the API shows."""

    __abstract__ = True

    prepared = column(Host.id == 1)


def row_classes(parent: type[Result]) -> Iterator[type[Result]]:
    for child in parent.__subclasses__():
        if child not in (Row, Shown):
            yield child
        yield from row_classes(child)


def test_no_row_class_repeats_the_columns_of_a_table() -> None:
    for module in pkgutil.iter_modules(db.__path__):
        importlib.import_module(f"cyborg.db.{module.name}")
    projections = {one for one in row_classes(Result) if not issubclass(one, Base)}
    assert len(projections) > 10
    repeated = [
        (one.__name__, table.name)
        for one in projections
        for table, amount in Counter(
            term.class_.__table__
            for term in columns(one).values()
            if isinstance(term, InstrumentedAttribute)
        ).items()
        # A class that names most columns of a table must be a row of its model.
        if amount > 0.75 * len(table.columns)
    ]
    assert repeated == []


def test_row_of_a_table_outlives_its_transaction_and_cannot_be_changed(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/rows.sqlite")) as database:
        METADATA.create_all(database.engine)
        with database.writer() as tx:
            tx.execute(sa.insert(Host).values(name="compute", updated_ms=1))
        with database.reader() as tx:
            row = tx.one(select(Host))
            visible = tx.one(shown(ShownHost, None).within(EVERYWHERE))
    values = {name: getattr(row, name) for name in columns(Host)}
    assert values["name"] == "compute"
    assert {name: getattr(visible, name) for name in values} == values
    assert visible.prepared is True
    with pytest.raises(AttributeError):
        row.name = "other"


def test_rows_that_the_api_shows_need_a_scope() -> None:
    with pytest.raises(TypeError, match="ShownHost is shown"):
        select(ShownHost)
