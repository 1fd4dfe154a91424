# SPDX-License-Identifier: Apache-2.0
"""State of the steps: environment, operator, screen, accelerators and servers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from cyborg.service import wait_until
from cyborg.tests.fixtures.compute import Server
from cyborg.tests.fixtures.fake_servers import Guest
from cyborg_tools.quickstart.clients import require
from cyborg_tools.quickstart.screen import Screen
from cyborg_tools.walkthrough.environment import Environment
from cyborg_tools.walkthrough.operator import Operator

#: Timeout of a condition, in seconds.
_PATIENCE = 60.0


@dataclass
class Scenario:
    """``cards`` are the accelerators of the first backend by uuid, ``servers`` those that run.

    ``guests`` is what Nova knows of these, by uuid.
    """

    environment: Environment
    cyborg: Operator
    screen: Screen
    cards: list[str] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)
    guests: dict[str, Guest] = field(default_factory=dict)

    def until(self, holds: Callable[[], object], otherwise: str) -> None:
        """Wait until a condition holds; raise StepFailed with ``otherwise`` after the timeout."""
        held = wait_until(lambda: bool(holds()), timeout=_PATIENCE, step=0.1)
        require(held, f"{otherwise} within {_PATIENCE:.0f} seconds")

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
