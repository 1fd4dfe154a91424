# SPDX-License-Identifier: Apache-2.0
"""What crosses the bus: round trips, readers that are older or newer, and odd values."""

import importlib
import json
import math
import pkgutil
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from itertools import product
from typing import Any

import pytest

from cyborg import exception, model
from cyborg.model import wire
from cyborg.model.arq import Arq, State
from cyborg.model.device import AttachHandle, Backend, Deployable, Device, Hardware
from cyborg.model.device import Attribute as DeviceAttribute
from cyborg.model.operation import HostResult, Operation, ResultState, Step
from cyborg.model.report import (
    Acknowledged,
    AgentHeartbeat,
    DriverReport,
    HeartbeatReply,
    Reading,
    Report,
)
from cyborg.model.work import Outcome
from cyborg.tests.fixtures.properties import given, settings, st
from cyborg.tests.unit.model.kinds import VALUES, declared
from cyborg.tests.unit.model.shapes import KINDS


def few(kind: Any) -> Any:
    return st.lists(st.from_type(kind), max_size=2).map(tuple)


# Small ones: what hypothesis makes of these types by itself is too large to be shrunk.
st.register_type_strategy(
    Deployable, st.builds(Deployable, handles=few(AttachHandle), attributes=few(DeviceAttribute))
)
st.register_type_strategy(Device, st.builds(Device, deployables=few(Deployable)))
# What is Any on the wire is JSON.
json_objects = st.dictionaries(
    st.text(max_size=5),
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers()),
    max_size=2,
)
st.register_type_strategy(Hardware, st.builds(Hardware, capability=json_objects))
st.register_type_strategy(Backend, st.builds(Backend, capabilities=json_objects))
st.register_type_strategy(
    DriverReport,
    st.builds(
        DriverReport,
        devices=few(Device),
        hardware=st.none() | few(Hardware),
        backends=st.none() | few(Backend),
    ),
)
st.register_type_strategy(Report, st.builds(Report, drivers=few(DriverReport)))


st.register_type_strategy(
    HostResult,
    st.builds(
        HostResult,
        host=st.text(),
        state=st.sampled_from(ResultState),
        result=st.none() | st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
        error=st.none() | st.text(),
    ),
)
# What is no number equals nothing, itself included.
st.register_type_strategy(
    Reading,
    st.builds(
        Reading,
        figures=st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=2),
    ),
)
st.register_type_strategy(Operation, st.builds(Operation, steps=few(Step), results=few(HostResult)))


def test_kinds_are_unique_literals_as_recorded() -> None:
    modules = [
        importlib.import_module(f"{model.__name__}.{module.name}")
        for module in pkgutil.iter_modules(model.__path__)
    ]
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and hasattr(value, "KIND") and is_dataclass(value)
    }
    kinds = [declared(kind, "KIND") for kind in classes]
    assert sorted(map(str, kinds)) == sorted(VALUES)
    assert classes >= set(KINDS)


def over_the_bus(value: Any) -> Any:
    return json.loads(json.dumps(wire.dump(value)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(data=st.data())
def test_value_survives_a_round_trip_with_unknown_keys(kind: Any, data: st.DataObject) -> None:
    value = data.draw(st.from_type(kind))
    envelope = over_the_bus(value)
    assert wire.load(kind, envelope) == value
    envelope["later"] = 1
    envelope["body"]["later"] = {"anything": []}
    assert wire.load(kind, envelope) == value


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5)
@given(data=st.data())
def test_missing_field_takes_default_or_is_named(kind: Any, data: st.DataObject) -> None:
    envelope = over_the_bus(data.draw(st.from_type(kind)))
    for field in fields(kind):
        body = {key: value for key, value in envelope["body"].items() if key != field.name}
        shorter = {**envelope, "body": body}
        if field.default is MISSING and field.default_factory is MISSING:
            with pytest.raises(exception.Invalid) as caught:
                wire.load(kind, shorter)
            assert caught.value.fields["field"] == f"{kind.KIND}.{field.name}"
        else:
            made = field.default_factory
            default = field.default if made is MISSING else made()
            assert getattr(wire.load(kind, shorter), field.name) == default


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_unusual_values_are_invalid_or_preserved(kind: Any, data: st.DataObject) -> None:
    """Whatever stands in a field: an error of ours, or a value that travels back as it came."""
    envelope = over_the_bus(data.draw(st.from_type(kind)))
    field = data.draw(st.sampled_from([one.name for one in fields(kind)]))
    envelope["body"][field] = data.draw(json_values)
    try:
        value = wire.load(kind, envelope)
    except exception.Invalid:
        return
    assert wire.load(kind, over_the_bus(value)) == value


@given(envelope=json_values)
def test_invalid_envelopes_are_refused(envelope: Any) -> None:
    with pytest.raises(exception.Invalid):
        wire.load(Outcome, envelope)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (Outcome, {"kind": "Arq"}),
        (Outcome, {"version": 2}),
        (Outcome, {"version": None}),
        (Outcome, {"body": None}),
        (Outcome, {"body": []}),
        (Outcome, {"body": {"request_key": "o", "done": 1}}),
        (Outcome, {"body": {"request_key": 7}}),
        (HeartbeatReply, {"body": {"epoch": True, "digest": None, "desired_generation": 1}}),
        (Acknowledged, {"body": {"desired_generation": 1, "refused": {"a": 1}}}),
        (AgentHeartbeat, {"body": {"provider_names": "host"}}),
        (Backend, {"body": {"name": "n", "state": "READY", "capabilities": {"a": {1}}}}),
        (Backend, {"body": {"name": "n", "state": "READY", "capabilities": {"a": {1: 2}}}}),
        (Backend, {"body": {"name": "n", "state": "READY", "capabilities": {"a": [math.nan]}}}),
    ],
)
def test_unexpected_kinds_are_refused(kind: Any, changes: dict[str, Any]) -> None:
    envelope = {"kind": kind.KIND, "version": 1, "body": {}} | changes
    with pytest.raises(exception.Invalid):
        wire.load(kind, envelope)


MOMENTS: list[Any] = ["yesterday", "", "2026-13-01", 5, [], True]
WORDS: list[Any] = ["Odd", None, 1, []]


@pytest.mark.parametrize(
    ("field", "value"), [*product(["created_at"], MOMENTS), *product(["state"], WORDS)]
)
def test_invalid_dates_and_unknown_words_are_refused(field: str, value: Any) -> None:
    envelope = wire.dump(Arq("u", State.INITIAL, "p", 0, None, datetime(2026, 1, 2)))
    envelope["body"][field] = value
    with pytest.raises(exception.Invalid, match=field):
        wire.load(Arq, envelope)


def test_deeply_nested_value_is_invalid() -> None:
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(exception.Invalid, match="nested too deeply"):
        wire.unpack(dict[str, Any], {"a": deep}, "options")
    hardware = Hardware("k", "FPGA", "v", "m", offered=True)
    envelope = wire.dump(hardware)
    envelope["body"]["capability"] = {"a": deep}
    with pytest.raises(exception.Invalid, match="nested too deeply"):
        wire.load(Hardware, envelope)


def test_long_value_is_shown_in_part() -> None:
    envelope = wire.dump(Arq("u", State.INITIAL, "p", 0, None, datetime(2026, 1, 2)))
    for changed in ({**envelope, "version": "9" * 70_000}, {**envelope}):
        changed["body"] = {**envelope["body"], "state": "x" * 70_000}
        with pytest.raises(exception.Invalid) as refused:
            wire.load(Arq, changed)
        assert len(str(refused.value)) < 1_000
