# SPDX-License-Identifier: Apache-2.0
"""Claim units for ARQs: choose attach handles, and write all that follows from a claim.

A bind claims units for ARQs that exist, an attach for ARQs that it creates.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from cyborg import exception
from cyborg.conductor.arqs import images
from cyborg.conductor.arqs.quotas import Check
from cyborg.db import attach_handles, deployables, dirty_units, events, pools, projects, work
from cyborg.db.deployables import Offer
from cyborg.db.transaction import Transaction
from cyborg.db.units import hold
from cyborg.model.arq import MOVES, Event, State
from cyborg.model.cleaning import CLEANING, level, profile_level
from cyborg.model.device_profile import accel_requirements, parse_image
from cyborg.model.work import WorkKind

P = ParamSpec("P")
R = TypeVar("R")

#: Runs of a use case that loses races.
_ATTEMPTS = 10


class TooFewHandles(Exception):
    """Other transactions may have locked handles.

    This transaction holds locks on handles itself, so it must not wait for them.
    """


def repeated(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a use case so that it runs again, in a new transaction, when it loses a race.

    These races end with a plain Conflict: another request has inserted the same row, or has bound
    an ARQ before it was locked. After TooFewHandles the use case gets ``wait=True``, so that it
    waits for handles. It holds no handle while it waits, and locks them in order.
    """

    @functools.wraps(function)
    def with_repetitions(*args: P.args, **kwargs: P.kwargs) -> R:
        for _ in range(1, _ATTEMPTS):
            try:
                return function(*args, **kwargs)
            except TooFewHandles:
                kwargs["wait"] = True
            except exception.Conflict as error:
                # A subclass is the final answer to the request.
                if type(error) is not exception.Conflict:
                    raise
        return function(*args, **kwargs)

    return with_repetitions


@dataclass(frozen=True)
class Claim:
    """An ARQ that gets a unit of a deployable.

    ``hidden``: an attach operation binds the ARQ later, and Nova waits for no event of it.
    """

    arq_uuid: str
    group_spec: dict[str, str]
    deployable: Offer
    instance_uuid: str
    hostname: str | None
    project_id: str | None
    hidden: bool = False


@dataclass(frozen=True)
class ClaimedUnit:
    """A claim, and the handle that is locked for it."""

    claim: Claim
    handle: attach_handles.Claim
    #: Whether the agent has work to do before the guest gets the unit.
    prepares: bool

    @property
    def state(self) -> State:
        """Return the state that the ARQ gets now."""
        started = self.prepares or self.claim.hidden
        return MOVES[Event.START if started else Event.BIND].target

    def columns(self, request_key: str) -> dict[str, Any]:
        """Return the values of the bound columns of the ARQ."""
        claim = self.claim
        return {
            "hostname": claim.hostname,
            "device_rp_uuid": claim.deployable.rp_uuid,
            "instance_uuid": claim.instance_uuid,
            "project_id": claim.project_id,
            "deployable_id": claim.deployable.id,
            # Nothing can have been prepared while the unit is still being released for its last
            # instance; the work sets this before it calls the agent.
            "prepared": claim.deployable.prepare and not self.handle.waits,
            "operation_id": request_key,
        }


def lock_pools(tx: Transaction, offers: Iterable[Offer]) -> None:
    """Lock the hosts of devices whose units share capacity, and have their agents publish it.

    Call it before instances are locked. Other units fit then, and Placement follows at once.
    """
    pooled = {offer.host_id: offer.service_host for offer in offers if offer.pooled}
    for host_id, agent in sorted(pooled.items()):
        tx.publish(host_id, agent)


def check_offered(offer: Offer) -> None:
    """Raise DeviceUnavailable if no unit of the deployable may be given out."""
    if offer.unavailable is not None:
        raise exception.DeviceUnavailable(
            uuid=offer.device_uuid,
            provider=offer.rp_uuid,
            status=f"out of service ({offer.unavailable})",
        )


def partial_group(claims: Sequence[Claim]) -> str | None:
    """Return which instance would get a part of a group of units, as a clause; None: no instance.

    A guest takes the units of a deployable ``group_size`` at a time. All ARQs of an instance are
    bound in one request, so the units that one request gives to an instance must be whole groups.
    Placement enforces the same for the allocation, but a caller can bind without one.
    """
    rows = {claim.deployable.id: claim.deployable for claim in claims}
    counts = Counter((claim.deployable.id, claim.instance_uuid) for claim in claims)
    for (deployable_id, instance), count in counts.items():
        deployable = rows[deployable_id]
        if count % deployable.group_size:
            return (
                f"provider {deployable.rp_uuid} gives out {deployable.resource_class} in groups of "
                f"{deployable.group_size} units, and instance {instance} would get {count}"
            )
    return None


