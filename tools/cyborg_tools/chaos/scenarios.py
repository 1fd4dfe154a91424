# SPDX-License-Identifier: Apache-2.0
"""The life of a server's accelerators, step by step as Nova lives it, whatever breaks meanwhile."""

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from cyborg import service
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, requested
from cyborg_tools.chaos.client_log import Witness
from cyborg_tools.chaos.endpoints import Doors

#: Seconds within which a bind must have ended: ``[DEFAULT] bind_timeout``, and the outage itself.
BIND_DEADLINE = 120.0
RESOLVED = frozenset({"Bound", "BindFailed"})
_PROJECT = "chaos"


@dataclass
class Guest:
    """One server with its accelerator requests."""

    uuid: str = field(default_factory=lambda: str(uuid4()))
    provider: str = ""
    arqs: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Cloud:
    """What a life needs besides the accelerator API; ``profiles`` are groups by profile name."""

    host: str
    placement: PlacementService
    nova: SimulatedNova
    profiles: Mapping[str, Mapping[str, str]]


class Lives:
    """Begins and ends guests in the name of one client."""

    def __init__(
        self, client: str, *, cloud: Cloud, doors: Doors, witness: Witness, chance: random.Random
    ) -> None:
        self._client = client
        self._cloud = cloud
        self._doors = doors
        self._witness = witness
        self._chance = chance

    def begin(self, profile: str) -> Guest | None:
        """Schedule, create and bind; None when there was no room, or the run ends."""
        guest = Guest()
        if not self._schedule(guest, profile):
            return None
        if not self._create(guest, profile) or not self._bind(guest):
            self.end(guest, unbound=True)
            return None
        return guest

    def resolved(self, guest: Guest) -> bool:
        """Wait for the end of the bind; True when every ARQ is bound, and to this guest alone."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            now = self.arqs_of(guest)
            found[:] = now or []
            return now is None or all(one["state"] in RESOLVED for one in found)

        if not service.wait_until(look, timeout=BIND_DEADLINE, step=0.2):
            states = ", ".join(one["state"] for one in found) or "not there"
            self._wrong(guest, f"after {BIND_DEADLINE:.0f} s its ARQs are {states}")
            return False
        if not found:
            return False
        self._witness.lived(self._client)
        for one in found:
            if one["state"] == "BindFailed":
                self._witness.failed(self._client)
                continue
            unit = one["device_rp_uuid"], json.dumps(one["attach_handle_info"], sort_keys=True)
            self._witness.hold(unit, guest.uuid)
            if one["device_rp_uuid"] != guest.provider:
                self._wrong(guest, f"it is bound on {unit[0]} instead of {guest.provider}")
        return all(one["state"] == "Bound" for one in found)

    def end(self, guest: Guest, *, unbound: bool = False) -> None:
        """Delete by instance, look that nothing is left, and let Placement and Nova forget.

        ``unbound`` also deletes by uuid those that may not have got as far as to be bound.
        """
        self._witness.let_go(guest.uuid)
        path = f"/accelerator_requests?instance={guest.uuid}"
        answer = self._doors.ask("delete", "DELETE", path)
        if answer is None:
            return
        if answer.status != 204:
            self._wrong(guest, f"deleting its ARQs was answered {answer.status}: {answer.body}")
        elif self.arqs_of(guest):
            self._wrong(guest, "it has ARQs after they were deleted")
        if unbound and guest.arqs:
            self._doors.ask(
                "delete", "DELETE", f"/accelerator_requests?arqs={','.join(guest.arqs)}"
            )
        self._cloud.placement.free(guest.uuid)
        self._cloud.nova.disown(guest.uuid)

    def arqs_of(self, guest: Guest) -> list[dict[str, Any]] | None:
        """The ARQs of a guest as the API shows them; None when the run ends."""
        answer = self._doors.ask("list", "GET", f"/accelerator_requests?instance={guest.uuid}")
        if answer is None:
            return None
        if answer.status != 200:
            self._wrong(guest, f"listing its ARQs was answered {answer.status}: {answer.body}")
            return None
        found: list[dict[str, Any]] = answer.body["arqs"]
        return found

    def _schedule(self, guest: Guest, profile: str) -> bool:
        groups = requested([self._cloud.profiles[profile]])
        candidates = self._cloud.placement.candidates(groups)
        self._chance.shuffle(candidates)
        self._cloud.nova.own(guest.uuid, _PROJECT)
        for one in candidates:
            try:
                self._cloud.placement.allocate(guest.uuid, one, _PROJECT)
            except RuntimeError:
                # Another client was faster.
                continue
            (name,) = groups
            guest.provider = one.mappings[name][0]
            return True
        self._cloud.nova.disown(guest.uuid)
        return False

    def _create(self, guest: Guest, profile: str) -> bool:
        body = {"device_profile_name": profile}
        answer = self._doors.ask("create", "POST", "/accelerator_requests", body)
        if answer is None:
            return False
        if answer.status != 201:
            self._wrong(guest, f"creating ARQs was answered {answer.status}: {answer.body}")
            return False
        guest.arqs = [one["uuid"] for one in answer.body["arqs"]]
        if answer.unsure:
            # Each try that nobody answered may have made some.
            self._witness.may_be_left(len(guest.arqs) * answer.unsure)
        return True

    def _bind(self, guest: Guest) -> bool:
        fields = {
            "hostname": self._cloud.host,
            "device_rp_uuid": guest.provider,
            "instance_uuid": guest.uuid,
        }
        patch = [
            {"path": f"/{name}", "op": "add", "value": value} for name, value in fields.items()
        ]
        body = dict.fromkeys(guest.arqs, patch)
        answer = self._doors.ask("bind", "PATCH", "/accelerator_requests", body)
        if answer is None:
            return False
        found = self.arqs_of(guest)
        if found is None:
            return False
        bound = {one["uuid"] for one in found}
        if bound != set(guest.arqs):
            self._wrong(
                guest,
                f"its bind was answered {answer.status} ({answer.body}), and of its "
                f"{len(guest.arqs)} ARQs {len(bound)} are there",
            )
            return False
        if answer.status != 202 and not answer.unsure:
            self._wrong(guest, f"a bind that was answered {answer.status} has changed something")
        return True

    def _wrong(self, guest: Guest, what: str) -> None:
        self._witness.violation(f"{self._client}, instance {guest.uuid}: {what}")
