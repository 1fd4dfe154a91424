# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests (ARQs) and the one table of their states.

The database's conditional updates, the answers of the API, the words for Nova and the documents all
come from this table; there is no second list of states anywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar
from uuid import UUID, uuid5

from cyborg.model.moves import Move


class State(StrEnum):
    """The states of an ARQ, in the exact spelling that clients know."""

    INITIAL = "Initial"
    BIND_STARTED = "BindStarted"
    BOUND = "Bound"
    UNBOUND = "Unbound"
    BIND_FAILED = "BindFailed"
    # No move leads to the last two: only ARQs of the existing service have them.
    UNBIND_FAILED = "UnbindFailed"
    DELETING = "Deleting"


class Event(StrEnum):
    """The events of an ARQ; the value completes the sentence "it cannot …"."""

    BIND = "be bound"
    START = "start to be bound"
    FINISH = "finish its bind"
    FAIL = "fail its bind"
    UNBIND = "be unbound"


MOVES: Mapping[Event, Move[State]] = MappingProxyType(
    {
        # The device needs no preparation: bound within the request.
        Event.BIND: Move(frozenset({State.INITIAL, State.UNBOUND}), State.BOUND),
        # The host has work to do first; FINISH or FAIL follows.
        Event.START: Move(frozenset({State.INITIAL, State.UNBOUND}), State.BIND_STARTED),
        Event.FINISH: Move(frozenset({State.BIND_STARTED}), State.BOUND),
        Event.FAIL: Move(frozenset({State.BIND_STARTED}), State.BIND_FAILED),
        # From Unbound as well: a repeated unbind answers the same.
        Event.UNBIND: Move(
            frozenset(
                {
                    State.INITIAL,
                    State.BIND_STARTED,
                    State.BOUND,
                    State.BIND_FAILED,
                    State.UNBIND_FAILED,
                    State.UNBOUND,
                }
            ),
            State.UNBOUND,
        ),
    }
)

#: In these states an ARQ has an instance and a unit.
BINDING = frozenset({State.BOUND, State.BIND_STARTED})

#: Nova takes these as final (its client filters on exactly these words).
RESOLVED = frozenset({State.BOUND, State.BIND_FAILED, State.DELETING})


@dataclass(frozen=True)
class Binding:
    """One ARQ's part of a bind request; the values are as the client sent them, checked.

    ``project_id`` is None unless the request named an owner (microversion 2.1, admins).
    """

    KIND: ClassVar[str] = "Binding"

    arq_uuid: str
    hostname: str
    device_rp_uuid: str
    instance_uuid: str
    project_id: str | None = None


@dataclass(frozen=True)
class Arq:
    """An accelerator request as the API shows it; times are UTC without a zone."""

    KIND: ClassVar[str] = "Arq"

    uuid: str
    state: State
    device_profile_name: str
    device_profile_group_id: int
    project_id: str | None
    created_at: datetime | None
    updated_at: datetime | None = None
    hostname: str | None = None
    device_rp_uuid: str | None = None
    instance_uuid: str | None = None
    attach_handle_type: str = ""
    attach_handle_uuid: str | None = None
    attach_handle_info: dict[str, str] = field(default_factory=dict)


def arq_uuids(operation_id: str, count: int) -> list[str]:
    """Return the uuids of the ARQs of one create request.

    They follow from the request key (a random uuid of the API), so that a repeated create finds
    its own rows by their unique key instead of creating more.
    """
    return [str(uuid5(UUID(operation_id), str(index))) for index in range(count)]
