# SPDX-License-Identifier: Apache-2.0
"""Decide which bind may have an image loaded into a deployable, and when.

An image belongs to a deployable, and all units of a deployable share it. A bind that requests
another image is therefore refused while other accelerator requests hold units. While an image is
being loaded into a deployable, every bind of that deployable waits, as ``prepare`` work. All
functions here that change or decide something lock the deployable.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from cyborg import exception
from cyborg.db import deployables
from cyborg.db.arqs import LockedArq
from cyborg.db.deployables import AgentDeployable, AgentHandle, ImageWork, Offer
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model.arq import State
from cyborg.model.device_profile import RequestedImage, accel_requirements, parse_image
from cyborg.model.work import ImageOrder, WorkKind

#: Key in the ``spec`` of ``release`` work: its bind was cancelled while its image may have been
#: loading.
LOADING = "loading"


@dataclass(frozen=True)
class ImageDecision:
    """Whether ``prepare`` work must wait for other work, and the image that its agent loads."""

    waits: bool = False
    image: ImageOrder | None = None


def admit(
    tx: Transaction, deployable: Offer, requested: Mapping[str, RequestedImage | None]
) -> bool:
    """Admit binds of one deployable; ``requested`` maps the uuid of each ARQ to its image.

    Return True when the binds need work before they are Bound: an image is to be loaded, or is
    being loaded. Raises DeviceUnavailable.
    """
    unavailable = partial(
        exception.DeviceUnavailable, uuid=deployable.device_uuid, provider=deployable.rp_uuid
    )
    with_image = {arq: image for arq, image in requested.items() if image is not None}
    if not deployable.programmable:
        for arq, image in with_image.items():
            raise unavailable(
                status=f"not fit for accelerator request {arq}, which asks for {image}: "
                f"driver {deployable.driver} cannot load images"
            )
        return False
    loaded = deployables.lock_image(tx, deployable.id)
    users = deployables.image_users(tx, deployable.id) if with_image else ()
    used = {_parsed(accel_requirements(user.group_spec or {})) for user in users}
    for arq, image in with_image.items():
        if _holds(loaded, image):
            continue
        others = [uuid for uuid, other in with_image.items() if other != image]
        if image not in used:
            others += [user.uuid for user in users]
        if others:
            raise unavailable(
                status=f"used by accelerator requests {', '.join(others)} with "
                f"{f'image {loaded}' if loaded else 'an unknown image'}, and accelerator request "
                f"{arq} asks for {image}"
            )
    if any(not _holds(loaded, image) for image in with_image.values()):
        return True
    return any(_is_loading(row) for row in deployables.image_work(tx, deployable.id))


def decide(tx: Transaction, row: ClaimedWork, handle: AgentHandle) -> ImageDecision:
    """Decide what ``prepare`` work (``row``) of a programmable deployable does now.

    When its agent is to load an image, the loaded image is stored as unknown until the agent has
    answered.
    """
    loaded = deployables.lock_image(tx, handle.deployable_id)
    others = [
        other for other in deployables.image_work(tx, handle.deployable_id) if other.id != row.id
    ]
    if any(
        _is_loading(other) and (other.id < row.id or other.kind == WorkKind.RELEASE)
        for other in others
    ):
        return ImageDecision(waits=True)
    image = parse_image(row.spec or {})
    if image is None or _holds(loaded, image):
        return ImageDecision()
    waiting = {
        other.arq_uuid for other in others if other.kind == WorkKind.PREPARE and other.id > row.id
    } | {row.arq_uuid}
    exclusive = all(
        user.uuid in waiting for user in deployables.image_users(tx, handle.deployable_id)
    )
    if exclusive and loaded is not None:
        deployables.set_image(tx, handle.deployable_id, None)
    return ImageDecision(
        image=ImageOrder(
            image.bitstream_id,
            image.function_id,
            loaded,
            exclusive=exclusive,
            prepare=handle.prepare,
        )
    )


def clear_after_release(tx: Transaction, handle: AgentHandle) -> None:
    """Store the image as unknown after the release of a unit, unless others use the deployable.

    The clean-up after an instance may have removed the image as well.
    """
    if handle.prepare and handle.bitstream_id is not None:
        deployables.lock_image(tx, handle.deployable_id)
        users = deployables.image_users(tx, handle.deployable_id)
        if all(user.attach_handle_id == handle.id for user in users):
            deployables.set_image(tx, handle.deployable_id, None)


def may_be_loading(arq: LockedArq) -> bool:
    """Return whether the image of an ARQ, whose handle is released now, may still be loading."""
    if arq.state != State.BIND_STARTED:
        return False
    return _parsed(accel_requirements(arq.group_spec or {})) is not None


def check_unused(tx: Transaction, deployable: AgentDeployable) -> None:
    """Lock a deployable for an operator's image; raises DeviceInUse while ARQs hold its units."""
    deployables.lock_image(tx, deployable.id)
    users = deployables.image_users(tx, deployable.id)
    if users:
        arqs = ", ".join(user.uuid for user in users)
        raise exception.DeviceInUse(uuid=deployable.device_uuid, arqs=arqs)


def _holds(loaded: str | None, image: RequestedImage) -> bool:
    """Return whether a deployable holds the requested image.

    For a request by function this is False: only Glance knows which image has the function.
    """
    return loaded is not None and loaded == image.bitstream_id


def _is_loading(row: ImageWork) -> bool:
    """Return whether this work loads an image, or may still be loading it."""
    if row.kind == WorkKind.PROGRAM:
        return True
    spec = row.spec or {}
    if row.kind == WorkKind.RELEASE:
        return LOADING in spec
    return _parsed(spec) is not None


def _parsed(spec: Mapping[str, str]) -> RequestedImage | None:
    """Return the image that a stored row requests; None when the request is no longer valid."""
    try:
        return parse_image(spec)
    except exception.Invalid:
        return None
