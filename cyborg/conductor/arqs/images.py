# SPDX-License-Identifier: Apache-2.0
"""Images that binds ask for: who may have one loaded into a deployable, and when.

An image belongs to a deployable, and all units of a deployable share it. So a bind that asks for
another image is refused while other accelerator requests hold units, and every bind of a deployable
into which an image is being loaded waits for the end of that, as ``prepare`` work. Everything here
runs under the lock of the deployable.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from cyborg import exception
from cyborg.db import images
from cyborg.db.base import Record
from cyborg.model.arq import State
from cyborg.model.device_profile import Group, RequestedImage, image_wish, wishes
from cyborg.model.work import ImageOrder, WorkKind

#: What marks ``release`` work of a bind that was called off: its image may still be being loaded.
LOADING = "loading"


@dataclass(frozen=True)
class ImageTurn:
    """Whether ``prepare`` work must wait for other work, and the image that its agent loads."""

    waits: bool = False
    image: ImageOrder | None = None


def requested_image(group: Group) -> RequestedImage | None:
    """Return the image that a group of a device profile asks for; raises exception.Invalid."""
    return image_wish(wishes(group))


def admit(tx: sa.Connection, offer: Record, requested: Mapping[str, RequestedImage | None]) -> bool:
    """Decide about binds of one deployable by the images that they ask for (ARQ → wish).

    Return whether they are Bound only after work: an image is to be loaded, or is being loaded.
    Raises DeviceUnavailable.
    """
    asking = {arq: wish for arq, wish in requested.items() if wish is not None}
    if not offer.programmable:
        for arq, wish in asking.items():
            reason = f"driver {offer.driver} cannot load images"
            raise _unavailable(
                offer, f"not fit for accelerator request {arq}, which asks for {wish}: {reason}"
            )
        return False
    loaded = images.lock(tx, offer.id)
    users = images.users(tx, offer.id) if asking else ()
    for arq, wish in asking.items():
        if _holds(loaded, wish):
            continue
        others = [one for one, other in asking.items() if other != wish]
        if not any(_asks_for(one, wish) for one in users):
            others += [one.uuid for one in users]
        if others:
            raise _unavailable(
                offer,
                f"used by accelerator requests {', '.join(others)} with "
                f"{f'image {loaded}' if loaded else 'an unknown image'}, and accelerator request "
                f"{arq} asks for {wish}",
            )
    if any(not _holds(loaded, wish) for wish in asking.values()):
        return True
    return any(_is_loading(one) for one in images.work_on(tx, offer.id))


def turn(tx: sa.Connection, row: Record, handle: Record) -> ImageTurn:
    """Decide what ``prepare`` work (``row``) of a programmable deployable does now.

    When its agent is to load an image, nobody knows any more which image the deployable holds until
    the agent has answered.
    """
    loaded = images.lock(tx, handle.deployable_id)
    others = [one for one in images.work_on(tx, handle.deployable_id) if one.id != row.id]
    if any(
        _is_loading(one) and (one.id < row.id or one.kind == WorkKind.RELEASE) for one in others
    ):
        return ImageTurn(waits=True)
    wish = image_wish(row.spec or {})
    if wish is None or _holds(loaded, wish):
        return ImageTurn()
    behind = {
        one.arq_uuid for one in others if one.kind == WorkKind.PREPARE and one.id > row.id
    } | {row.arq_uuid}
    alone = all(one.uuid in behind for one in images.users(tx, handle.deployable_id))
    if alone and loaded is not None:
        images.note(tx, handle.deployable_id, None)
    return ImageTurn(
        image=ImageOrder(
            wish.bitstream_id, wish.function_id, loaded, alone=alone, prepare=handle.prepare
        )
    )


def forget_released(tx: sa.Connection, handle: Record) -> None:
    """Forget the image after the release of a unit, unless others use the deployable.

    Cleaning up after a guest may have removed the image as well.
    """
    if handle.prepare and handle.bitstream_id is not None:
        images.lock(tx, handle.deployable_id)
        users = images.users(tx, handle.deployable_id)
        if all(one.attach_handle_id == handle.id for one in users):
            images.note(tx, handle.deployable_id, None)


def is_called_off(arq: Record) -> bool:
    """Whether the image of an ARQ that is let go of now may still be being loaded."""
    return bool(arq.state == State.BIND_STARTED) and _wish(arq.group_spec) is not None


def check_unused(tx: sa.Connection, offer: Record) -> None:
    """Lock a deployable for an operator's image; raises DeviceInUse while ARQs hold its units."""
    images.lock(tx, offer.id)
    users = images.users(tx, offer.id)
    if users:
        arqs = ", ".join(one.uuid for one in users)
        raise exception.DeviceInUse(uuid=offer.device_uuid, arqs=arqs)


def _unavailable(offer: Record, status: str) -> exception.DeviceUnavailable:
    return exception.DeviceUnavailable(
        uuid=offer.device_uuid, provider=offer.rp_uuid, status=status
    )


def _holds(loaded: str | None, wish: RequestedImage) -> bool:
    """Whether a deployable holds what is asked for; only Glance knows that of a function."""
    return loaded is not None and loaded == wish.bitstream_id


def _is_loading(work: Record) -> bool:
    if work.kind == WorkKind.PROGRAM:
        return True
    spec = work.spec or {}
    if work.kind == WorkKind.RELEASE:
        return LOADING in spec
    return _parsed(spec) is not None


def _asks_for(arq: Record, wish: RequestedImage) -> bool:
    return _wish(arq.group_spec) == wish


def _wish(group: Group | None) -> RequestedImage | None:
    return _parsed(wishes(group or {}))


def _parsed(spec: Mapping[str, str]) -> RequestedImage | None:
    """The wish of a stored row; a wish that no bind accepts any more counts as none."""
    try:
        return image_wish(spec)
    except exception.Invalid:
        return None
