# SPDX-License-Identifier: Apache-2.0
"""The one table of a device's life, and what each microversion calls its states.

A device is found inactive, set up where its hardware asks for it (once more if it asks again while
in service), in service or out of it. Being lost is a fact beside all that: a device that comes back
is what it was.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from cyborg.model.device import DeviceStatus

#: What the API calls a device that its host does not show, whatever its status is.
LOST: Final = "lost"
#: Every word of the API for the state of a device.
WORDS: Final = (*(status.value for status in DeviceStatus), LOST)
_ALL = frozenset(DeviceStatus)


class DeviceEvent(StrEnum):
    """What can happen to a device."""

    ENABLE = "enable"
    INSTALL = "install"
    REINSTALL = "reinstall"
    FINISH = "finish"
    FAIL = "fail"
    DISABLE = "disable"


@dataclass(frozen=True)
class Move:
    """An event leads from any status of ``sources`` to ``target``."""

    sources: frozenset[DeviceStatus]
    target: DeviceStatus


MOVES: Mapping[DeviceEvent, Move] = MappingProxyType(
    {
        # Nothing to set up. What is being set up is enabled by the end of that alone.
        DeviceEvent.ENABLE: Move(_ALL - {DeviceStatus.INSTALLING}, DeviceStatus.ENABLED),
        # The host has to set it up first; FINISH or FAIL follows. By an operator's word: never what
        # is in service.
        DeviceEvent.INSTALL: Move(
            frozenset({DeviceStatus.INACTIVE, DeviceStatus.MAINTAINING, DeviceStatus.FAILED}),
            DeviceStatus.INSTALLING,
        ),
        # It is in service, and its hardware has to be set up again: after a boot, say.
        DeviceEvent.REINSTALL: Move(frozenset({DeviceStatus.ENABLED}), DeviceStatus.INSTALLING),
        DeviceEvent.FINISH: Move(frozenset({DeviceStatus.INSTALLING}), DeviceStatus.ENABLED),
        DeviceEvent.FAIL: Move(frozenset({DeviceStatus.INSTALLING}), DeviceStatus.FAILED),
        DeviceEvent.DISABLE: Move(_ALL, DeviceStatus.MAINTAINING),
    }
)


def first_status(driver: str, auto_enable: Collection[str]) -> DeviceStatus:
    """How a device begins that nobody has seen before; ``*`` stands for every driver."""
    at_once = driver in auto_enable or "*" in auto_enable
    return DeviceStatus.ENABLED if at_once else DeviceStatus.INACTIVE


def word(status: str, *, lost: bool) -> str:
    """The one of ``WORDS`` that tells how a device is."""
    return LOST if lost else status
