# SPDX-License-Identifier: Apache-2.0
"""Move a server to another host: shelve it, and unshelve it there.

Nova migrates no server with accelerators. Shelving gives them back, and unshelving requests new
ones on the host. Every step is a fact that Nova shows, so that a command that was interrupted goes
on where it ended when it is run again.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cyborg_cli import exception
from cyborg_cli.base import ShowCommand, add_dry_run, duration
from cyborg_cli.client import Client, poll
from cyborg_cli.compute import Compute, Server
from cyborg_cli.text import escaped

_ACTIVE: Final = "ACTIVE"
_OFF: Final = "SHUTOFF"
_SHELVED: Final = "SHELVED"
_OFFLOADED: Final = "SHELVED_OFFLOADED"
_MOVABLE: Final = (_ACTIVE, _OFF, _SHELVED, _OFFLOADED)
#: The tasks of Nova to shelve or unshelve a server; each ends by itself.
_OWN_TASKS: Final = frozenset(
    {
        "shelving",
        "shelving_image_pending_upload",
        "shelving_image_uploading",
        "shelving_offloading",
        "unshelving",
        "spawning",
    }
)
_EXPLAIN: Final = "instance-move"
_HISTORY: Final = "openstack server event list"
#: Seconds that Nova gets for one step by default.
_PATIENCE: Final = "1h"


@dataclass(frozen=True)
class Move:
    """A server that may move to ``target``; ``source`` is its host, None: it has none now.

    ``ended``: it is there already, because Nova has ended what an interrupted move had begun.
    """

    server: Server
    source: str | None
    target: str
    ended: bool = False


class Mover:
    """The steps of a move. ``say`` gets a line of progress, ``limit`` is in seconds for each step.

    Each method raises CommandFailed, whose message says where the server is.
    """

    def __init__(
        self, client: Client, compute: Compute, *, say: Callable[[str], None], limit: int
    ) -> None:
        self._client = client
        self._compute = compute
        self._say = say
        self._limit = limit

    def plan(self, key: str, target: str, *, wait: bool) -> Move:
        """Check all that can be known before anything changes.

        ``wait``: until Nova has ended what an interrupted move has begun.
        """
        server = self._compute.server(key)
        if wait and server.task in _OWN_TASKS:
            server = self._settled(server.uuid)
        name = f"Server {escaped(server.name)}"
        if server.task:
            raise exception.CommandFailed(
                reason=f"{name} is busy ({server.state}). Run the command when Nova has ended that."
            )
        if server.status not in _MOVABLE:
            raise exception.CommandFailed(
                reason=f"{name} has the status {server.status}. Only servers with the status "
                f"{', '.join(_MOVABLE[:-1])} or {_MOVABLE[-1]} can move."
            )
        if server.host == target:
            if server.status != _SHELVED and self._compute.was_unshelved(server.uuid):
                self._say(f"{name} has moved to host {escaped(target)}.")
                return Move(server, self._compute.shelved_on(server.uuid), target, ended=True)
            raise exception.CommandFailed(
                reason=f"{name} is on host {escaped(target)} already ({server.status}). Nothing "
                "was changed."
            )
        self._compute.check_host(target)
        move = Move(server, server.host, target)
        obstacle = self.obstacle(server, target)
        if obstacle:
            raise exception.CommandFailed(
                reason=f"{obstacle} Nothing was changed: {name} is {self._place(server)}."
            )
        return move

    def obstacle(self, server: Server, host: str) -> str:
        """Return why the host cannot give the server its accelerators; empty if it can."""
        if server.profile is None:
            return ""
        values = {"host": host, "flavor": server.flavor}
        try:
            explained = self._client.request(_EXPLAIN, server.profile, values=values)
        except exception.CommandFailed as error:
            if error.status != 404:
                raise
            # The flavor may be gone; what the server has of it stays.
            explained = self._client.request(_EXPLAIN, server.profile, values={"host": host})
        if explained["fits"]:
            return ""
        summary = escaped(str(explained["summary"]))
        return f"Host {escaped(host)} cannot give the accelerators of {server.profile}: {summary}"

    def run(self, move: Move) -> Server:
        """Move the server and return it; if it was not shelved before, it returns on a failure."""
        server, target = move.server, move.target
        if move.ended:
            return server
        was_shelved = server.status in (_SHELVED, _OFFLOADED)
        if server.status != _OFFLOADED:
            server = self._shelve(server)
        obstacle = self.obstacle(server, target)
        if not obstacle:
            try:
                server = self._unshelve(server, target)
            except exception.CommandFailed as error:
                obstacle = str(error)
        if obstacle:
            server = self._return(move, obstacle, was_shelved=was_shelved)
        if move.server.status == _OFF and server.status == _ACTIVE:
            self._say(f"Stopping server {server.name}, which was off")
            self._compute.act(server.uuid, "os-stop")
            server = self._settled(server.uuid)
        if obstacle:
            raise exception.CommandFailed(
                reason=f"{obstacle} Server {escaped(server.name)} is {self._place(server)} again."
            )
        return server

    def _shelve(self, server: Server) -> Server:
        """Shelve a server, and remove it from its host."""
        self._say(f"Shelving server {server.name} on host {server.host}")
        if server.status != _SHELVED:
            self._compute.act(server.uuid, "shelve")
            server = self._settled(server.uuid)
        if server.status == _SHELVED:
            try:
                self._compute.act(server.uuid, "shelveOffload")
            except exception.CommandFailed as error:
                # Nova itself may just have begun with that.
                if error.status != 409:
                    raise
            server = self._settled(server.uuid)
        if server.status != _OFFLOADED:
            raise exception.CommandFailed(
                reason=f"Nova did not shelve server {escaped(server.name)}; it is "
                f"{self._place(server)}. {_HISTORY} {server.uuid} says why."
            )
        return server

    def _unshelve(self, server: Server, host: str) -> Server:
        """Start a shelved server on a host."""
        self._say(f"Unshelving server {server.name} on host {host}")
        self._compute.act(server.uuid, "unshelve", {"host": host})
        server = self._settled(server.uuid)
        if server.status == _ACTIVE and server.host == host:
            return server
        fault = f" ({escaped(server.fault)})" if server.fault else ""
        raise exception.CommandFailed(
            reason=f"Nova did not start the server on host {escaped(host)}{fault}: {_HISTORY} "
            f"{server.uuid} says why."
        )

    def _return(self, move: Move, obstacle: str, *, was_shelved: bool) -> Server:
        """Start the server where it was; raises CommandFailed if it stays shelved."""
        server = self._compute.server(move.server.uuid)
        source = move.source
        if was_shelved or source is None or server.task or server.status != _OFFLOADED:
            source = source or self._compute.shelved_on(server.uuid)
            advice = f", or --host {escaped(source)}, where it was" if source else ""
            raise exception.CommandFailed(
                reason=f"{obstacle} Server {escaped(server.name)} is {self._place(server)}. Run "
                f"the command again with another host{advice}."
            )
        self._say(f"{obstacle} The server returns to host {source}")
        try:
            self._wait_for_units(server, source)
            return self._unshelve(server, source)
        except exception.CommandFailed as error:
            server = self._compute.server(server.uuid)
            raise exception.CommandFailed(
                reason=f"{obstacle} It cannot return: {error} Server {escaped(server.name)} is "
                f"{self._place(server)}. Run the command again with a host that has room."
            ) from error

    def _wait_for_units(self, server: Server, host: str) -> None:
        """Wait until the host can give the server its accelerators: it may be cleaning them."""
        obstacles: list[str] = []

        def fetch() -> Mapping[str, Any]:
            obstacle = self.obstacle(server, host)
            if obstacle and obstacle not in obstacles:
                obstacles.append(obstacle)
                self._say(obstacle)
            return {"fits": not obstacle}

        poll(fetch, lambda answer: bool(answer["fits"]), self._bounded(f"host {host} has room"))

    def _settled(self, uuid: str) -> Server:
        """Wait until Nova does nothing with a server, and return it; each change is a line."""
        states: list[str] = []
        latest: list[Server] = []

        def fetch() -> Mapping[str, Any]:
            server = self._compute.server(uuid)
            if server.state not in states[-1:]:
                states.append(server.state)
                self._say(f"  {server.name}: {server.state}")
            latest[:] = [server]
            return {"task": server.task}

        what = f"Nova has ended its task with server {uuid}"
        poll(fetch, lambda answer: answer["task"] is None, self._bounded(what))
        return latest[0]

    def _bounded(self, what: str) -> Callable[[float], None]:
        """Return what pauses between two polls, for ``limit`` seconds in all."""
        left = [float(self._limit)]

        def pause(seconds: float) -> None:
            if left[0] <= 0:
                raise exception.CommandFailed(
                    reason=f"Gave up waiting after {self._limit} s until {what}. Run the command "
                    "again to go on; --step-timeout sets a longer time."
                )
            left[0] -= seconds
            self._client.pause(seconds)

        return pause

    def _place(self, server: Server) -> str:
        where = f"on host {escaped(server.host)}" if server.host else "on no host"
        return f"{where} ({server.state})"


class InstanceMove(ShowCommand):
    """Move a server with its accelerators to another host; the server is down meanwhile."""

    route = "instance-move"
    key_name, key_help = "server", "ID or name of the server."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--host",
            metavar="<host>",
            required=True,
            help="Compute host to move to, as openstack compute service list names it.",
        )
        parser.add_argument(
            "--step-timeout",
            metavar="DURATION",
            type=duration,
            default=_PATIENCE,
            help="Time that Nova gets for each step, for example 30m or 4h (default: "
            f"{_PATIENCE}). Copying a large disk takes long.",
        )
        add_dry_run(parser)

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Move the server, and return it with its accelerator requests."""
        mover = Mover(
            self.client, self.client.compute, say=self.print_note, limit=parsed.step_timeout
        )
        try:
            move = mover.plan(parsed.key, parsed.host, wait=not parsed.dry_run)
            server = move.server if parsed.dry_run else mover.run(move)
        except KeyboardInterrupt:
            self.print_note("Nova goes on with its step. Run the command again to finish the move.")
            raise
        if parsed.dry_run and not move.ended:
            steps = ["unshelve"] if server.status == _OFFLOADED else ["shelve", "unshelve"]
            self.print_note(f"Would {' and '.join(steps)} the server.")
            self.print_dry_run()
        return {
            "server": server.uuid,
            "name": server.name,
            "from": move.source,
            "to": move.target,
            "status": server.status,
            "accelerators": self._accelerators(server),
        }

    def _accelerators(self, server: Server) -> list[str]:
        """Return each accelerator request of the server with its state and its host."""
        if server.profile is None:
            return []
        listed = self.client.read_list("arq-list", {"instance": server.uuid})
        return [f"{arq['uuid']} {arq['state']} {arq['hostname']}" for arq in listed]
