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


ODD_UUIDS = ["", "x", "0" * 31, "0" * 33, "{" + "0" * 30 + "}", "٣" * 32, "0x" + "0" * 30]


@pytest.mark.parametrize("text", [*ODD_UUIDS, "+" + "0" * 31])
def test_almost_a_uuid_is_refused(text: str) -> None:
    assert types.canonical_uuid(text) is None


READ: list[tuple[types.Strict, Any, Any]] = [
    (types.INTEGER, 0, 0),
    (types.INTEGER, "7", 7),
    (types.INTEGER, "007", 7),
    (types.INTEGER, 2**31 - 1, 2**31 - 1),
    (types.FLAG, True, True),
    (types.FLAG, "TRUE", True),
    (types.FLAG, "false", False),
    (types.Text(3), "", ""),
    (types.Text(3), "abc", "abc"),
    (types.Word("a"), "a", "a"),
    (types.Items(types.NAME, 1, 2), ["a", "a"], ["a", "a"]),
    (types.Items(types.NAME, unique=True), ["a", "a"], ["a"]),
    (types.Members(types.NAME, nullable=True), {"a": None}, {"a": None}),
    (types.Commas(types.Text(3)), " a,b,,a, c ", ["a", "b", "c"]),
    (types.Commas(types.Text(3)), "", []),
]
NO_NUMBERS = (True, False, 1.0, 1.5, -1, "-1", "1.0", "1e3", " 1", "", "٣", 2**31, "9" * 99, None)
REFUSED: dict[types.Strict, tuple[Any, ...]] = {
    types.INTEGER: (*NO_NUMBERS, []),
    types.FLAG: (0, 1, "yes", "", None, []),
    types.Text(3, minimum=1): ("", "long", 3, None, ["a"], {"a": 1}),
    types.Word("a"): ("A", "", 1, None, ["a"]),
    types.Items(types.NAME, 1, 2): ([], ["a"] * 3, "a", {"a": 1}, None, [1]),
    types.Members(types.NAME): (["a"], "a", None, {"a": None}, {"a": 1}, {"x" * 256: "a"}),
    types.Members(types.NAME, maximum=1): ({"a": "1", "b": "2"},),
    types.Commas(types.Text(3)): ("a,long",),
}


def test_types_read_valid_values_and_refuse_others() -> None:
    for kind, raw, value in READ:
        assert kind.read(raw) == value, (kind, raw)
    for kind, values in REFUSED.items():
        for raw in values:
            with pytest.raises(types.ValidationError):
                kind.read(raw)


class Inner(wsme.types.Base):  # type: ignore[misc]
    """An object in a list."""

    number = wsme.wsattr(types.INTEGER, mandatory=True)


class Outer(wsme.types.Base):  # type: ignore[misc]
    """An object with a list."""

    inner = wsme.wsattr(types.Items(types.Object(Inner)))


def test_error_names_the_path_of_its_field() -> None:
    for raw, place in (
        ([], ""),
        ({"inner": {}}, "inner"),
        ({"inner": [1]}, "inner[0]"),
        ({"inner": [{"number": 1}, {}]}, "inner[1].number"),
        ({"inner": [{"number": None}]}, "inner[0].number"),
    ):
        with pytest.raises(types.ValidationError) as caught:
            types.Object(Outer).read(raw)
        assert caught.value.path == place


class Versioned(types.Declared):
    """Fields of 2.0, and fields that 2.100 adds; one of those is mandatory."""

    old = wsme.wsattr(types.NAME)
    new = types.Field(types.NAME, since=100)
    needed = types.Field(types.NAME, since=100, mandatory=True)


class Outside(types.Declared):
    """Objects of fields that 2.100 adds, in a list and in an object of any names."""

    listed = wsme.wsattr(types.Items(types.Object(Versioned, closed=True)))
    named = wsme.wsattr(types.Members(types.Object(Versioned)))


def test_query_refuses_parameter_before_its_microversion() -> None:
    sent = {"old": "a", "new": "b", "needed": "c"}
    assert types.query(Versioned, sent, 100) == sent
    assert types.query(Versioned, {"old": "a"}, 3) == {"old": "a"}
    with pytest.raises(types.ValidationError, match=r"below microversion 2\.100") as caught:
        types.query(Versioned, {"old": "a", "new": "b"}, 3)
    assert caught.value.path == "new"
    with pytest.raises(types.ValidationError, match="it is missing"):
        types.query(Versioned, {"old": "a"}, 100)


def test_nested_field_is_unknown_before_its_microversion() -> None:
    body = types.Object(Outside)
    older = body.at(3)
    whole = {"old": "a", "new": "b", "needed": "c"}
    assert body.at(100).read({"listed": [whole]}) == {"listed": [whole]}
    assert older.read({"named": {"x": whole}}) == {"named": {"x": {"old": "a"}}}
    with pytest.raises(types.ValidationError, match=r"below microversion 2\.100") as caught:
        older.read({"listed": [whole]})
    assert caught.value.path == "listed[0].new"


def test_empty_change_names_fields_of_its_microversion() -> None:
    with pytest.raises(types.ValidationError, match="at least one of old is needed"):
        types.PartialObject(Versioned).at(3).read({})


def test_undeclared_field_is_ignored_unless_type_is_closed() -> None:
    odd = {"number": 1, "colour": "red"}
    assert types.Object(Inner).read(odd) == {"number": 1}
    with pytest.raises(types.ValidationError, match="no such parameter"):
        types.Object(Inner, closed=True).read(odd)
