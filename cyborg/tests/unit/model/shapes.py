# SPDX-License-Identifier: Apache-2.0
"""The types of what crosses the bus, and their names in the documents."""

from dataclasses import is_dataclass
from enum import Enum
from typing import Any, get_args, get_type_hints

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


def everything() -> list[Any]:
    """All dataclasses and enums of the wire, by name."""
    found: set[Any] = set()
    for kind in KINDS:
        _gather(kind, found)
    return sorted(found, key=named)


def named(kind: type) -> str:
    """What a type is called in a shape."""
    name = f"{kind.__module__}.{kind.__name__}"
    return name.removeprefix("cyborg.model.").removeprefix("builtins.")


def typed(hint: Any) -> str:
    """What a type with its arguments is called in a shape."""
    text = str(hint).replace("cyborg.model.", "") if get_args(hint) else named(hint)
    return text.replace(" ", "")


def _gather(kind: Any, found: set[Any]) -> None:
    if kind in found:
        return
    found.add(kind)
    for hint in get_type_hints(kind).values():
        for part in _parts_of(hint):
            if is_dataclass(part) or (isinstance(part, type) and issubclass(part, Enum)):
                if is_dataclass(part):
                    _gather(part, found)
                found.add(part)


def _parts_of(hint: Any) -> list[Any]:
    """A type and all that it is made of."""
    return [hint, *(part for one in get_args(hint) for part in _parts_of(one))]
