# SPDX-License-Identifier: Apache-2.0
"""Several cards that are divided: what keeps one as it is does not keep another."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import cast

import pytest

from cyborg import exception
from cyborg.agent.device_tasks import DeviceTasks
from cyborg.agent.layout_sync import LayoutSync
from cyborg.drivers.base import CardLayouts
from cyborg.model.work import PartitionTask

FIRST = CardLayouts("0000:81:00.0", ("vfs=0", "vfs=2"), "vfs=0", "vfs=2", frozenset({"first"}))
SECOND = replace(FIRST, card="0000:82:00.0", deployables=frozenset({"second"}))


class Host:
    """The cards of drivers a and b, and the operations that divide them."""

    def __init__(self) -> None:
        self.running: dict[str, Future[None]] = {}
        self._sync = LayoutSync(cast(DeviceTasks, self))
        self._started: list[str] = []

    def partition(self, task: PartitionTask) -> Future[None]:
        """See DeviceTasks."""
        self._started.append(task.device_key)
        self.running[task.device_key] = Future()
        return self.running[task.device_key]

    def sync(
        self, a: Sequence[CardLayouts], b: Sequence[CardLayouts] = (), *in_use: str
    ) -> list[str]:
        """Return the cards whose division starts."""
        self._started.clear()
        self._sync.sync({"a": a, "b": b}, frozenset(in_use), retry=False)
        return list(self._started)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.mark.parametrize("drivers", [1, 2])
def test_each_card_is_divided(host: Host, drivers: int) -> None:
    cards = ([FIRST, SECOND],) if drivers == 1 else ([FIRST], [SECOND])
    assert host.sync(*cards) == [FIRST.card, SECOND.card]
    assert host.sync(*cards) == []


def test_card_whose_division_lasts_does_not_keep_the_next_card(host: Host) -> None:
    assert host.sync([FIRST]) == [FIRST.card]
    assert host.sync([FIRST, SECOND]) == [SECOND.card]
    # A failure of one says nothing about the other.
    host.running[FIRST.card].set_exception(exception.HostError(action="writing", reason="EIO"))
    assert host.sync([FIRST, SECOND]) == []
    assert host.sync([replace(FIRST, current="vfs=1"), SECOND]) == [FIRST.card]


def test_card_in_use_does_not_keep_the_next_card(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        host.sync([FIRST, SECOND], (), "first")
    assert list(host.running) == [SECOND.card]
    # Each reason is logged once, however often the other card changes.
    host.running[SECOND.card].set_exception(exception.HostError(action="writing", reason="EIO"))
    host.sync([FIRST, SECOND], (), "first")
    host.sync([FIRST, replace(SECOND, current="vfs=2")], (), "first")
    assert [text.split()[1] for text in caplog.messages] == [FIRST.card, SECOND.card]
    # A reason that was gone is logged again, although the other card never got its layout.
    for current, logged in (("vfs=0", 1), ("vfs=2", 0), ("vfs=0", 1), ("vfs=0", 0)):
        caplog.clear()
        host.sync([FIRST, replace(SECOND, current=current)], (), "first", "second")
        assert [text.split()[1] for text in caplog.messages] == [SECOND.card] * logged
