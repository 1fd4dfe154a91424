# SPDX-License-Identifier: Apache-2.0
"""The strict types: what they take, in which form it comes out, and how a fault is located."""

from typing import Any
from uuid import UUID

import pytest
import wsme
import wsme.types

from cyborg.api import types
from cyborg.tests.fixtures.properties import given, st


@given(st.uuids(), st.sampled_from([str, lambda u: u.hex, lambda u: str(u).upper()]))
def test_any_spelling_of_a_uuid_becomes_canonical(uuid: UUID, spelling: Any) -> None:
    assert types.canonical_uuid(spelling(uuid)) == str(uuid)


@pytest.mark.parametrize(
    "text",
    ["", "x", "0" * 31, "0" * 33, "{" + "0" * 30 + "}", "٣" * 32, "0x" + "0" * 30, "+" + "0" * 31],
)
def test_almost_a_uuid_is_refused(text: str) -> None:
    assert types.canonical_uuid(text) is None


@pytest.mark.parametrize(("raw", "read"), [(0, 0), (7, 7), ("7", 7), ("007", 7), (2**31 - 1,) * 2])
def test_integers_are_read(raw: Any, read: int) -> None:
    assert types.INTEGER.read(raw) == read


@pytest.mark.parametrize(
    "raw", [True, False, 1.0, 1.5, -1, "-1", "1.0", "1e3", " 1", "", "٣", 2**31, "9" * 99, None, []]
)
def test_invalid_integers_are_refused(raw: Any) -> None:
    with pytest.raises(types.ValidationError):
        types.INTEGER.read(raw)


class Inner(wsme.types.Base):  # type: ignore[misc]
    """An object in a list."""

    number = wsme.wsattr(types.INTEGER, mandatory=True)


class Outer(wsme.types.Base):  # type: ignore[misc]
    """An object with a list."""

    inner = wsme.wsattr(types.Items(types.Object(Inner)))


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ([], ""),
        ({"inner": {}}, "inner"),
        ({"inner": [1]}, "inner[0]"),
        ({"inner": [{"number": 1}, {}]}, "inner[1].number"),
        ({"inner": [{"number": None}]}, "inner[0].number"),
    ],
)
def test_error_names_the_path_of_its_field(raw: Any, place: str) -> None:
    with pytest.raises(types.ValidationError) as caught:
        types.Object(Outer).read(raw)
    assert caught.value.path == place


class Versioned(types.Declared):
    """Fields of 2.0, and fields that 2.5 adds; one of those is mandatory."""

    old = wsme.wsattr(types.NAME)
    new = types.Field(types.NAME, since=5)
    needed = types.Field(types.NAME, since=5, mandatory=True)


class Outside(types.Declared):
    """Objects of fields that 2.5 adds, in a list and in an object of any names."""

    listed = wsme.wsattr(types.Items(types.Object(Versioned, closed=True)))
    named = wsme.wsattr(types.Members(types.Object(Versioned)))


def test_query_refuses_parameter_before_its_microversion() -> None:
    sent = {"old": "a", "new": "b", "needed": "c"}
    assert types.query(Versioned, sent, 5) == sent
    assert types.query(Versioned, {"old": "a"}, 4) == {"old": "a"}
    with pytest.raises(types.ValidationError, match=r"below microversion 2\.5") as caught:
        types.query(Versioned, {"old": "a", "new": "b"}, 4)
    assert caught.value.path == "new"
    with pytest.raises(types.ValidationError, match="it is missing"):
        types.query(Versioned, {"old": "a"}, 5)


def test_nested_field_is_unknown_before_its_microversion() -> None:
    body = types.Object(Outside)
    older = body.at(4)
    whole = {"old": "a", "new": "b", "needed": "c"}
    assert body.at(5).read({"listed": [whole]}) == {"listed": [whole]}
    assert older.read({"named": {"x": whole}}) == {"named": {"x": {"old": "a"}}}
    with pytest.raises(types.ValidationError, match=r"below microversion 2\.5") as caught:
        older.read({"listed": [whole]})
    assert caught.value.path == "listed[0].new"


def test_empty_change_names_fields_of_its_microversion() -> None:
    with pytest.raises(types.ValidationError, match="at least one of old is needed"):
        types.Change(Versioned).at(4).read({})


def test_undeclared_field_is_ignored_unless_type_is_closed() -> None:
    odd = {"number": 1, "colour": "red"}
    assert types.Object(Inner).read(odd) == {"number": 1}
    with pytest.raises(types.ValidationError, match="no such parameter"):
        types.Object(Inner, closed=True).read(odd)


def test_comma_separated_lists_are_read() -> None:
    commas = types.Commas(types.Text(3))
    assert commas.read(" a,b,,a, c ") == ["a", "b", "c"]
    assert commas.read("") == []
    with pytest.raises(types.ValidationError, match="longer than 3"):
        commas.read("a,long")
