# SPDX-License-Identifier: Apache-2.0
"""What a drain of a host or a device waits for: the servers that have units, and where they fit."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from cyborg.api import answers, types
from cyborg.api.answers import Answer, Member
from cyborg.db import drains, hosts, providers
from cyborg.db.attachments import ATTACHED
from cyborg.db.drains import HeldUnit
from cyborg.db.transaction import Transaction
from cyborg.model.device_profile import Group, resource_classes, units
from cyborg.model.drains import Guest, Placement, place
from cyborg.model.explanation import Stock
from cyborg.model.scope import Scope

#: How many units of servers an answer is about.
_UNITS: Final = 1000
_NOT_SAID: Final = (
    "Nova's filters and weighers, and the CPUs, memory and disk of other hosts, are not asked: "
    "Nova may refuse a host that is named here."
)
_MORE: Final = f"There are more servers: the list has those with the first {_UNITS} units."


@dataclass(frozen=True)
class DrainedServer:
    """A server with units of what is drained, and whether it can move now."""

    units: Sequence[HeldUnit]
    placement: Placement

    @property
    def row(self) -> HeldUnit:
        """Return one of its units, which has all that the units have in common."""
        return self.units[0]


@dataclass(frozen=True)
class Drain:
    """The subject of a drain, its state, and the servers that have units of it."""

    host: str
    device: str | None
    status: str
    reason: str | None
    servers: Sequence[DrainedServer]
    notes: Sequence[str]


@dataclass(frozen=True)
class Subject:
    """A host or a device: the term of its devices, and whether a provider belongs to it."""

    term: sa.ColumnElement[bool]
    has: Callable[[Stock], bool]

    @classmethod
    def of_host(cls, tx: Transaction, agent: str) -> "Subject":
        """Return the host of an agent (``[DEFAULT] host``)."""
        host = hosts.of_agent(tx, agent)
        name = agent if host is None else host.name
        return cls(drains.of_host(agent), lambda stock: stock.host == name)

    @classmethod
    def of_device(cls, uuid: str) -> "Subject":
        """Return the device with this uuid."""
        return cls(drains.of_device(uuid), lambda stock: stock.device == uuid)


def servers(
    tx: Transaction, scope: Scope, subject: Subject
) -> tuple[list[DrainedServer], list[str]]:
    """Return the servers that have units of the subject, and notes about what is not said."""
    rows = drains.held(tx, scope, subject.term, _UNITS + 1)
    notes = [_NOT_SAID]
    if len(rows) > _UNITS:
        rows, notes = rows[:_UNITS], [_MORE, _NOT_SAID]
    by_server: dict[str, list[HeldUnit]] = defaultdict(list)
    for row in rows:
        by_server[row.instance_uuid or row.arq_uuid].append(row)
    held = [own for own in by_server.values() if any(row.drained for row in own)]
    guests = [_guest(own) for own in held]
    classes = {
        name for guest in guests for group in guest.groups for name in resource_classes(group)
    }
    stocks = providers.stocks(tx, classes) if classes else []
    names = providers.names(tx)
    placements = place(guests, [stock for stock in stocks if not subject.has(stock)], names)
    return [
        DrainedServer([row for row in own if row.drained], placement)
        for own, placement in zip(held, placements, strict=True)
    ], notes


def _guest(rows: Sequence[HeldUnit]) -> Guest:
    """Return what a server requests wherever it goes, from the units that it has."""
    groups: list[Group] = []
    requested: Counter[tuple[int, int]] = Counter()
    for row in rows:
        if row.origin == ATTACHED or not row.group_spec:
            continue
        # A group has as many ARQs as units; several ports may have the same profile.
        key = row.profile_id, row.group_index
        if requested[key] % max(1, units(row.group_spec)) == 0:
            groups.append(row.group_spec)
        requested[key] += 1
    attached = sum(row.origin == ATTACHED for row in rows)
    own = Counter(row.provider for row in rows if not row.drained and row.provider)
    return Guest(groups, attached, own)


_SERVER = Answer[DrainedServer](
    "DrainedServer",
    "A server with units of what is drained, and whether another host has room for it.",
    uuid=Member(answers.UUID_OR_NULL, lambda server: server.row.instance_uuid),
    name=Member(answers.TEXT_OR_NULL, lambda server: server.row.name),
    status=Member(answers.TEXT_OR_NULL, lambda server: server.row.status),
    project_id=Member(answers.TEXT_OR_NULL, lambda server: server.row.project_id),
    device_profiles=Member(
        answers.STRINGS, lambda server: sorted({row.profile for row in server.units})
    ),
    devices=Member(
        types.Items(types.UUID_TYPE),
        lambda server: sorted({row.device_uuid for row in server.units}),
    ),
    arqs=Member(
        types.Items(types.UUID_TYPE), lambda server: [row.arq_uuid for row in server.units]
    ),
    movable=Member(answers.Nullable(types.FLAG), lambda server: server.placement.movable),
    target=Member(answers.TEXT_OR_NULL, lambda server: server.placement.host),
    reason=Member(answers.STRING, lambda server: server.placement.reason),
)
DRAIN = Answer[Drain](
    "Drain",
    "What a drain of a host or a device waits for, or would wait for.",
    host=Member(answers.STRING),
    device=Member(answers.UUID_OR_NULL),
    status=Member(answers.STRING),
    reason=Member(answers.TEXT_OR_NULL),
    servers=Member(types.Items(_SERVER)),
    notes=Member(answers.STRINGS),
)
