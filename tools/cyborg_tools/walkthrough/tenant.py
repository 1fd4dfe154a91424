# SPDX-License-Identifier: Apache-2.0
"""Servers of a project, which Nova boots and deletes, and what Placement gives out for them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cyborg.service import wait_until
from cyborg.tests.fixtures.accelerators import NovaFault
from cyborg.tests.fixtures.compute import Server
from cyborg.tests.fixtures.fake_servers import Guest
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg_tools.quickstart.clients import StepFailed, require
from cyborg_tools.quickstart.screen import Screen
from cyborg_tools.walkthrough.environment import WalkedCloud
from cyborg_tools.walkthrough.operator import Operator

#: The class of the units of the fake driver.
FAKE_CLASS = "FPGA"


def column(rows: Iterable[Mapping[str, Any]], *names: str) -> list[Any]:
    """The values of a column, or the tuples of several."""
    return [one[names[0]] if len(names) == 1 else tuple(map(one.get, names)) for one in rows]


class Tenant(Operator):
    """An operator with servers of a project.

    ``servers`` are those that run, ``guests`` is what Nova knows of these, by uuid.
    """

    def __init__(
        self, environment: WalkedCloud, variables: Mapping[str, str], screen: Screen
    ) -> None:
        super().__init__(variables, screen)
        self.environment = environment
        self.servers: list[Server] = []
        self.guests: dict[str, Guest] = {}

    def boots(self, profile: str, host: str) -> Server:
        """Boot a server with a flavor of the profile, as Nova does. Raises StepFailed."""
        try:
            server = self.environment.compute.boot(profile)
        except NovaFault as fault:
            raise StepFailed(f"Nova cannot boot: {fault}") from fault
        require(server.host == host, f"it boots on {server.host}")
        guest = self.environment.nova.own(
            server.uuid, self.environment.project, server.host, profile
        )
        guest.has = column(server.arqs, "uuid")
        self.guests[server.uuid] = guest
        self.servers.append(server)
        return server

    def goes(self, server: Server) -> None:
        """Delete a server, as Nova does. Raises StepFailed."""
        try:
            self.environment.compute.delete(server)
        except NovaFault as fault:
            raise StepFailed(f"Nova cannot delete: {fault}") from fault
        self.environment.nova.disown(server.uuid)
        self.servers.remove(server)

    def arqs(self, server: Server) -> list[dict[str, Any]]:
        columns = "-c uuid -c state -c device_profile_name -c attach_handle_info"
        found: list[dict[str, Any]] = self.asks(f"arq-list --instance {server.uuid} {columns}")
        return found

    def until(self, holds: Callable[[], object], otherwise: str) -> None:
        """Wait until a condition holds; raise StepFailed with ``otherwise`` after the timeout."""
        require(
            wait_until(lambda: bool(holds()), timeout=PATIENCE, step=0.1),
            f"{otherwise} within {PATIENCE:.0f} seconds",
        )

    def offered(self, host: str, resource_class: str) -> int | None:
        """Units of a class that Placement would give out on a host; None if it knows none."""
        placement = self.environment.placement
        root = placement.make_compute(host)
        known = placement.call("GET", f"/resource_providers?in_tree={root}")["resource_providers"]
        paths = [f"/resource_providers/{one['uuid']}/inventories" for one in known]
        found = [
            one
            for path in paths
            # A provider may go between the two requests.
            if (answer := placement.call("GET", path, accept=(404,)))
            and (one := answer.get("inventories", {}).get(resource_class))
        ]
        return sum(one["total"] - one["reserved"] for one in found) if found else None

    def awaits_offered(self, host: str, resource_class: str, units: int | None) -> None:
        """Wait until Placement gives out so many; raises StepFailed."""
        what = "has no provider of" if units is None else f"offers {units} of"
        self.until(
            lambda: self.offered(host, resource_class) == units,
            f"{host} does not come to where Placement {what} {resource_class}",
        )
