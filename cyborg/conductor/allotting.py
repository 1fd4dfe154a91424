# SPDX-License-Identifier: Apache-2.0
"""Keeping the allocation of a living instance equal to what attach and detach made of its ARQs.

What is to stand there follows from the ARQs, so that doing it again changes nothing more.
"""

from collections.abc import Mapping
from dataclasses import replace

from cyborg import exception
from cyborg.clients.allocations import Allocations, Consumer
from cyborg.clients.placement import CONCURRENT_UPDATE
from cyborg.db import attaching
from cyborg.db.engine import Database

#: How often an allocation that somebody else has just changed is read again.
_LOOKS = 5

_Units = dict[str, dict[str, int]]


class Allotment:
    """Writes allocations of instances, always with the generation that was read."""

    def __init__(self, *, db: Database, placement: Allocations) -> None:
        self._db = db
        self._placement = placement

    def grow(self, instance: str, providers: Mapping[str, str]) -> None:
        """Have an instance hold at least the units that its ARQs bind of these providers.

        ``providers`` maps them to their resource classes. Raises exception.NotFound when it has
        no allocation at all, Conflict when there is no room, Invalid when a provider is gone, and
        Unavailable.
        """
        for _ in range(_LOOKS):
            found = self._placement.consumer(instance)
            if found is None:
                raise exception.NotFound(noun="Allocation of instance", key=instance)
            if self._write(instance, found, self._grown(instance, found, providers)):
                return
        raise exception.Unavailable(peer="Placement", reason="the allocation never keeps still")

    def shrink(self, instance: str, providers: Mapping[str, str]) -> None:
        """Have it hold no more of these providers than its ARQs bind; none at all is fine.

        Raises Conflict when Placement refuses, and Unavailable.
        """
        for _ in range(_LOOKS):
            found = self._placement.consumer(instance)
            if found is None:
                return
            if self._write(instance, found, self._shrunk(instance, found, providers)):
                return
        raise exception.Unavailable(peer="Placement", reason="the allocation never keeps still")

    def _grown(self, instance: str, found: Consumer, providers: Mapping[str, str]) -> _Units:
        wanted = self._units(instance)
        units: _Units = {rp: dict(one) for rp, one in found.allocations.items()}
        for rp, resource_class in providers.items():
            held = units.setdefault(rp, {})
            held[resource_class] = max(held.get(resource_class, 0), wanted.get(rp, 0))
        return _some(units)

    def _shrunk(self, instance: str, found: Consumer, providers: Mapping[str, str]) -> _Units:
        wanted = self._units(instance)
        units: _Units = {rp: dict(one) for rp, one in found.allocations.items()}
        for rp, resource_class in providers.items():
            if resource_class in units.get(rp, {}):
                units[rp][resource_class] = min(units[rp][resource_class], wanted.get(rp, 0))
        return _some(units)

    def _units(self, instance: str) -> Mapping[str, int]:
        with self._db.reader() as tx:
            return attaching.units(tx, instance)

    def _write(self, instance: str, found: Consumer, units: _Units) -> bool:
        """False when somebody else was faster."""
        if units == found.allocations:
            return True
        try:
            self._placement.set_consumer(instance, replace(found, allocations=units))
        except exception.Conflict as error:
            if error.fields.get("code") == CONCURRENT_UPDATE:
                return False
            raise
        return True


def _some(units: _Units) -> _Units:
    """Without what is zero, which Placement would refuse."""
    cleaned = {rp: {name: n for name, n in one.items() if n} for rp, one in units.items()}
    return {rp: one for rp, one in cleaned.items() if one}