def check_quotas(tx: Transaction, claims: Iterable[Claim], check: Check) -> None:
    """Raise OverLimit if a project would have too many accelerators of a resource class.

    Locks the projects; call it after the ARQs and before handles are locked.
    """
    requested: dict[str, Counter[str]] = {}
    for claim in claims:
        if claim.project_id is not None:
            resource = projects.of_class(claim.deployable.resource_class)
            requested.setdefault(claim.project_id, Counter())[resource] += 1
    for project_id, amounts in sorted(requested.items()):
        check.apply(tx, project_id, amounts)


def lock(tx: Transaction, claims: Sequence[Claim], *, wait: bool) -> list[ClaimedUnit]:
    """Lock a handle for each claim, in the order of the deployables' ids.

    Handles that take shared capacity are booked before the next deployable is claimed, which may be
    one of the same device. Raises TooFewHandles (never with ``wait``), NoFreeHandle,
    DeviceUnavailable.
    """
    requested = {
        claim.arq_uuid: parse_image(accel_requirements(claim.group_spec)) for claim in claims
    }
    # ARQs that request no image come last, so that their work waits for the image.
    claims = sorted(claims, key=lambda claim: requested[claim.arq_uuid] is None)
    groups = []
    rows = {claim.deployable.id: claim.deployable for claim in claims}
    for _, deployable in sorted(rows.items()):
        group = [claim for claim in claims if claim.deployable.id == deployable.id]
        images_by_arq = {claim.arq_uuid: requested[claim.arq_uuid] for claim in group}
        groups.append((deployable, group, images.admit(tx, deployable, images_by_arq)))
    units: list[ClaimedUnit] = []
    claimed: set[int] = set()
    for deployable, group, loads in groups:
        # Placement has allocated these units, so a handle that is still being released counts too.
        handles = attach_handles.claim(tx, deployable.id, len(group), wait=wait)
        if len(handles) < len(group):
            if not wait:
                raise TooFewHandles
            fields = {"provider": deployable.rp_uuid, "requested": len(group)}
            if deployable.cost:
                waiting = sum(handle.waits for handle in handles)
                full = pools.full(
                    *(tx, deployable.device_uuid, deployable.cost, len(group) - waiting),
                    claimed=claimed,
                )
                fields |= {"pools": full} if full is not None else {}
            raise exception.NoFreeHandle(**fields)
        claimed |= {handle.id for handle in handles}
        if deployable.cost:
            pools.book(tx, [deployable.device_uuid], claimed=claimed)
        for claim, handle in zip(group, handles, strict=True):
            prepares = handle.waits or loads or deployable.prepare
            units.append(ClaimedUnit(claim, handle, prepares))
    return units


def store(tx: Transaction, units: Sequence[ClaimedUnit], *, bind_timeout: int) -> None:
    """Give the handles to the ARQs, which are stored; add the work, and record their states.

    An agent has ``bind_timeout`` milliseconds to prepare a unit; Nova is notified after that.
    Raises DeviceUnavailable if a unit was taken out of service before its handle was locked.
    """
    if not hold(tx, {unit.handle.id: unit.claim.arq_uuid for unit in units}):
        providers = {unit.claim.deployable.rp_uuid for unit in units}
        for offer in deployables.by_provider(tx, providers).values():
            check_offered(offer)
        raise exception.Conflict(reason="A unit was out of service for a moment.")
    dirty_units.mark(tx, list(_uses(units)))
    tasks: list[dict[str, Any]] = []
    entries = []
    for unit in units:
        claim = unit.claim
        task: dict[str, Any] = {
            "kind": WorkKind.NOTIFY,
            "instance_uuid": claim.instance_uuid,
            "arq_uuid": claim.arq_uuid,
            "operation_id": tx.request_key,
        }
        if unit.prepares:
            task |= {
                "kind": WorkKind.PREPARE,
                "host_id": claim.deployable.host_id,
                "deployable_id": claim.deployable.id,
                "attach_handle_id": unit.handle.id,
                "spec": accel_requirements(claim.group_spec),
                "deadline_in": bind_timeout,
            }
        if unit.prepares or not claim.hidden:
            tasks.append(task)
        entry = events.Entry(
            "arq",
            claim.arq_uuid,
            unit.state.value,
            instance_uuid=claim.instance_uuid,
            hostname=claim.hostname,
            device_uuid=claim.deployable.device_uuid,
            takes_unit=True,
        )
        entries.append(entry)
    work.add(tx, tasks)
    events.record(tx, entries)


def _uses(units: Iterable[ClaimedUnit]) -> Iterator[dirty_units.Use]:
    """Yield the units that must be cleaned after their guests, who may write from now on."""
    for unit in units:
        claim = unit.claim
        profile = profile_level(accel_requirements(claim.group_spec))
        required = level(claim.deployable.clean, profile)
        if required is not None and required in CLEANING:
            handle_id = unit.handle.id
            yield dirty_units.Use(handle_id, required, claim.arq_uuid, claim.instance_uuid)
