# SPDX-License-Identifier: Apache-2.0
"""The life cycle of a server's accelerators, step by step as Nova runs it, during faults."""

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
from cyborg_tools.chaos.client_log import ClientLog
from cyborg_tools.chaos.endpoints import Endpoints

#: Seconds within which a bind must have ended: ``[DEFAULT] bind_timeout``, and the outage itself.
BIND_DEADLINE = 120.0
RESOLVED = frozenset({"Bound", "BindFailed"})
_PROJECT = "chaos"


@dataclass
class Instance:
    """One server with its accelerator requests."""

    uuid: str = field(default_factory=lambda: str(uuid4()))
    provider: str = ""
    arqs: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Cloud:
    """What an instance needs besides the accelerator API; ``profiles`` are groups by name."""

    host: str
    placement: PlacementService
    nova: SimulatedNova
    profiles: Mapping[str, Mapping[str, str]]


class ServerLifecycle:
    """Boot and delete instances for one client."""

    def __init__(
        self,
        client: str,
        *,
        cloud: Cloud,
        endpoints: Endpoints,
        client_log: ClientLog,
        chance: random.Random,
    ) -> None:
        self._client = client
        self._cloud = cloud
        self._endpoints = endpoints
        self._client_log = client_log
        self._chance = chance

    def begin(self, profile: str) -> Instance | None:
        """Schedule, create and bind; None when there was no room, or the run ends."""
        instance = Instance()
        if not self._schedule(instance, profile):
            return None
        if not self._create(instance, profile) or not self._bind(instance):
            self.end(instance, unbound=True)
            return None
        return instance

    def resolved(self, instance: Instance) -> bool:
        """Wait for the end of the bind; return whether every ARQ is bound to this instance."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            now = self.arqs_of(instance)
            found[:] = now or []
            return now is None or all(one["state"] in RESOLVED for one in found)

        if not service.wait_until(look, timeout=BIND_DEADLINE, step=0.2):
            states = ", ".join(one["state"] for one in found) or "not there"
            self._wrong(instance, f"after {BIND_DEADLINE:.0f} s its ARQs are {states}")
            return False
        if not found:
            return False
        self._client_log.lived(self._client)
        for one in found:
            if one["state"] == "BindFailed":
                self._client_log.failed(self._client)
                continue
            unit = one["device_rp_uuid"], json.dumps(one["attach_handle_info"], sort_keys=True)
            self._client_log.hold(unit, instance.uuid)
            if one["device_rp_uuid"] != instance.provider:
                self._wrong(instance, f"it is bound on {unit[0]} instead of {instance.provider}")
        return all(one["state"] == "Bound" for one in found)

    def end(self, instance: Instance, *, unbound: bool = False) -> None:
        """Delete by instance, look that nothing is left, and let Placement and Nova forget.

        ``unbound`` also deletes by uuid those that may not have got as far as to be bound.
        """
        self._client_log.let_go(instance.uuid)
        path = f"/accelerator_requests?instance={instance.uuid}"
        answer = self._endpoints.ask("delete", "DELETE", path)
        if answer is None:
            return
        if answer.status != 204:
            self._wrong(instance, f"deleting its ARQs was answered {answer.status}: {answer.body}")
        elif self.arqs_of(instance):
            self._wrong(instance, "it has ARQs after they were deleted")
        if unbound and instance.arqs:
            self._endpoints.ask(
                "delete", "DELETE", f"/accelerator_requests?arqs={','.join(instance.arqs)}"
            )
        self._cloud.placement.free(instance.uuid)
        self._cloud.nova.disown(instance.uuid)

    def arqs_of(self, instance: Instance) -> list[dict[str, Any]] | None:
        """Return the ARQs of an instance as the API shows them; None when the run ends."""
        answer = self._endpoints.ask(
            "list", "GET", f"/accelerator_requests?instance={instance.uuid}"
        )
        if answer is None:
            return None
        if answer.status != 200:
            self._wrong(instance, f"listing its ARQs was answered {answer.status}: {answer.body}")
            return None
        found: list[dict[str, Any]] = answer.body["arqs"]
        return found

    def _schedule(self, instance: Instance, profile: str) -> bool:
        groups = requested([self._cloud.profiles[profile]])
        candidates = self._cloud.placement.candidates(groups)
        self._chance.shuffle(candidates)
        self._cloud.nova.own(instance.uuid, _PROJECT)
        for one in candidates:
            try:
                self._cloud.placement.allocate(instance.uuid, one, _PROJECT)
            except RuntimeError:
                # Another client was faster.
                continue
            (name,) = groups
            instance.provider = one.mappings[name][0]
            return True
        self._cloud.nova.disown(instance.uuid)
        return False

    def _create(self, instance: Instance, profile: str) -> bool:
        body = {"device_profile_name": profile}
        answer = self._endpoints.ask("create", "POST", "/accelerator_requests", body)
        if answer is None:
            return False
        if answer.status != 201:
            self._wrong(instance, f"creating ARQs was answered {answer.status}: {answer.body}")
            return False
        instance.arqs = [one["uuid"] for one in answer.body["arqs"]]
        if answer.unsure:
            # Each try that nobody answered may have made some.
            self._client_log.may_be_left(len(instance.arqs) * answer.unsure)
        return True

    def _bind(self, instance: Instance) -> bool:
        fields = {
            "hostname": self._cloud.host,
            "device_rp_uuid": instance.provider,
            "instance_uuid": instance.uuid,
        }
        patch = [
            {"path": f"/{name}", "op": "add", "value": value} for name, value in fields.items()
        ]
        body = dict.fromkeys(instance.arqs, patch)
        answer = self._endpoints.ask("bind", "PATCH", "/accelerator_requests", body)
        if answer is None:
            return False
        found = self.arqs_of(instance)
        if found is None:
            return False
        bound = {one["uuid"] for one in found}
        if bound != set(instance.arqs):
            self._wrong(
                instance,
                f"its bind was answered {answer.status} ({answer.body}), and of its "
                f"{len(instance.arqs)} ARQs {len(bound)} are there",
            )
            return False
        if answer.status != 202 and not answer.unsure:
            self._wrong(instance, f"a bind that was answered {answer.status} has changed something")
        return True

    def _wrong(self, instance: Instance, what: str) -> None:
        self._client_log.violation(f"{self._client}, instance {instance.uuid}: {what}")
