# SPDX-License-Identifier: Apache-2.0
"""Walk an accelerator from its host to a server and back, with a simulated Nova.

Every request is really sent, and shown with what came back. Those that Nova sends to the
accelerator API come from the replay of Nova's own client.
"""

from typing import Any

from cyborg.tests.fixtures.accelerators import Exchange, NovaFault
from cyborg.tests.fixtures.nova import EventCall
from cyborg.tests.fixtures.placement import suffix
from cyborg_tools.quickstart.clients import (
    PATIENCE,
    Clients,
    Scenario,
    StepFailed,
    group_for,
    require,
)
from cyborg_tools.quickstart.preparation import PROFILE, Preparation, Supply, counts
from cyborg_tools.quickstart.screen import Screen

_PROJECT = "quickstart"


class Walk:
    """Run the steps in order."""

    def __init__(self, scenario: Scenario, screen: Screen) -> None:
        self._scenario = scenario
        self._screen = screen
        self._clients = Clients.of(scenario, screen.exchange)
        self._preparation = Preparation(scenario)
        self._instance = self._preparation.instance

    def play(self) -> None:
        """Run the whole walk; the first step that fails raises StepFailed."""
        try:
            self._preparation.sweep()
            root = self._compute()
            before = self._publish(root)
            group = self._profile()
            candidate = self._schedule(root, group)
            self._claim(candidate)
            arqs = self._create()
            self._bind(arqs, candidate)
            self._resolve(arqs, before)
            self._release()
            self._look_again(before)
        except NovaFault as fault:
            raise StepFailed(str(fault)) from fault

    def _compute(self) -> str:
        """The compute's own provider; answers its uuid."""
        self._screen.step("nova-compute makes a resource provider for its host in Placement")
        placement, name = self._clients.placement, self._scenario.host
        found = placement.send("GET", f"/resource_providers?name={name}")["resource_providers"]
        if found:
            self._screen.ok("It is there since an earlier start.")
            return str(found[0]["uuid"])
        made = placement.send("POST", "/resource_providers", {"name": name})
        path, generation = f"/resource_providers/{made['uuid']}", made["generation"]
        for what, value in (
            ("inventories", {"VCPU": {"total": 8}, "MEMORY_MB": {"total": 16384}}),
            ("traits", ["COMPUTE_ACCELERATORS", "OWNER_NOVA"]),
        ):
            body = {"resource_provider_generation": generation, what: value}
            answer = placement.send("PUT", f"{path}/{what}", body)
            generation = answer["resource_provider_generation"]
        self._screen.ok(f"{name} has processors and memory to give, and may have accelerators.")
        return str(made["uuid"])

    def _publish(self, root: str) -> Supply:
        """The agent's part; answers what is given away before the walk takes anything."""
        scenario = self._scenario
        self._screen.step("cyborg-agent finds that provider and publishes what it offers below it")
        self._preparation.wait_until_offered(root)
        placement = self._clients.placement
        query = f"in_tree={root}&name={scenario.deployable.name}"
        placement.send("GET", f"/resource_providers?{query}")
        found = placement.send("GET", f"/resource_providers/{scenario.provider}/inventories")
        amount = found["inventories"][scenario.deployable.resource_class]
        self._screen.ok(
            f"{scenario.deployable.name} gives {amount['total'] - amount['reserved']} of "
            f"{scenario.deployable.resource_class}."
        )
        return self._preparation.supply()

    def _profile(self) -> dict[str, str]:
        """The profile; answers its one group."""
        self._screen.step("An operator writes a device profile: what servers may ask for")
        group = group_for(self._scenario.deployable)
        body = [{"name": PROFILE, "groups": [group]}]
        made = self._clients.cyborg.send("POST", "/v2/device_profiles", body, expect=201)
        require(made["groups"] == [group], "the profile's groups came back changed")
        self._screen.ok(f"Flavors with accel:device_profile={PROFILE} ask for it.")
        return group

    def _schedule(self, root: str, group: dict[str, str]) -> dict[str, Any]:
        """Nova's api and scheduler; answers what could be claimed."""
        scenario = self._scenario
        self._screen.step(
            "A server boots with it: Nova reads the profile and asks Placement who can give that"
        )
        require(self._clients.nova.groups(PROFILE) == [group], "Nova reads another profile")
        part = scenario.deployable
        query = [
            f"in_tree={root}",
            "resources=VCPU:1",
            "root_required=COMPUTE_ACCELERATORS",
            f"resources{suffix(0)}={part.resource_class}:{part.group_size}",
            f"required{suffix(0)}={part.traits[-1]}",
        ]
        placement = self._clients.placement
        found = placement.send("GET", f"/allocation_candidates?{'&'.join(query)}")
        candidates: list[dict[str, Any]] = found["allocation_requests"]
        require(candidates, "Placement has no host with a free unit")
        # A host may have several devices that fit; the walk shows one of them.
        candidate = next(
            (one for one in candidates if one["mappings"][suffix(0)] == [scenario.provider]),
            candidates[0],
        )
        self._screen.ok(f"The host {scenario.host} can.")
        return candidate

    def _claim(self, candidate: dict[str, Any]) -> None:
        self._screen.step("nova-scheduler claims that in Placement, for the instance")
        body = {
            "allocations": candidate["allocations"],
            "mappings": candidate["mappings"],
            "consumer_generation": None,
            "project_id": _PROJECT,
            "user_id": _PROJECT,
        }
        self._clients.placement.send("PUT", f"/allocations/{self._instance}", body, expect=204)
        self._screen.ok("No other server can get this unit now.")

    def _create(self) -> list[dict[str, Any]]:
        self._screen.step("nova-conductor asks for accelerator requests (ARQs), one per unit")
        arqs = self._clients.nova.create(PROFILE)
        count = self._scenario.deployable.group_size
        states = [one["state"] for one in arqs]
        require(states == ["Initial"] * count, f"{count} new ARQ(s) were expected")
        uuids = ", ".join(one["uuid"] for one in arqs)
        self._screen.ok(f"ARQ {uuids} is Initial." if count == 1 else f"ARQs {uuids} are Initial.")
        return arqs

    def _bind(self, arqs: list[dict[str, Any]], candidate: dict[str, Any]) -> None:
        """Bind, and the event that tells Nova."""
        self._screen.step(
            "nova-conductor binds them to the instance, at the provider that answered"
        )
        (provider,) = candidate["mappings"][suffix(0)]
        uuids = [one["uuid"] for one in arqs]
        self._clients.nova.bind(self._instance, self._scenario.host, dict.fromkeys(uuids, provider))
        try:
            told = self._scenario.nova.wait_for_events(uuids, PATIENCE)
        except TimeoutError as error:
            raise StepFailed(f"no event reached Nova in {PATIENCE:.0f} seconds") from error
        call = next(one for one in self._scenario.nova.calls if _tags(one) & set(uuids))
        self._screen.exchange("Nova", _event(call))
        require(set(told.values()) == {"completed"}, f"Nova was told {told}")
        self._screen.ok("Cyborg told Nova that the ARQ is bound; nova-compute need not wait.")

    def _resolve(self, arqs: list[dict[str, Any]], before: Supply) -> None:
        self._screen.step("nova-compute lists the instance's ARQs, resolved, with attach handles")
        bound = self._clients.nova.arqs_of(self._instance)
        require(
            {one["uuid"] for one in bound} == {one["uuid"] for one in arqs}
            and all(one["state"] == "Bound" for one in bound),
            "not all ARQs are Bound",
        )
        handle = bound[0]
        require(handle["attach_handle_info"], "there is no attach handle")
        now = self._preparation.supply()
        require(now != before, "binding has taken nothing")
        address = "{domain}:{bus}:{device}.{function}".format(**handle["attach_handle_info"])
        self._screen.ok(
            f"{handle['attach_handle_type']} {address} is what the guest would get. In Placement "
            f"{counts(now.usages)} used; of the attach handles {counts(now.handles)}."
        )

    def _release(self) -> None:
        self._screen.step("The server is deleted: nova-compute releases what it had")
        self._clients.nova.delete_of(self._instance)
        self._clients.placement.send("DELETE", f"/allocations/{self._instance}", expect=204)
        self._screen.ok("Accelerator and claim are given back.")

    def _look_again(self, before: Supply) -> None:
        scenario, placement = self._scenario, self._clients.placement
        self._screen.step("Everything is free again")
        query = f"/v2/accelerator_requests?instance={self._instance}"
        require(
            self._clients.cyborg.send("GET", query)["arqs"] == [], "the instance has ARQs still"
        )
        self._preparation.wait_until_free(before)
        path = f"/resource_providers/{scenario.provider}"
        used = placement.send("GET", f"{path}/usages")["usages"]
        found = placement.send("GET", f"{path}/inventories")["inventories"]
        amount = found[scenario.deployable.resource_class]
        self._clients.cyborg.send("DELETE", f"/v2/device_profiles/{PROFILE}", expect=204)
        self._screen.ok(
            f"{scenario.deployable.name}: {amount['total'] - amount['reserved']} of "
            f"{amount['total']} offered, {counts(used)} used; attach handles: "
            f"{counts(before.handles)}. The profile is gone too."
        )


def _tags(call: EventCall) -> set[str]:
    return {event.tag for event in call.events}


def _event(call: EventCall) -> Exchange:
    """The call as it was sent, and how the simulated Nova answered it."""
    events = [
        {
            "name": "accelerator-request-bound",
            "server_uuid": event.server_uuid,
            "tag": event.tag,
            "status": event.status,
        }
        for event in call.events
    ]
    path = "/v2.1/os-server-external-events"
    return Exchange("POST", path, {"events": events}, call.events[0].code, None)
