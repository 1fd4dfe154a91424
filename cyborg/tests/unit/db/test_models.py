# SPDX-License-Identifier: Apache-2.0
"""Test rules of all tables, and that the values of the model fit their columns."""

from enum import StrEnum
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute

from cyborg.db.models import METADATA, Arq, AttachHandle, Attribute, Device, Driver, Service, Work
from cyborg.model.arq import State
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
