# SPDX-License-Identifier: Apache-2.0
"""The clients: each begins and ends guests without a break, and stands still for a verdict."""

import random
import threading
from collections.abc import Callable, Sequence

from cyborg import service
from cyborg_tools.chaos.client_log import Witness
from cyborg_tools.chaos.endpoints import Doors
from cyborg_tools.chaos.scenarios import BIND_DEADLINE, Cloud, Guest, Lives

PROBE = "probe"
#: Guests that a client keeps while it begins the next one.
_KEPT = 1
#: Seconds between two lives, so that two processors have something left for the service.
_REST = 0.2

MakeLives = Callable[[str], Lives]


class Client:
    """One thread; guests of its own, of which it keeps the last."""

    def __init__(self, name: str, lives: Lives, *, doors: Doors, profiles: Sequence[str]) -> None:
        self.name = name
        self.guests: list[Guest] = []
        self._lives = lives
        self._doors = doors
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
        """Finish the present life and stand still; returns at once."""
        self._may_go.clear()

    @property
    def parked(self) -> bool:
        """Whether it stands still."""
        return self._parked.is_set() or not self._thread.is_alive()

    @property
    def where(self) -> str:
        """What it is at, in words; why its thread died if it has."""
        return self._broken or self._doors.asking or "waiting for the end of a bind"

    def stop(self) -> None:
        """End after the present life; its guests stay."""
        self._ended.set()
        self._may_go.set()

    def join(self) -> None:
        """Wait for its end."""
        if self._thread.is_alive():
            self._thread.join(BIND_DEADLINE)

    def end_guests(self) -> None:
        """End all guests, from the caller's thread; the client must stand still."""
        while self.guests:
            self._lives.end(self.guests.pop())

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
            # A thread that dies quietly would make the run look better than it was.
            self._broken = f"ended by {type(fault).__name__}: {fault}"
            raise

    def _live(self) -> None:
        guest = self._lives.begin(self._chance.choice(self._profiles))
        if guest is None:
            while self.guests:
                self._lives.end(self.guests.pop(0))
            return
        self.guests.append(guest)
        self._lives.resolved(guest)
        while len(self.guests) > _KEPT:
            self._lives.end(self.guests.pop(0))


class Load:
    """All clients, and one more that the run itself asks with (the probe)."""

    def __init__(
        self,
        count: int,
        *,
        urls: Sequence[str],
        cloud: Cloud,
        profiles: Sequence[str],
        witness: Witness,
        seed: int,
    ) -> None:
        self._witness = witness
        self._ended = threading.Event()
        self._urls = urls
        self._cloud = cloud
        self._profiles = profiles
        self._seed = seed
        self.clients = [self._client(f"client-{number}", number) for number in range(1, count + 1)]
        self.probe = self._lives(PROBE, self._doors(PROBE, 0))

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
                self._witness.violation(f"{one.name} is stuck: {one.where}")

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
    def guests(self) -> list[Guest]:
        """Those that stand there now."""
        return [guest for one in self.clients for guest in one.guests]

    def _client(self, name: str, number: int) -> Client:
        doors = self._doors(name, number)
        lives = self._lives(name, doors)
        return Client(name, lives, doors=doors, profiles=self._profiles)

    def _doors(self, name: str, number: int) -> Doors:
        # Each begins at another door.
        first = number % len(self._urls)
        urls = [*self._urls[first:], *self._urls[:first]]
        return Doors(urls, client=name, witness=self._witness, ended=self._ended)

    def _lives(self, name: str, doors: Doors) -> Lives:
        chance = random.Random(f"{self._seed} {name}")
        return Lives(name, cloud=self._cloud, doors=doors, witness=self._witness, chance=chance)
