# SPDX-License-Identifier: Apache-2.0
"""Nova's part, replayed: what its api, conductor and compute services do in a server's life.

The requests to the accelerator API are those of Nova 34, in its order; scheduling and claims go
to the real Placement. Guests are values: nothing runs.
"""

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cyborg.testing.accelerators import AcceleratorClient, NovaFault
from cyborg.testing.nova import SimulatedNova
from cyborg.testing.placement import Candidate, PlacementService, requested, suffix

#: The states that Nova takes for a finished bind, spelled exactly so.
_RESOLVED = frozenset({"Bound", "BindFailed", "Deleting"})
_ADDRESS = ("domain", "bus", "device", "function")


@dataclass
class Server:
    """A server as Nova knows it.

    ``ports`` maps uuids of accelerator ports to their profiles, ``binding_profiles`` to what Nova
    writes into the port. ``host`` is the hypervisor's hostname, empty while there is none.
    """

    uuid: str
    profile: str | None
    ports: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    arqs: list[dict[str, Any]] = field(default_factory=list)
    port_arqs: dict[str, str] = field(default_factory=dict)
    binding_profiles: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def hostdevs(self) -> list[str]:
        """The PCI addresses in the guest's domain; handles of other types are left out."""
        carried_by_ports = set(self.port_arqs.values())
        return [
            _address(one["attach_handle_info"])
            for one in self.arqs
            if one["attach_handle_type"] == "PCI" and one["uuid"] not in carried_by_ports
        ]


