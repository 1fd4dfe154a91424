# SPDX-License-Identifier: Apache-2.0
"""The guests that devices have units for, and what the work for one of them does to the others."""

import contextlib
import math
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cyborg import exception
from cyborg.model.device import Deployable, Device
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask, Unit
from cyborg.testing import situations
from cyborg.testing.fake_host import FakeHost


@dataclass(frozen=True)
class Guest:
    """A guest with as many units of a deployable as a guest takes at a time; a task for each."""

    device: Device
    deployable: Deployable
    tasks: tuple[HandleTask, ...]

    @property
    def text(self) -> str:
        """Return the units, for a message."""
        keys = ", ".join(task.handle_key for task in self.tasks)
        return f"{keys} of {self.deployable.name}"

    @property
    def functions(self) -> frozenset[str]:
        """Return the PCI functions that the guest gets, and the one that names its device."""
        keys = {task.handle_key for task in self.tasks}
        handles = [handle for handle in self.deployable.handles if handle.key in keys]
        places = {str(PciAddress.from_info(one.info)) for one in handles if "bus" in one.info}
        return frozenset({self.device.key, *places})

    def is_among(self, units: Collection[Unit]) -> bool:
        """Return whether all units are listed, each by the key or the UUID of its handle."""
        return all(names_of(task) & set(units) for task in self.tasks)


def names_of(task: HandleTask) -> set[Unit]:
    """Return the two names by which ``prepared`` may list the unit of a task."""
    return {task.unit, Unit(task.deployable, task.handle_uuid)}


def guests_of(driver: str, devices: Sequence[Device]) -> list[Guest]:
    """Return a guest for each group of units of the devices, in their order."""
    return [
        Guest(device, part, tuple(_task(driver, device, part, key) for key in keys))
        for device in devices
        for part in device.deployables
        for keys in _groups([handle.key for handle in part.handles], part.group_size)
    ]


def _groups(keys: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (keys[start : start + size] for start in range(0, len(keys), size))


def _task(driver: str, device: Device, deployable: Deployable, key: str) -> HandleTask:
    name = f"{deployable.name}/{key}"
    return HandleTask(
        request_key=f"operation-{name}",
        driver=driver,
        device_key=device.key,
        deployable=deployable.name,
        handle_key=key,
        # As random as the UUID of a handle, and the same in each run.
        handle_uuid=str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
    )


def fitting(guests: Iterable[Guest]) -> list[Guest]:
    """Return the guests that the pools of their devices have room for, the first ones first.

    A pool that the device does not have limits nothing here.
    """
    taken: Counter[tuple[str, str]] = Counter()
    chosen = []
    for guest in guests:
        amounts = {
            (guest.device.key, pool): amount * len(guest.tasks)
            for pool, amount in guest.deployable.cost.items()
        }
        if all(
            taken[pool] + amount <= guest.device.pools.get(pool[1], math.inf)
            for pool, amount in amounts.items()
        ):
            taken.update(amounts)
            chosen.append(guest)
    return chosen


#: Read-only files in which kernel drivers tell what room the guests of a card leave to the others.
#: Sources: "Virtual GPU Software User Guide" of NVIDIA; vfio-mediated-device.rst of the kernel.
_ROOM = ("/nvidia/creatable_vgpu_types", "/available_instances")
#: How two guests are related: they share a deployable, or a device, or neither.
_RELATIONS: tuple[Callable[[Guest, Guest], bool], ...] = (
    lambda one, two: one.deployable == two.deployable,
    lambda one, two: one.device == two.device and one.deployable != two.deployable,
    lambda one, two: one.device != two.device,
)


def pairs(guests: Sequence[Guest]) -> list[tuple[Guest, Guest]]:
    """Return pairs of guests that fit together, of each relation, for the first and the last."""
    chosen = []
    for guest in (guests[0], guests[-1]):
        for related in _RELATIONS:
            others = (other for other in guests if other != guest and related(guest, other))
            chosen += [(guest, other) for other in others if len(fitting([guest, other])) == 2][:1]
    return chosen


def own_changes(before: situations.Tree, after: situations.Tree) -> set[str]:
    """Return the files that differ between two trees, without those of ``_ROOM``."""
    changed = situations.changed(before, after)
    return {path for path in changed if not path.endswith(_ROOM)}


def trespass(
    before: FakeHost,
    after: FakeHost,
    guest: Guest,
    others: Iterable[Guest],
    *,
    looks: Callable[[FakeHost], Collection[tuple[str, ...]]],
) -> str:
    """Return how the work for a guest reached for a unit of another one, as a clause; else "".

    ``before`` is a copy of the host from before the work, ``after`` the host with what was done to
    it since: writes, commands and privileged actions. ``looks`` returns the commands that only
    read. Functions that both guests have, such as the parent of their mediated devices, do not
    count.
    """
    foreign = {place for other in others for place in other.functions} - guest.functions
    places = {place: situations.directory(before, place) for place in foreign}
    own = [situations.directory(before, place) for place in guest.functions]

    def is_foreign(path: str) -> bool:
        return not any(place and f"{path}/".startswith(f"{place}/") for place in own) and any(
            place and path.startswith(f"{place}/") for place in places.values()
        )

    for path, _ in after.writes:
        if is_foreign(path):
            return f"it writes to {path}"
    for path in sorted(own_changes(before.tree(), after.tree())):
        if is_foreign(path):
            return f"it changes {path}"
    nodes = before.open_files().devices if after.commands else {}
    for words in after.commands:
        concerned = any(
            is_foreign(nodes.get(word, "")) or any(place in word for place in foreign)
            for word in words[1:]
        )
        if concerned and words not in looks(before):
            return f"it runs {' '.join(words)}"
    for action in after.actions:
        # An action whose reach cannot be read has failed as well.
        with contextlib.suppress(exception.HostError):
            reach = action.reach(before.privileged.kernel) if action.changes else None
            if reach is not None:
                touched = foreign & {str(place) for place in (reach.named, *reach.disturbed)}
                if touched:
                    return f"it asks for {action}, which affects {', '.join(sorted(touched))}"
    return ""
