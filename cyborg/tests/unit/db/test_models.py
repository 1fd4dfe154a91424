# SPDX-License-Identifier: Apache-2.0
"""Test rules of all tables, and that the values of the model fit their columns."""

from enum import StrEnum
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute

from cyborg.db.migrations import initial_tables
from cyborg.db.models import METADATA, Arq, AttachHandle, Attribute, Device, Driver, Service, Work
from cyborg.model.arq import BINDING, State
from cyborg.model.attribute import Origin
from cyborg.model.device import AttachType, DeviceStatus, DeviceType, HandleState
from cyborg.model.report import DriverState
from cyborg.model.work import WorkKind


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (Arq.state, State),
        (AttachHandle.attach_type, AttachType),
        (AttachHandle.state, HandleState),
        (Attribute.origin, Origin),
        (Device.status, DeviceStatus),
        (Device.type, DeviceType),
        (Driver.state, DriverState),
        (Service.status, DriverState),
        (Work.kind, WorkKind),
    ],
)
def test_values_of_the_model_fit_their_column(
    column: InstrumentedAttribute[Any], words: type[StrEnum]
) -> None:
    assert isinstance(column.type, sa.String)
    assert column.type.length is not None
    assert max(map(len, words)) <= column.type.length


def test_defaults_are_values_of_the_model() -> None:
    for column, word in (
        (AttachHandle.state, HandleState.READY),
        (Arq.substate, State.INITIAL),
        (Device.origin, Origin.DISCOVERED),
        (Attribute.origin, Origin.DISCOVERED),
    ):
        default = column.expression.server_default
        assert isinstance(default, sa.DefaultClause)
        assert str(default.arg) == word


@pytest.mark.parametrize("table", METADATA.sorted_tables, ids=lambda table: str(table.name))
def test_unique_constraint_is_named_after_its_columns(table: sa.Table) -> None:
    for constraint in table.constraints:
        if isinstance(constraint, sa.UniqueConstraint):
            columns = [column.name for column in constraint.columns]
            assert str(constraint.name).split("0")[1:] == columns
            assert str(constraint.name).startswith(f"uniq_{table.name}0")


@pytest.mark.parametrize("table", METADATA.sorted_tables, ids=lambda table: str(table.name))
def test_foreign_key_has_an_index(table: sa.Table) -> None:
    # PostgreSQL and SQLite make none by themselves: deletes of the referred row would scan.
    leading = {next(iter(index.columns)).name for index in table.indexes}
    leading |= {
        next(iter(constraint.columns)).name
        for constraint in table.constraints
        if isinstance(constraint, sa.UniqueConstraint | sa.PrimaryKeyConstraint)
    }
    assert {key.parent.name for key in table.foreign_keys} <= leading


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(
    "declared", [Arq.__table__, initial_tables.ARQS], ids=["model", "revision"]
)
def test_arq_in_a_state_with_a_unit_has_an_instance(declared: sa.Table, state: State) -> None:
    checks = [item for item in declared.constraints if isinstance(item, sa.CheckConstraint)]
    columns = [sa.Column(name, sa.String) for name in ("state", "instance_uuid")]
    table = sa.Table(
        "arqs", sa.MetaData(), *columns, *(sa.CheckConstraint(item.sqltext) for item in checks)
    )
    refused = []
    with sa.create_engine("sqlite://").connect() as connection:
        table.create(connection)
        for instance in (None, "an instance"):
            try:
                connection.execute(table.insert().values(state=state, instance_uuid=instance))
            except sa.exc.IntegrityError:
                refused.append(instance)
    assert refused == ([None] if state in BINDING else [])


def test_checks_of_the_revision_are_those_of_the_model() -> None:
    tables = {table.name: table for table in (*initial_tables.OLD, *initial_tables.NEW)}
    for name, model in METADATA.tables.items():
        checks = [
            {item.name for item in table.constraints if isinstance(item, sa.CheckConstraint)}
            for table in (model, tables.get(name, model))
        ]
        assert checks[0] == checks[1], name
