# SPDX-License-Identifier: Apache-2.0
"""Divide the cards of this host as its configuration requests.

In doubt the agent changes nothing: a part that vanishes is taken from its guest.
"""

import functools
import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import Future
from uuid import uuid4

from cyborg.agent.device_tasks import DeviceTasks
from cyborg.drivers.base import CardLayouts
from cyborg.model.work import PartitionTask

LOG = logging.getLogger(__name__)


class LayoutSync:
    """Start to divide the cards that do not have their desired layout; log each reason once.

    A card is divided again when the scan shows another state of it than at the last attempt, or
    with ``retry``.
    """

    def __init__(self, tasks: DeviceTasks) -> None:
        self._tasks = tasks
        #: Driver and key of each card that was divided → its state before, and the task.
        self._attempts: dict[tuple[str, str], tuple[CardLayouts, Future[None]]] = {}
        #: The last logged reason of each card that does not have its desired layout.
        self._reasons: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    def sync(
        self, cards: Mapping[str, Sequence[CardLayouts]], in_use: Set[str], *, retry: bool
    ) -> None:
        """Start the tasks and return at once.

        ``cards`` are those of the last scan, by driver. ``in_use`` are the deployables that the
        conductor keeps or a driver offers: their units can have guests.
        """
        configured = [
            (driver, card)
            for driver, listed in cards.items()
            for card in listed
            if card.desired is not None
        ]
        drivers = Counter(card.card for _, card in configured)
        pending = {
            (driver, card.card): card for driver, card in configured if card.desired != card.current
        }
        with self._lock:
            self._reasons = {key: text for key, text in self._reasons.items() if key in pending}
        for key in self._attempts.keys() - pending.keys():
            if self._attempts[key][1].done():
                del self._attempts[key]
        for key, card in pending.items():
            before, call = self._attempts.get(key, (None, None))
            if call is not None and not call.done():
                continue
            reason = _refusal(card, in_use)
            if drivers[card.card] > 1:
                reason = "several drivers are configured to divide it; configure one"
            if reason is not None:
                self._warn(key, card, reason)
            elif before != card or retry:
                driver, desired = key[0], card.desired or ""
                task = PartitionTask(str(uuid4()), driver, card.card, desired)
                call = self._tasks.partition(task)
                self._attempts[key] = card, call
                call.add_done_callback(functools.partial(self._note, key, card))

    def _note(self, key: tuple[str, str], card: CardLayouts, call: Future[None]) -> None:
        """Log the end of a task."""
        error = call.exception()
        if error is None:
            LOG.info("Card %s of driver %s has layout %s now", card.card, key[0], card.desired)
        else:
            self._warn(key, card, str(error))

    def _warn(self, key: tuple[str, str], card: CardLayouts, reason: str) -> None:
        with self._lock:
            repeated = self._reasons.get(key) == reason
            self._reasons[key] = reason
        if not repeated:
            LOG.warning(
                "Card %s of driver %s keeps layout %s instead of %s: %s",
                *(card.card, key[0], card.current or "unknown", card.desired, reason),
            )


def _refusal(card: CardLayouts, in_use: Set[str]) -> str | None:
    """Return why a card must keep its layout, None if nobody can have it or a part of it.

    A part that the conductor keeps and that the host does not have, for example after a reboot, is
    no reason: it only comes back.
    """
    if card.refusal is not None:
        return card.refusal
    if card.current is None:
        return "its layout cannot be read"
    if card.desired not in card.layouts:
        return f"the card can only have {', '.join(card.layouts) or 'no other layout'}"
    if not card.deployables:
        return "its driver does not name its deployables, so it is not known who uses them"
    if used := card.deployables & in_use:
        return (
            f"the conductor keeps, or a driver offers, {', '.join(sorted(used))}; drain it, and "
            "remove the devices when they are lost"
        )
    return None
