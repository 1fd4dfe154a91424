# SPDX-License-Identifier: Apache-2.0
"""The clients: each boots and deletes instances, and pauses for a verdict."""

import random
import threading
from collections.abc import Sequence

from cyborg import service
from cyborg_tools.chaos.client_log import ClientLog
from cyborg_tools.chaos.endpoints import Endpoints
from cyborg_tools.chaos.scenarios import BIND_DEADLINE, Cloud, Instance, ServerLifecycle

PROBE = "probe"
#: Instances that a client keeps while it boots the next one.
_KEPT = 1
#: Seconds between two boots, so that two processors have capacity for the service.
_REST = 0.2


class Client:
    """A client thread with its own instances."""

    def __init__(
        self,
        name: str,
        lifecycle: ServerLifecycle,
        *,
        endpoints: Endpoints,
        profiles: Sequence[str],
    ) -> None:
        self.name = name
        self.instances: list[Instance] = []
        self._lifecycle = lifecycle
        self._endpoints = endpoints
        self._profiles = profiles
        self._chance = random.Random(name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._may_go = threading.Event()
        self._ended = threading.Event()
        self._parked = threading.Event()
        self._broken = ""

    def start(self) -> None:
        """Begin."""
        self._may_go.set()
        self._thread.start()

    def go(self) -> None:
        """Go on after a halt."""
        self._parked.clear()
        self._may_go.set()

    def halt(self) -> None:
        """Pause after the current instance; return at once."""
        self._may_go.clear()

    @property
    def parked(self) -> bool:
        """Whether it stands still."""
        return self._parked.is_set() or not self._thread.is_alive()

    @property
    def where(self) -> str:
        """What it is at, in words; why its thread died if it has."""
        return self._broken or self._endpoints.asking or "waiting for the end of a bind"

    def stop(self) -> None:
        """Stop after the current instance; keep its instances."""
        self._ended.set()
        self._may_go.set()

    def join(self) -> None:
        """Wait for its end."""
        if self._thread.is_alive():
            self._thread.join(BIND_DEADLINE)

    def delete_instances(self) -> None:
        """End all guests, from the caller's thread; the client must stand still."""
        while self.instances:
            self._lifecycle.end(self.instances.pop())

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                if not self._may_go.is_set():
                    self._parked.set()
                    self._may_go.wait()
                    continue
                self._live()
                self._ended.wait(_REST)
        except Exception as fault:
            # Without this the result would not show that the thread has ended.
            self._broken = f"ended by {type(fault).__name__}: {fault}"
            raise

    def _live(self) -> None:
        instance = self._lifecycle.begin(self._chance.choice(self._profiles))
        if instance is None:
            while self.instances:
                self._lifecycle.end(self.instances.pop(0))
            return
        self.instances.append(instance)
        self._lifecycle.resolved(instance)
        while len(self.instances) > _KEPT:
            self._lifecycle.end(self.instances.pop(0))


class Load:
    """All clients, and the client of the run itself (the probe)."""

    def __init__(
        self,
        count: int,
        *,
        urls: Sequence[str],
        cloud: Cloud,
        profiles: Sequence[str],
        client_log: ClientLog,
        seed: int,
    ) -> None:
        self._client_log = client_log
        self._ended = threading.Event()
        self._urls = urls
        self._cloud = cloud
        self._profiles = profiles
        self._seed = seed
        self.clients = [self._client(f"client-{number}", number) for number in range(1, count + 1)]
        self.probe = self._lifecycle(PROBE, self._endpoints(PROBE, 0))

    def start(self) -> None:
        """Let the clients begin."""
        for one in self.clients:
            one.start()

    def halt(self) -> None:
        """Have all clients stand still; who cannot is a violation."""
        for one in self.clients:
            one.halt()
        service.wait_until(
            lambda: all(one.parked for one in self.clients), timeout=2 * BIND_DEADLINE, step=0.1
        )
        for one in self.clients:
            if not one.parked:
                self._client_log.violation(f"{one.name} is stuck: {one.where}")

    def go(self) -> None:
        """Have all clients go on."""
        for one in self.clients:
            one.go()

    def stop(self) -> None:
        """End all clients, whatever they wait for."""
        self._ended.set()
        for one in self.clients:
            one.stop()
        for one in self.clients:
            one.join()

    @property
    def instances(self) -> list[Instance]:
        """Those that stand there now."""
        return [instance for one in self.clients for instance in one.instances]

    def _client(self, name: str, number: int) -> Client:
        endpoints = self._endpoints(name, number)
        lifecycle = self._lifecycle(name, endpoints)
        return Client(name, lifecycle, endpoints=endpoints, profiles=self._profiles)

    def _endpoints(self, name: str, number: int) -> Endpoints:
        # Each client starts at another endpoint.
        first = number % len(self._urls)
        urls = [*self._urls[first:], *self._urls[:first]]
        return Endpoints(urls, client=name, client_log=self._client_log, ended=self._ended)

    def _lifecycle(self, name: str, endpoints: Endpoints) -> ServerLifecycle:
        chance = random.Random(f"{self._seed} {name}")
        return ServerLifecycle(
            name, cloud=self._cloud, endpoints=endpoints, client_log=self._client_log, chance=chance
        )
