# SPDX-License-Identifier: Apache-2.0
"""What one statement weighs, and which table it writes to."""

import pytest

from cyborg.testing.costs import LIST, Allowance
from cyborg.testing.counting import Statement, Tally


@pytest.mark.parametrize(
    ("text", "sets", "weight"),
    [
        ("INSERT INTO hosts (name) VALUES (?)", 1, 1),
        ("INSERT INTO hosts (name) VALUES (?)", 1000, 1),
        ("INSERT INTO hosts (name) VALUES (?)", 1001, 2),
        ("UPDATE hosts SET name=?", 1, 1),
        ("UPDATE hosts SET name=?", 5, 5),
        ("DELETE FROM hosts WHERE id=?", 3, 3),
    ],
)
def test_many_sets_of_values(text: str, sets: int, weight: int):
    assert Statement(text, [("x",)] * sets, many=True).weight == weight


def test_one_set_of_values_is_one_statement():
    assert Statement("UPDATE hosts SET name=?", ("x",), many=False).weight == 1


@pytest.mark.parametrize(
    ("text", "touched"),
    [
        ("INSERT INTO devices (uuid) VALUES (?)", True),
        ("UPDATE `devices` SET status=%s", True),
        ('DELETE FROM "devices" WHERE id=1', True),
        ("SELECT devices.id FROM devices FOR UPDATE", False),
        ("UPDATE hosts SET name='devices'", False),
    ],
)
def test_what_a_statement_writes_to(text: str, touched: bool):
    assert Statement(text, (), many=False).touches("devices") is touched


def test_an_allowance_covers_fewer_statements_but_no_other_number_of_commits():
    read = Statement("SELECT 1 FROM hosts", (), many=False)
    assert LIST.covers(Tally([read] * 3))
    assert not LIST.covers(Tally([read] * 4))
    assert not LIST.covers(Tally([read], commits=1))
    assert not Allowance(4, 1, 1).covers(Tally([read]))
