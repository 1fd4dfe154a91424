# SPDX-License-Identifier: Apache-2.0
"""Which servers a drain waits for, and on which other hosts their accelerators would fit now.

The servers are placed one after the other on the free units of the remaining providers: those for
which the fewest hosts have room first, then the largest. Nova decides where a server really goes.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cyborg.model.device_profile import Group, resource_classes, units
from cyborg.model.explanation import Names, Stock, explain
from cyborg.model.satisfiability import assign

#: The largest number of different requests for which hosts are looked for.
MAX_KINDS: Final = 20
#: How many hosts a sentence names.
_NAMED: Final = 3
_UNKNOWN: Final = (
    f"Not examined: the servers have more than {MAX_KINDS} different requests. Drain accelerators "
    "one by one, or ask cyborg profile-explain."
)
_NONE: Final = "It has no accelerator of a flavor or a port: no other host needs to have one."
_ATTACHED: Final = (
    "Its attached accelerators do not move with it: detach them first with cyborg detach-instance."
)

#: Groups in a form that can be compared.
_Kind = tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True)
class Guest:
    """A server with units that a drain waits for.

    ``groups`` is what it requests wherever it goes, ``attached`` how many units were attached to it
    and do not go with it. ``own`` are its units, by provider, that are not drained: they are free
    for it again when it leaves them.
    """

    groups: Sequence[Group]
    attached: int = 0
    own: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """Whether a server can move now, and the host that has room for it beside all others.

    ``movable`` is None if that was not examined. ``reason`` has sentences, empty if there is
    nothing to say.
    """

    movable: bool | None
    host: str | None
    reason: str


def place(guests: Sequence[Guest], stocks: Sequence[Stock], names: Names) -> list[Placement]:
    """Return a placement for each guest; ``stocks`` are those that are not drained."""
    return _Plan(stocks, names).place(guests)


class _Plan:
    """Gives the free units of hosts to guests."""

    def __init__(self, stocks: Sequence[Stock], names: Names) -> None:
        self._stocks, self._names = stocks, names
        self._hosts: dict[str, list[Stock]] = defaultdict(list)
        for stock in stocks:
            self._hosts[stock.host].append(stock)
        self._left = {
            host: [stock.supply.free for stock in own] for host, own in self._hosts.items()
        }
        #: Request → the hosts that have room for it: at first, and still.
        self._able: dict[_Kind, list[str]] = {}
        self._open: dict[_Kind, list[str]] = {}
        self._reasons: dict[_Kind, str] = {}

    def place(self, guests: Sequence[Guest]) -> list[Placement]:
        """See the function."""
        kinds = [_kind(guest) for guest in guests]
        examined = list(dict.fromkeys(kind for kind in kinds if kind))[:MAX_KINDS]
        for kind in examined:
            groups = _groups(kind)
            self._able[kind] = [
                host for host in sorted(self._hosts) if self._assigned(groups, host) is not None
            ]
            self._open[kind] = list(self._able[kind])

        def turn(index: int) -> tuple[int, int, int]:
            kind = kinds[index]
            return len(self._able.get(kind, ())), -sum(map(units, _groups(kind))), index

        placements: dict[int, Placement] = {}
        for index in sorted(range(len(guests)), key=turn):
            placement = self._of(guests[index], kinds[index])
            if guests[index].attached:
                reason = f"{placement.reason} {_ATTACHED}".strip()
                placement = Placement(placement.movable, placement.host, reason)
            placements[index] = placement
        return [placements[index] for index in range(len(guests))]

    def _of(self, guest: Guest, kind: _Kind) -> Placement:
        if not kind:
            return Placement(True, None, _NONE)
        if kind not in self._able:
            return Placement(None, None, _UNKNOWN)
        groups = _groups(kind)
        host = self._take_own(guest, groups) or self._take(kind, groups)
        if host is not None:
            return Placement(True, host, "")
        able = self._able[kind]
        if not able:
            return Placement(False, None, self._reason(kind, groups))
        hosts = ", ".join(able[:_NAMED])
        more = f" and {len(able) - _NAMED} more" if len(able) > _NAMED else ""
        reason = (
            f"Other servers of this drain need the free units of {hosts}{more}: move this one "
            "instead of them, or free more units there."
        )
        return Placement(False, None, reason)

    def _take(self, kind: _Kind, groups: Sequence[Group]) -> str | None:
        """Take the units of the first host that still has room; None: no host has."""
        hosts = self._open[kind]
        while hosts:
            chosen = self._assigned(groups, hosts[0])
            if chosen is not None:
                self._book(hosts[0], groups, chosen, {})
                return hosts[0]
            # The free units only become fewer.
            hosts.pop(0)
        return None

    def _take_own(self, guest: Guest, groups: Sequence[Group]) -> str | None:
        """Take the units of the host on which the guest has other units; None: it has no room."""
        for host in sorted({each.host for each in self._stocks if each.provider in guest.own}):
            own = {
                place: guest.own.get(stock.provider or "", 0)
                for place, stock in enumerate(self._hosts[host])
            }
            chosen = self._assigned(groups, host, own.__getitem__)
            if chosen is not None:
                self._book(host, groups, chosen, own)
                return host
        return None

    def _assigned(
        self, groups: Sequence[Group], host: str, own: Callable[[int], int] = lambda _place: 0
    ) -> list[int] | None:
        supplies = [stock.supply for stock in self._hosts[host]]
        left = [free + own(place) for place, free in enumerate(self._left[host])]
        return assign(groups, supplies, left)

    def _book(
        self, host: str, groups: Sequence[Group], chosen: Sequence[int], own: Mapping[int, int]
    ) -> None:
        needed: Counter[int] = Counter()
        for group, chosen_place in zip(groups, chosen, strict=False):
            needed[chosen_place] += units(group)
        for chosen_place, amount in needed.items():
            self._left[host][chosen_place] -= max(0, amount - own.get(chosen_place, 0))

    def _reason(self, kind: _Kind, groups: Sequence[Group]) -> str:
        if kind not in self._reasons:
            classes = {name for group in groups for name in resource_classes(group)}
            missing = sorted(classes - {stock.supply.resource_class for stock in self._stocks})
            if missing:
                reason = f"No other accelerator has {', '.join(missing)}: add hardware."
            else:
                reason = explain(groups, self._stocks, self._names).summary
            self._reasons[kind] = f"No other host has room for it. {reason}"
        return self._reasons[kind]


def _kind(guest: Guest) -> _Kind:
    return tuple(sorted(tuple(sorted(group.items())) for group in guest.groups if units(group)))


def _groups(kind: _Kind) -> list[Group]:
    return [dict(items) for items in kind]
