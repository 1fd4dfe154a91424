# SPDX-License-Identifier: Apache-2.0
"""The part of the walk that is not shown: clean up, wait, and count free units."""

from dataclasses import dataclass
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from cyborg.model.device import HandleState
from cyborg.service import wait_until
from cyborg_tools.quickstart.clients import PATIENCE, Clients, Scenario, require

PROFILE = "quickstart"


@dataclass(frozen=True)
class Supply:
    """The used units of one provider in Placement, and the handles in the database."""

    usages: dict[str, int]
    handles: dict[str, int]

    def __str__(self) -> str:
        return f"{counts(self.usages)} used, attach handles: {counts(self.handles)}"


def counts(amounts: dict[str, int]) -> str:
    """Return the amounts as words: ``15 free, 1 held``."""
    return ", ".join(f"{count} {word}" for word, count in sorted(amounts.items())) or "none"


class Preparation:
    """Requests of the walk that are not shown."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._clients = Clients.of(scenario, lambda _peer, _exchange: None)
        #: The server that is played with; always the same one, so that what a run that was cut
        #: off left behind can be found.
        self.instance = str(uuid5(NAMESPACE_DNS, f"server.quickstart.{scenario.host}"))

    def sweep(self) -> None:
        """Remove what an interrupted run left. Raises StepFailed."""
        cyborg, placement = self._clients.cyborg, self._clients.placement
        self._clients.nova.delete_of(self.instance)
        allocations = f"/allocations/{self.instance}"
        if placement.send("GET", allocations)["allocations"]:
            placement.send("DELETE", allocations, expect=204)
        query = f"/v2/accelerator_requests?device_profile_name={PROFILE}"
        left = [one["uuid"] for one in cyborg.send("GET", query)["arqs"]]
        if left:
            cyborg.send("DELETE", f"/v2/accelerator_requests?arqs={','.join(left)}", expect=204)
        known = cyborg.send("GET", f"/v2/device_profiles?name={PROFILE}")["device_profiles"]
        if known:
            cyborg.send("DELETE", f"/v2/device_profiles/{PROFILE}", expect=204)

    def wait_until_offered(self, root: str) -> None:
        """Wait until the accelerator has units to give below ``root``, and releases none.

        Raises StepFailed.
        """
        require(
            wait_until(lambda: self._is_offered(root), timeout=PATIENCE, step=0.2),
            f"{self._scenario.deployable.name} offered nothing within {PATIENCE:.0f} seconds; it "
            "may be disabled since an earlier start, and the log knows more",
        )

    def wait_until_free(self, before: Supply) -> None:
        """Wait until the supply is as it was ``before``, again.

        The host cleans what a server had before the unit is free again. Raises StepFailed.
        """
        require(
            wait_until(lambda: self.supply() == before, timeout=PATIENCE, step=0.2),
            f"{self._scenario.deployable.name} is not free {PATIENCE:.0f} seconds after the "
            f"release. Before the walk: {before}. Now: {self.supply()}",
        )

    def supply(self) -> Supply:
        """Return the units that are in use now."""
        path = f"/resource_providers/{self._scenario.provider}/usages"
        usages: dict[str, Any] = self._clients.placement.send("GET", path)["usages"]
        return Supply(usages, self._scenario.units(self._scenario.provider))

    def _is_offered(self, root: str) -> bool:
        placement, ours = self._clients.placement, self._scenario.provider
        if HandleState.RELEASING in self._scenario.units(ours):
            return False
        known = placement.send("GET", f"/resource_providers?in_tree={root}")["resource_providers"]
        if all(one["uuid"] != ours for one in known):
            return False
        found = placement.send("GET", f"/resource_providers/{ours}/inventories")["inventories"]
        return any(one["total"] > one["reserved"] for one in found.values())
