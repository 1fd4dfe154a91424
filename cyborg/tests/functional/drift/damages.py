# SPDX-License-Identifier: Apache-2.0
"""What people and programs do to our providers in Placement, one thing at a time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from uuid import uuid4

from cyborg.clients.placement import Placement
from cyborg.model.audit_findings import Kind
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS
from cyborg.tests.functional.drift.site import Entry, Site

FOREIGN = "CUSTOM_OPERATORS_OWN"
OURS = "CUSTOM_CARD"


@dataclass(frozen=True)
class Damage:
    """What was done, and what is to come of it.

    ``kinds`` are what an audit calls it (about ``key``) before and after the agent's check, none
    for what is no fault at all. ``kept`` are providers that must look so from now on: what others
    put there stays; ``forgets`` that foreign traits went with it. ``remedy`` is what a human does
    where the agent may not repair it; None where it does. ``fails``: the agent tries to repair it,
    and says why it cannot.
    """

    about: str
    kinds: tuple[Kind, ...] = ()
    key: str | None = None
    kept: tuple[tuple[str, Entry], ...] = ()
    forgets: bool = False
    remedy: Callable[[], object] | None = None
    fails: bool = False


Maker = Callable[[Site, str, Random], Damage]


def _call(site: Site, method: str, path: str, body: Any = None, version: str = "1.36") -> Any:
    if version == "1.36":
        return site.service.call(method, path, body)
    answer = site.service.adapter().request(
        path, method, microversion=version, json=body, headers={"Accept": "application/json"}
    )
    return answer.json()


def _seen(site: Site, uuid: str) -> Entry:
    placement = Placement(site.service.adapter())
    node = placement.find_by_uuid(uuid)
    assert node is not None
    return Entry(
        node.name,
        node.parent_uuid,
        placement.inventories(uuid)[1],
        placement.traits(uuid)[1],
        placement.allocations_of(uuid),
    )


def _inventories(site: Site, uuid: str, change: Callable[[dict[str, Any]], None]) -> None:
    path = f"/resource_providers/{uuid}/inventories"
    found = _call(site, "GET", path)
    change(found["inventories"])
    _call(site, "PUT", path, found)


def _traits(site: Site, uuid: str, change: Callable[[set[str]], set[str]]) -> None:
    path = f"/resource_providers/{uuid}/traits"
    found = _call(site, "GET", path)
    found["traits"] = sorted(change(set(found["traits"])))
    _call(site, "PUT", path, found)


def _field(name: str, value: float, *kinds: Kind) -> Maker:
    def change(site: Site, uuid: str, dice: Random) -> Damage:
        _inventories(site, uuid, lambda one: one[RESOURCE_CLASS].update({name: value}))
        return Damage(f"{name} is {value}", kinds or (Kind.DRIFT,))

    return change


def delete_provider(site: Site, uuid: str, dice: Random) -> Damage:
    _call(site, "DELETE", f"/resource_providers/{uuid}")
    return Damage("provider deleted", (Kind.MISSING_PROVIDER,), forgets=True)


def delete_inventory(site: Site, uuid: str, dice: Random) -> Damage:
    _call(site, "DELETE", f"/resource_providers/{uuid}/inventories")
    return Damage("inventory deleted", (Kind.DRIFT,))


def remove_our_trait(site: Site, uuid: str, dice: Random) -> Damage:
    _traits(site, uuid, lambda had: had - {OURS})
    return Damage("our trait removed", (Kind.DRIFT,))


def delete_traits(site: Site, uuid: str, dice: Random) -> Damage:
    _call(site, "DELETE", f"/resource_providers/{uuid}/traits")
    return Damage("all traits deleted", (Kind.DRIFT,), forgets=True)


def rename(site: Site, uuid: str, dice: Random) -> Damage:
    _call(site, "PUT", f"/resource_providers/{uuid}", {"name": f"renamed-{uuid}"})
    return Damage("provider renamed", (Kind.DRIFT,))


def replace_inventory(site: Site, uuid: str, dice: Random) -> Damage:
    def change(inventories: dict[str, Any]) -> None:
        inventories.clear()
        inventories["VGPU"] = {"total": 3}

    _inventories(site, uuid, change)
    return Damage("another class in place of ours", (Kind.DRIFT,))


def add_inventory(site: Site, uuid: str, dice: Random) -> Damage:
    _inventories(site, uuid, lambda one: one.update({"VGPU": {"total": 3}}))
    return Damage("another class beside ours", (Kind.DRIFT,))


def use_inventory(site: Site, uuid: str, dice: Random) -> Damage:
    """Placement removes no inventory that has allocations: a human has to."""
    add_inventory(site, uuid, dice)
    consumer = str(uuid4())
    site.nova.own(consumer, "project")
    site.allocate(uuid, consumer, "VGPU")
    return Damage(
        "another class beside ours, with an allocation",
        (Kind.DRIFT,),
        remedy=lambda: site.service.free(consumer),
        fails=True,
    )


def hide_below_another(site: Site, uuid: str, dice: Random) -> Damage:
    """Moved where it does not belong, in our own tree."""
    other = dice.choice(sorted(site.bound.values()))
    body = {"name": _seen(site, uuid).name, "parent_provider_uuid": other}
    _call(site, "PUT", f"/resource_providers/{uuid}", body, "1.37")
    return Damage(
        "moved below another of ours",
        (Kind.MISPLACED_PROVIDER,),
        forgets=True,
        remedy=lambda: _call(site, "DELETE", f"/resource_providers/{uuid}"),
    )


def take_its_name(site: Site, uuid: str, dice: Random) -> Damage:
    """Deleted, and made again by somebody else, somewhere else."""
    name = _seen(site, uuid).name
    _call(site, "DELETE", f"/resource_providers/{uuid}")
    thief = _call(site, "POST", "/resource_providers", {"name": name})["uuid"]
    return Damage(
        "its name is another provider's",
        (Kind.MISSING_PROVIDER, Kind.REFUSED_PROVIDER),
        forgets=True,
        remedy=lambda: _call(site, "DELETE", f"/resource_providers/{thief}"),
    )


def add_foreign_trait(site: Site, uuid: str, dice: Random) -> Damage:
    _call(site, "PUT", f"/traits/{FOREIGN}")
    before = _seen(site, uuid)
    _traits(site, uuid, lambda had: had | {FOREIGN})
    kept = replace(before, traits=before.traits | {FOREIGN})
    return Damage("foreign trait added", kept=((uuid, kept),))


def add_foreign_provider(site: Site, uuid: str, dice: Random) -> Damage:
    # Below one that is never deleted: that would be refused then.
    parents = (site.root, *sorted(site.bound.values()))
    name = f"foreign-{dice.getrandbits(64):x}-{site.host}"
    body = {"name": name, "parent_provider_uuid": dice.choice(parents)}
    made = _call(site, "POST", "/resource_providers", body)["uuid"]
    inventory = {"resource_provider_generation": 0, "inventories": {"VGPU": {"total": 1}}}
    _call(site, "PUT", f"/resource_providers/{made}/inventories", inventory)
    return Damage("foreign provider added", kept=((made, _seen(site, made)),))


def change_compute(site: Site, uuid: str, dice: Random) -> Damage:
    """nova-compute's own affair."""
    total = dice.randrange(8, 512)
    _inventories(site, site.root, lambda one: one["VCPU"].update(total=total))
    return Damage("the compute's inventory changed", kept=((site.root, _seen(site, site.root)),))