class ComputeWalk:
    """Plays servers' lives. Whatever makes Nova fail an operation is raised as NovaFault.

    ``wait`` are the seconds that compute waits for events (``[DEFAULT] arq_binding_timeout``).
    """

    def __init__(
        self,
        client: AcceleratorClient,
        placement: PlacementService,
        nova: SimulatedNova,
        *,
        project: str = "demo",
        wait: float = 30.0,
    ) -> None:
        self._client = client
        self._placement = placement
        self._nova = nova
        self._project = project
        self._wait = wait

    def boot(
        self,
        profile: str | None,
        *,
        ports: Mapping[str, str] | None = None,
        avoid: Collection[str] = (),
        breaks_on: Collection[str] = (),
    ) -> Server:
        """Boot with a flavor's profile, accelerator ports (uuid to profile), or both.

        ``avoid`` are hosts that the scheduler leaves out. On a host of ``breaks_on`` the build
        fails after the bind, and is rescheduled to another host.
        """
        server = Server(str(uuid.uuid4()), profile, ports or {})
        self._nova.own(server.uuid, self._project)
        groups = self._ask_profiles(server)
        failed: set[str] = set(avoid)
        while True:
            try:
                self._place(server, groups, failed)
            except NovaFault:
                if failed > set(avoid):  # all hosts are exhausted: conductor cleans up once more
                    self._abort_build(server)
                raise
            if server.host not in breaks_on:
                self._nova.own(server.uuid, self._project, server.host, server.profile)
                return server
            failed.add(server.host)
            self._abort_build(server)

    def reboot(self, server: Server) -> None:
        """Soft or hard reboot, start, power on, restore: compute reads the handles again."""
        server.arqs = self._client.arqs_of(server.uuid)

    def rebuild(self, server: Server) -> None:
        """Rebuild on the same host: conductor reads, compute reads and waits; all are kept."""
        before = {one["uuid"] for one in self._client.arqs_of(server.uuid)}
        self._read_resolved(server)
        if before != {one["uuid"] for one in server.arqs}:
            raise NovaFault("rebuild", "the accelerator requests changed")

    def shelve_offload(self, server: Server) -> None:
        """Shelve and offload: read by the api, deleted by compute, whose errors are raised."""
        self._client.arqs_of(server.uuid)
        self._client.delete_of(server.uuid)
        self._unplace(server)

    def unshelve(self, server: Server) -> None:
        """Unshelve an offloaded server.

        Compute waits before the server has a host, so that no event reaches it: what is not
        resolved when the bind returns costs the whole time-out and fails.
        """
        groups = self._ask_profiles(server)
        candidate = self._claim(server, groups, ())
        self._create_and_bind(server, candidate)
        server.arqs = self._client.arqs_of(server.uuid)
        if any(one["state"] not in _RESOLVED for one in server.arqs):
            raise NovaFault("unshelve", "not all accelerator requests are resolved")

    def evacuate(self, server: Server) -> None:
        """Evacuate from a dead host: the old requests are deleted, others made elsewhere."""
        groups = self._ask_profiles(server)
        self._client.delete_of(server.uuid)
        self._place(server, groups, {server.host})

    def delete(self, server: Server) -> None:
        """Delete with the host up: per port, then by instance; errors are only logged."""
        for arq in server.port_arqs.values():
            self._client.delete([arq])
        try:
            self._client.delete_of(server.uuid)
        finally:
            self._unplace(server)

    def local_delete(self, server: Server) -> None:
        """Delete with the host down, or offloaded: the api deletes by instance."""
        self._client.delete_of(server.uuid)
        self._unplace(server)

    def _ask_profiles(self, server: Server) -> dict[str, Mapping[str, str]]:
        groups: dict[str, Mapping[str, str]] = {}
        if server.profile is not None:
            groups |= requested(self._client.groups(server.profile))
        for port, profile in server.ports.items():
            asked = requested(self._client.groups(profile), port)
            if sum(map(_units, asked.values())) > 1:
                raise NovaFault("boot", f"port {port} asks for more than one accelerator")
            groups |= asked
        return groups

    def _place(
        self, server: Server, groups: Mapping[str, Mapping[str, str]], avoid: Collection[str]
    ) -> None:
        """Schedule, create, bind, and wait on the compute."""
        candidate = self._claim(server, groups, avoid)
        self._create_and_bind(server, candidate)
        try:
            self._read_resolved(server)
            self._fill_ports(server)
        except NovaFault:
            self._abort_build(server)
            raise

    def _claim(
        self, server: Server, groups: Mapping[str, Mapping[str, str]], avoid: Collection[str]
    ) -> Candidate:
        for candidate in self._placement.candidates(groups):
            host = self._placement.name_of(candidate.mappings[""][0])
            if host not in avoid:
                self._placement.allocate(server.uuid, candidate, self._project)
                server.host = host
                return candidate
        raise NovaFault("schedule", "no valid host was found")

    def _create_and_bind(self, server: Server, candidate: Candidate) -> None:
        """Conductor's part: one request to create per profile, one bind for all of them."""
        made: list[str] = []
        try:
            providers = self._create(server, candidate, made)
            self._client.bind(server.uuid, server.host, providers)
        except NovaFault:
            if made:
                self._client.delete(made)
            self._unplace(server)
            raise

    def _create(self, server: Server, candidate: Candidate, made: list[str]) -> dict[str, str]:
        providers: dict[str, str] = {}
        asked = [("", server.profile)] if server.profile is not None else []
        for port, profile in [*asked, *server.ports.items()]:
            arqs = self._client.create(profile)
            made.extend(one["uuid"] for one in arqs)
            if port and len(arqs) != 1:
                raise NovaFault("create", f"port {port} got {len(arqs)} accelerator requests")
            for one in arqs:
                name = suffix(one["device_profile_group_id"], port)
                providers[one["uuid"]] = candidate.mappings[name][0]
            if port:
                server.port_arqs[port] = arqs[0]["uuid"]
        return providers

    def _read_resolved(self, server: Server) -> None:
        """Compute's part: read; wait for the events of what is not resolved; read again."""
        server.arqs = self._client.arqs_of(server.uuid)
        waiting = [one["uuid"] for one in server.arqs if one["state"] not in _RESOLVED]
        if not waiting:
            return
        try:
            told = self._nova.wait_for_events(waiting, self._wait)
        except TimeoutError as fault:
            raise NovaFault("build", str(fault)) from fault
        if "failed" in told.values():
            raise NovaFault("build", f"binding failed: {told}")
        server.arqs = self._client.arqs_of(server.uuid)

    def _fill_ports(self, server: Server) -> None:
        by_uuid = {one["uuid"]: one for one in server.arqs}
        for port, arq in server.port_arqs.items():
            info = by_uuid[arq]["attach_handle_info"]
            if "physical_network" not in info:
                raise NovaFault("build", f"the handle of port {port} has no physical_network")
            server.binding_profiles[port] = {
                "physical_network": info["physical_network"],
                "pci_slot": _address(info),
                "arq_uuid": arq,
            }

    def _abort_build(self, server: Server) -> None:
        """By instance if the flavor has a profile, then by uuid, which usually finds none."""
        if server.profile is not None:
            self._client.delete_of(server.uuid)
        if server.arqs:
            self._client.delete(one["uuid"] for one in server.arqs)
        self._unplace(server)

    def _unplace(self, server: Server) -> None:
        self._placement.free(server.uuid)
        server.host, server.arqs = "", []
        server.port_arqs.clear()
        server.binding_profiles.clear()


def _units(group: Mapping[str, str]) -> int:
    return sum(int(amount) for key, amount in group.items() if key.startswith("resources:"))


def _address(info: Mapping[str, str]) -> str:
    return "{}:{}:{}.{}".format(*(info[part] for part in _ADDRESS))
