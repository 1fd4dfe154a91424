# SPDX-License-Identifier: Apache-2.0
"""The clients: each boots and deletes instances as Nova does, and pauses for a verdict.

They see the REST API as behind a load balancer: several endpoints that may fail.
"""

import itertools
import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import requests

from cyborg import service
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, requested
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg_tools.chaos.results import NOTHING, ClientLog

RESOLVED = frozenset({"Bound", "BindFailed"})
#: Seconds after which a client gives an answer up: more than the service ever needs for "unknown".
_ANSWER = 30.0
#: Seconds between two tries of a request.
_PAUSE = 0.3
#: Instances that a client keeps while it boots the next one.
_KEPT = 1
#: Seconds between two boots, so that two processors have capacity for the service.
_REST = 0.2
_PROJECT = "chaos"
_ARQS = "/accelerator_requests"


@dataclass(frozen=True)
class Answer:
    """The last response; ``unsure`` counts earlier attempts that may have been executed."""

    status: int
    body: Any
    unsure: int


class Endpoints:
    """Send the requests of one client, and repeat them until there is a final response."""

    def __init__(
        self, urls: Sequence[str], *, client: str, client_log: ClientLog, ended: threading.Event
    ) -> None:
        self._urls = itertools.cycle(urls)
        self._client = client
        self._client_log = client_log
        self._ended = ended
        self._session = requests.Session()
        self._url = next(self._urls)
        #: The request in progress, for the report of a client that is stuck.
        self.asking = ""

    def ask(self, verb: str, method: str, path: str, body: Any = None) -> Answer | None:
        """Ask until the answer is neither 503 nor none; None when that takes too long.

        A status that no client may see is written down as a violation.
        """
        end = time.monotonic() + PATIENCE
        self.asking = f"{method} {path}"
        for unsure in itertools.count():
            if self._ended.is_set():
                return None
            if time.monotonic() > end:
                break
            answer = self._once(verb, method, path, body)
            if answer is not None and answer.status_code != 503:
                self.asking = ""
                if answer.status_code >= 500:
                    self._never(f"answered {answer.status_code}", method, path)
                elif unsure:
                    self._client_log.count(self._client, "settled")
                try:
                    parsed = answer.json() if answer.content else None
                except ValueError:
                    parsed = answer.text
                return Answer(answer.status_code, parsed, unsure)
            self._ended.wait(_PAUSE)
        self._never(f"not answered for {PATIENCE:.0f} s", method, path)
        return None

    def _once(self, verb: str, method: str, path: str, body: Any) -> requests.Response | None:
        began = time.monotonic()
        answer = None
        try:
            url = f"{self._url}/v2{path}"
            answer = self._session.request(method, url, json=body, timeout=_ANSWER)
        except requests.RequestException:
            self._url = next(self._urls)
        status = NOTHING if answer is None else str(answer.status_code)
        self._client_log.answer(self._client, verb, status, time.monotonic() - began)
        return answer

    def _never(self, what: str, method: str, path: str) -> None:
        self._client_log.violation(f"{self._client}: {method} {path} was {what}")


@dataclass
class Instance:
    """One server with its accelerator requests."""

    uuid: str = field(default_factory=lambda: str(uuid4()))
    provider: str = ""
    arqs: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Cloud:
    """What an instance needs besides the accelerator API; ``profiles`` are groups by name."""

    host: str
    placement: PlacementService
    nova: SimulatedNova
    profiles: Mapping[str, Mapping[str, str]]