def add_namesake(site: Site, uuid: str, dice: Random) -> Damage:
    """One that looks like ours, of no device of ours: reported and left to a human."""
    name = f"{site.host}_{dice.getrandbits(64):x}"
    body = {"name": name, "uuid": provider_uuid(name), "parent_provider_uuid": site.root}
    made = _call(site, "POST", "/resource_providers", body)["uuid"]
    return Damage(
        "a provider that looks like ours",
        (Kind.ORPHAN_PROVIDER,),
        made,
        remedy=lambda: _call(site, "DELETE", f"/resource_providers/{made}"),
    )


#: These need a provider that nobody has units of; Placement refuses them for others.
ON_UNUSED: tuple[Maker, ...] = (
    delete_provider,
    delete_inventory,
    replace_inventory,
    hide_below_another,
    take_its_name,
)
ON_ANY: tuple[Maker, ...] = (
    _field("total", 1),
    _field("total", 9, Kind.EXCESS_INVENTORY),
    _field("reserved", 1),
    _field("reserved", 2),
    _field("max_unit", 1),
    _field("step_size", 2),
    _field("allocation_ratio", 4.0),
    remove_our_trait,
    delete_traits,
    rename,
    add_inventory,
    use_inventory,
    add_foreign_trait,
    add_foreign_provider,
    change_compute,
    add_namesake,
)
