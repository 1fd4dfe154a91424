# SPDX-License-Identifier: Apache-2.0
"""Steps about instances: boot with an accelerator, attach one more, detach it."""

from typing import Any

from cyborg.tests.fixtures.accelerators import NovaFault
from cyborg.tests.fixtures.compute import Server
from cyborg_tools.quickstart.clients import StepFailed, require
from cyborg_tools.walkthrough.environment import CRYPTO_CLASS, RACK
from cyborg_tools.walkthrough.scenario import Scenario

PROFILE = "crypto"


def is_bound(scenario: Scenario) -> None:
    """Boot a server with a device profile."""
    cyborg = scenario.cyborg
    scenario.screen.step(
        "A device profile is written; a server that asks for it boots (Nova's part)"
    )
    group = f"resources:{CRYPTO_CLASS}=1,trait:OWNER_CYBORG=required"
    cyborg.asks(f"profile-create {PROFILE} --group {group}")
    server = boots(scenario, PROFILE)
    (bound,) = arqs(scenario, server)
    require(bound["state"] == "Bound", "it is not Bound")
    held = cyborg.asks("accelerator-list --attached -c uuid -c hostname -c free -c total")
    require([one["hostname"] for one in held] == [RACK], "one accelerator was expected in use")
    counts = cyborg.asks(f"usage-show --host {RACK}")
    require(sum(one["used"] for one in counts) == 1, "one unit was expected to be used")
    scenario.screen.ok(f"Server {server.uuid} has one unit of accelerator {held[0]['uuid']}.")


def is_attached(scenario: Scenario) -> None:
    """Attach one more accelerator."""
    cyborg, (server,) = scenario.cyborg, scenario.servers
    scenario.screen.step("One more is attached to the running server; Nova reboots it for that")
    done = cyborg.asks(f"attach-instance {server.uuid} -c state -c results -c error")
    require(done["state"] == "succeeded", "it did not succeed")
    listed = arqs(scenario, server)
    require([one["state"] for one in listed] == ["Bound", "Bound"], "two bound ones were expected")
    _has(scenario, server, listed)
    (new,) = done["results"][0]["result"]["arqs"]
    require(new in {one["uuid"] for one in listed}, "it is not what the operation tells")
    cyborg.is_refused(
        f"detach-instance {server.uuid} {server.arqs[0]['uuid']}",
        "attached accelerator can be detached",
    )
    scenario.screen.ok("The guest has both; the accelerator of its flavor cannot be detached.")


def is_detached(scenario: Scenario) -> None:
    """Detach it without waiting, then follow the operation."""
    cyborg, (server,) = scenario.cyborg, scenario.servers
    scenario.screen.step("It is detached again, first without waiting, then watched to its end")
    begun = cyborg.does(f"detach-instance {server.uuid} --no-wait -f value -c uuid").out.strip()
    over = cyborg.asks(f"operation-show {begun} --wait -c state -c results")
    require(over["state"] == "succeeded", "it did not succeed")
    listed = arqs(scenario, server)
    require([one["uuid"] for one in listed] == [one["uuid"] for one in server.arqs], "others left")
    _has(scenario, server, listed)
    scenario.screen.ok("The guest has what its flavor asks for, and nothing else.")


def boots(scenario: Scenario, profile: str) -> Server:
    """Boot a server with a flavor of this profile, as Nova does. Raises StepFailed."""
    environment = scenario.environment
    try:
        server = environment.compute.boot(profile)
    except NovaFault as fault:
        raise StepFailed(f"Nova cannot boot: {fault}") from fault
    require(server.host == RACK, f"it boots on {server.host}")
    guest = environment.nova.own(server.uuid, "demo", server.host, profile)
    guest.has = [one["uuid"] for one in server.arqs]
    scenario.guests[server.uuid] = guest
    scenario.servers.append(server)
    return server


def goes(scenario: Scenario, server: Server) -> None:
    """Delete a server, as Nova does. Raises StepFailed."""
    try:
        scenario.environment.compute.delete(server)
    except NovaFault as fault:
        raise StepFailed(f"Nova cannot delete: {fault}") from fault
    scenario.environment.nova.disown(server.uuid)
    scenario.servers.remove(server)


def arqs(scenario: Scenario, server: Server) -> list[dict[str, Any]]:
    """Return the ARQs of a server as the operator sees them."""
    columns = "-c uuid -c state -c device_profile_name -c attach_handle_info"
    found: list[dict[str, Any]] = scenario.cyborg.asks(
        f"arq-list --instance {server.uuid} {columns}"
    )
    return found


def _has(scenario: Scenario, server: Server, listed: list[dict[str, Any]]) -> None:
    """Require that the guest has exactly the listed ARQs after a reboot."""
    guest = scenario.guests[server.uuid]
    require(guest.status == "ACTIVE" and guest.reboots, "its server was not rebooted")
    require(set(guest.has) == {one["uuid"] for one in listed}, "its guest has something else")
    told = f"the server was rebooted hard; its guest has {len(guest.has)} accelerator(s)"
    scenario.screen.fact("Nova", told)