class Client:
    """Boots and deletes instances: one by one for its caller, or on and on in ``thread``."""

    def __init__(self, name: str, load: "Load", urls: Sequence[str]) -> None:
        self.name = name
        self.instances: list[Instance] = []
        self.parked = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._load = load
        self._cloud = load.cloud
        self._log = load.client_log
        self._endpoints = Endpoints(urls, client=name, client_log=self._log, ended=load.ended)
        self._choice = random.Random(name)
        self._chance = random.Random(f"{load.seed} {name}")
        self._broken = ""

    @property
    def stands(self) -> bool:
        return self.parked.is_set() or not self.thread.is_alive()

    @property
    def where(self) -> str:
        """What it is at, in words; why its thread died if it has."""
        return self._broken or self._endpoints.asking or "waiting for the end of a bind"

    def end_instances(self, kept: int = 0) -> None:
        """End the oldest instances; from the caller's thread only while the client stands still."""
        while len(self.instances) > kept:
            self.end(self.instances.pop(0))

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
            now = self._arqs_of(instance)
            found[:] = now or []
            return now is None or all(one["state"] in RESOLVED for one in found)

        if not service.wait_until(look, timeout=PATIENCE, step=0.2):
            states = ", ".join(one["state"] for one in found) or "not there"
            self._wrong(instance, f"after {PATIENCE:.0f} s its ARQs are {states}")
            return False
        if not found:
            return False
        self._log.count(self.name, "boots")
        for one in found:
            if one["state"] == "BindFailed":
                self._log.count(self.name, "failed")
                continue
            unit = one["device_rp_uuid"], json.dumps(one["attach_handle_info"], sort_keys=True)
            self._log.hold(unit, instance.uuid)
            if one["device_rp_uuid"] != instance.provider:
                self._wrong(instance, f"it is bound on {unit[0]} instead of {instance.provider}")
        return all(one["state"] == "Bound" for one in found)

    def end(self, instance: Instance, *, unbound: bool = False) -> None:
        """Delete by instance, look that nothing is left, and let Placement and Nova forget.

        ``unbound`` also deletes by uuid those that may not have got as far as to be bound.
        """
        self._log.let_go(instance.uuid)
        answer = self._endpoints.ask("delete", "DELETE", f"{_ARQS}?instance={instance.uuid}")
        if answer is None:
            return
        if self._is(answer, 204, "deleting", instance) and self._arqs_of(instance):
            self._wrong(instance, "it has ARQs after they were deleted")
        if unbound and instance.arqs:
            self._endpoints.ask("delete", "DELETE", f"{_ARQS}?arqs={','.join(instance.arqs)}")
        self._cloud.placement.free(instance.uuid)
        self._cloud.nova.disown(instance.uuid)

    def _run(self) -> None:
        try:
            while not self._load.ended.is_set():
                if not self._load.running.is_set():
                    self.parked.set()
                    self._load.running.wait()
                    continue
                instance = self.begin(self._choice.choice(self._load.profiles))
                if instance is None:
                    self.end_instances()
                else:
                    self.instances.append(instance)
                    self.resolved(instance)
                    self.end_instances(_KEPT)
                self._load.ended.wait(_REST)
        except Exception as fault:
            # Without this the result would not show that the thread has ended.
            self._broken = f"ended by {type(fault).__name__}: {fault}"
            raise

    def _arqs_of(self, instance: Instance) -> list[dict[str, Any]] | None:
        """Return the ARQs of an instance as the API shows them; None when the run ends."""
        answer = self._endpoints.ask("list", "GET", f"{_ARQS}?instance={instance.uuid}")
        if answer is None or not self._is(answer, 200, "listing", instance):
            return None
        arqs: list[dict[str, Any]] = answer.body["arqs"]
        return arqs

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
        answer = self._endpoints.ask("create", "POST", _ARQS, {"device_profile_name": profile})
        if answer is None or not self._is(answer, 201, "creating", instance):
            return False
        instance.arqs = [one["uuid"] for one in answer.body["arqs"]]
        # Each try that nobody answered may have made some.
        self._log.may_be_left(len(instance.arqs) * answer.unsure)
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
        answer = self._endpoints.ask("bind", "PATCH", _ARQS, body)
        found = None if answer is None else self._arqs_of(instance)
        if answer is None or found is None:
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

    def _is(self, answer: Answer, status: int, what: str, instance: Instance) -> bool:
        if answer.status != status:
            said = f"{what} its ARQs was answered {answer.status}: {answer.body}"
            self._wrong(instance, said)
        return answer.status == status

    def _wrong(self, instance: Instance, what: str) -> None:
        self._log.violation(f"{self.name}, instance {instance.uuid}: {what}")


class Load:
    """All clients, and the client of the run itself (the probe), which has no thread.

    The clients use ``profiles``; equal seeds give them equal choices.
    """

    def __init__(
        self,
        count: int,
        *,
        urls: Sequence[str],
        cloud: Cloud,
        profiles: Sequence[str],
        client_log: ClientLog,
        seed: str,
    ) -> None:
        self.cloud = cloud
        self.profiles = profiles
        self.client_log = client_log
        self.seed = seed
        self.ended = threading.Event()
        self.running = threading.Event()

        def client(number: int, name: str) -> Client:
            # Each client starts at another endpoint.
            first = number % len(urls)
            return Client(name, self, [*urls[first:], *urls[:first]])

        self.clients = [client(number, f"client-{number}") for number in range(1, count + 1)]
        self.probe = client(0, "probe")

    def start(self) -> None:
        self.running.set()
        for one in self.clients:
            one.thread.start()

    def halt(self) -> None:
        """Have all clients stand still after their current instance; who cannot is a violation."""
        self.running.clear()
        service.wait_until(
            lambda: all(one.stands for one in self.clients), timeout=2 * PATIENCE, step=0.1
        )
        for one in self.clients:
            if not one.stands:
                self.client_log.violation(f"{one.name} is stuck: {one.where}")

    def go(self) -> None:
        for one in self.clients:
            one.parked.clear()
        self.running.set()

    def stop(self) -> None:
        """End all clients, whatever they wait for; their instances stay."""
        self.ended.set()
        self.running.set()
        for one in self.clients:
            if one.thread.is_alive():
                one.thread.join(PATIENCE)

    @property
    def instances(self) -> list[Instance]:
        """Those that stand there now."""
        return [instance for one in self.clients for instance in one.instances]
