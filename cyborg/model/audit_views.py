# SPDX-License-Identifier: Apache-2.0
"""What Placement, Nova and the hosts answered in an audit."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cyborg.model.provider import Inventory


@dataclass(frozen=True)
class Shown:
    """One resource provider as Placement shows it; ``allocations`` by consumer, then class."""

    name: str
    parent_uuid: str | None
    inventories: Mapping[str, Inventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    allocations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """What Placement shows of one host: the compute's own provider, and providers by uuid.

    ``root`` is None when Placement does not know the compute.
    """

    root: str | None
    providers: Mapping[str, Shown] = field(default_factory=dict)


@dataclass(frozen=True)
class AuditViews:
    """The answers of other services; an audit concludes nothing from a missing answer.

    ``placement`` are views by host name. ``vanished`` are uuids for which Nova answered that it
    has no server. ``consumer_ages`` tells how long, at least, consumers have had allocations
    without ARQs. ``prepared`` are the units, as (deployable name, handle key), that hosts (by
    name) hold ready for guests.
    """

    placement: Mapping[str, View] = field(default_factory=dict)
    vanished: frozenset[str] = frozenset()
    consumer_ages: Mapping[str, int] = field(default_factory=dict)
    prepared: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
