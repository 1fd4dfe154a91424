# SPDX-License-Identifier: Apache-2.0
"""The servers of a simulated Nova: how they are, and hard reboots as tasks that take a while.

As Nova does, a reboot reads what the accelerator service lists for the server (when its flavor
names a device profile; an empty list is an error then), and the guest has that afterwards. A task
goes on a step whenever somebody looks at the server.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

#: What an operation on servers is answered: a status, and its body.
Answer = tuple[int, dict[str, Any]]
_REBOOTABLE = frozenset({"ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED", "ERROR"})
_NO_SERVER: Answer = (404, {"itemNotFound": {"code": 404, "message": "There is no such thing."}})


@dataclass
class Guest:
    """One server; ``has`` are the accelerator requests whose devices its domain holds.

    ``name`` is made of the uuid unless given. While its cell is ``away`` Nova knows next to nothing
    of it. ``lasts`` counts the looks that a reboot outlasts, ``fails`` the reboots to come that end
    in ERROR; ``reboots`` those that were begun.
    """

    project: str
    node: str | None = None
    profile: str | None = None
    status: str = "ACTIVE"
    task: str | None = None
    name: str = ""
    away: bool = False
    has: list[str] = field(default_factory=list)
    lasts: int = 1
    fails: int = 0
    reboots: int = 0
    _looks: int = 0

    def begin(self) -> None:
        """A hard reboot."""
        self.task, self._looks = "rebooting_hard", self.lasts
        self.reboots += 1

    def is_over(self) -> bool:
        """Whether the task has come to its end by this look."""
        self._looks -= 1
        return self._looks < 0


class Guests:
    """All servers; ``listed`` answers the accelerator requests that are listed for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Guest] = {}
        self.listed: Callable[[str], list[str]] = lambda _uuid: []

    def put(self, uuid: str, guest: Guest) -> Guest:
        """Let this server exist."""
        with self._lock:
            self._known[uuid] = guest
        return guest

    def drop(self, uuid: str) -> None:
        """This server is deleted."""
        with self._lock:
            self._known.pop(uuid, None)

    def uuids(self) -> list[str]:
        """All that there are, sorted."""
        with self._lock:
            return sorted(self._known)

    def show(self, uuid: str) -> Answer:
        """GET of one server, as administrators see it."""
        with self._lock:
            guest = self._known.get(uuid)
            if guest is None:
                return _NO_SERVER
            if guest.task is not None and guest.is_over():
                self._end(uuid, guest)
            return 200, {"server": _shown(uuid, guest)}

    def act(self, uuid: str, body: Any) -> Answer:
        """POST of an action: a hard reboot, and nothing else."""
        if body != {"reboot": {"type": "HARD"}}:
            return 400, {"badRequest": {"code": 400, "message": "Only hard reboots here."}}
        with self._lock:
            guest = self._known.get(uuid)
            if guest is None:
                return _NO_SERVER
            if guest.status not in _REBOOTABLE or guest.task not in (None, "rebooting_hard"):
                said = f"Cannot 'reboot' instance {uuid} while it is in {guest.status}"
                return 409, {"conflictingRequest": {"code": 409, "message": said}}
            guest.begin()
            return 202, {}

    def _end(self, uuid: str, guest: Guest) -> None:
        """What compute does: the domain is made anew from what is listed now."""
        guest.task = None
        listed = self.listed(uuid) if guest.profile is not None else []
        if guest.fails or (guest.profile is not None and not listed):
            guest.fails = max(0, guest.fails - 1)
            guest.status = "ERROR"
            return
        guest.status, guest.has = "ACTIVE", listed


def _shown(uuid: str, guest: Guest) -> dict[str, Any]:
    if guest.away:
        return {"id": uuid, "status": "UNKNOWN", "tenant_id": guest.project}
    specs = {} if guest.profile is None else {"accel:device_profile": guest.profile}
    rebooting = guest.task == "rebooting_hard" and guest.status == "ACTIVE"
    return {
        "id": uuid,
        "name": guest.name or f"server-{uuid[:8]}",
        "tenant_id": guest.project,
        "status": "HARD_REBOOT" if rebooting else guest.status,
        "OS-EXT-STS:task_state": guest.task,
        "OS-EXT-SRV-ATTR:host": guest.node and guest.node.partition(".")[0],
        "OS-EXT-SRV-ATTR:hypervisor_hostname": guest.node,
        "flavor": {"original_name": "flavor", "extra_specs": specs},
    }
