# SPDX-License-Identifier: Apache-2.0
"""The shapes of what crosses the bus, one line of text each, and a reader that knows only them.

A dataclass is its fields, ``name:type``, a question mark behind those that have a default; an enum
is its words. An error is its HTTP status and the fields that its sentence needs.
"""

import string
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, get_args, get_type_hints

from cyborg import exception
from cyborg.model.arq import Arq, Binding
from cyborg.model.attribute import Attribute
from cyborg.model.caller import Caller
from cyborg.model.creation import Creation
from cyborg.model.device_profile import DeviceProfile, ProfileChange
from cyborg.model.guests import HostGuests
from cyborg.model.operation import Operation
from cyborg.model.probation import HealthOrder
from cyborg.model.report import (
    Acknowledged,
    AgentHeartbeat,
    Desired,
    HeartbeatReply,
    Reading,
    Report,
)
from cyborg.model.work import (
    Discovered,
    DiscoveryTask,
    HandleTask,
    InstallTask,
    Outcome,
    ProgramTask,
    UnitUses,
)

#: Everything that is an argument or an answer of a verb on the bus.
KINDS: list[Any] = [
    Acknowledged,
    Arq,
    Attribute,
    Binding,
    Caller,
    Creation,
    Desired,
    DeviceProfile,
    Discovered,
    DiscoveryTask,
    HandleTask,
    HealthOrder,
    HostGuests,
    AgentHeartbeat,
    UnitUses,
    InstallTask,
    Operation,
    Outcome,
    ProfileChange,
    ProgramTask,
    Reading,
    Report,
    HeartbeatReply,
]
#: The name of an envelope → that of its shape.
ENVELOPES: dict[str, str] = {
    kind.KIND: f"{kind.__module__.removeprefix('cyborg.model.')}.{kind.__name__}" for kind in KINDS
}
_SCALARS: dict[str, type] = {"str": str, "int": int, "bool": bool, "float": float}


def shapes() -> dict[str, str]:
    """All shapes by name, those that others hold included."""
    found: dict[str, str] = {}
    for kind in everything():
        if issubclass(kind, Enum):
            found[named(kind)] = " ".join(str(one.value) for one in kind)
        else:
            hints = get_type_hints(kind)
            found[named(kind)] = " ".join(_field(one, hints[one.name]) for one in fields(kind))
    return found


def everything() -> list[Any]:
    """All dataclasses and enums of the wire, by name."""
    found: set[Any] = set()
    for kind in KINDS:
        _gather(kind, found)
    return sorted(found, key=named)


def errors() -> dict[str, str]:
    """All errors that may cross the bus, by name."""
    found: dict[str, str] = {}
    kinds = [exception.CyborgError]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        needed = sorted({one[1] for one in string.Formatter().parse(kind.sentence) if one[1]})
        found[kind.kind] = " ".join([str(kind.status), *needed])
    return found


def named(kind: type) -> str:
    """What a type is called in a shape."""
    name = f"{kind.__module__}.{kind.__name__}"
    return name.removeprefix("cyborg.model.").removeprefix("builtins.")


def typed(hint: Any) -> str:
    """What a type with its arguments is called in a shape."""
    text = str(hint).replace("cyborg.model.", "") if get_args(hint) else named(hint)
    return text.replace(" ", "")


def validate(known: dict[str, str], shape: str, value: Any) -> str | None:
    """What is wrong with plain data to a reader that knows only these shapes; None: it fits.

    Keys that it does not know are nothing to it.
    """
    shape, _, optional = shape.partition("|")
    if value is None and optional:
        return None
    if shape.startswith(("tuple[", "frozenset[", "list[")):
        inner = shape.partition("[")[2].removesuffix("]").removesuffix(",...")
        if not isinstance(value, list):
            return f"{value!r} is no list"
        return next((bad for one in value if (bad := validate(known, inner, one))), None)
    if shape.startswith("dict["):
        inner = shape.partition(",")[2].removesuffix("]")
        if not isinstance(value, dict):
            return f"{value!r} is no object"
        return next((bad for one in value.values() if (bad := validate(known, inner, one))), None)
    return _flaw_of_one(known, shape, value)


def _flaw_of_one(known: dict[str, str], shape: str, value: Any) -> str | None:
    if shape == "typing.Any":
        return None
    if shape == "datetime.datetime":
        return None if datetime.fromisoformat(value) else "no moment"
    if shape in _SCALARS:
        return None if type(value) is _SCALARS[shape] else f"{value!r} is no {shape}"
    parts = known[shape].split()
    if ":" not in known[shape]:
        return None if value in parts else f"{value!r} is no word of {shape}"
    for part in parts:
        name, _, inner = part.partition(":")
        if name in value:
            bad = validate(known, inner.removesuffix("?"), value[name])
            if bad is not None:
                return f"{shape}.{name}: {bad}"
        elif not part.endswith("?"):
            return f"{shape}.{name} is missing"
    return None


def _gather(kind: Any, found: set[Any]) -> None:
    if kind in found:
        return
    found.add(kind)
    for hint in get_type_hints(kind).values():
        for part in parts_of(hint):
            if is_dataclass(part) or (isinstance(part, type) and issubclass(part, Enum)):
                if is_dataclass(part):
                    _gather(part, found)
                found.add(part)


def parts_of(hint: Any) -> list[Any]:
    """A type and all that it is made of."""
    return [hint, *(part for one in get_args(hint) for part in parts_of(one))]


def _field(field: Field[Any], hint: Any) -> str:
    optional = field.default is not MISSING or field.default_factory is not MISSING
    return f"{field.name}:{typed(hint)}{'?' if optional else ''}"
