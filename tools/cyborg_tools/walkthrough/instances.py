# SPDX-License-Identifier: Apache-2.0
"""Steps about instances: one boots, gets more accelerators, and gives them back."""

from typing import Any

from cyborg.tests.fixtures.accelerators import NovaFault
from cyborg.tests.fixtures.compute import Server
from cyborg_tools.quickstart.peer import StepFailed, require
from cyborg_tools.walkthrough.scene import Scene
from cyborg_tools.walkthrough.stage import CRYPTO_CLASS, RACK

PROFILE = "crypto"


def is_bound(scene: Scene) -> None:
    """A server boots with a profile; Nova alone binds."""
    cyborg = scene.cyborg
    scene.screen.step("A device profile is written; a server that asks for it boots (Nova's part)")
    group = f"resources:{CRYPTO_CLASS}=1,trait:OWNER_CYBORG=required"
    cyborg.asks(f"profile-create {PROFILE} --group {group}")
    server = boots(scene, PROFILE)
    (bound,) = arqs(scene, server)
    require(bound["state"] == "Bound", "it is not Bound")
    held = cyborg.asks("accelerator-list --attached -c uuid -c hostname -c free -c total")
    require([one["hostname"] for one in held] == [RACK], "one accelerator was expected in use")
    counts = cyborg.asks(f"usage-show --host {RACK}")
    require(sum(one["used"] for one in counts) == 1, "one unit was expected to be used")
    scene.screen.ok(f"Server {server.uuid} has one unit of accelerator {held[0]['uuid']}.")


def is_attached(scene: Scene) -> None:
    """The operator gives it one more."""
    cyborg, (server,) = scene.cyborg, scene.servers
    scene.screen.step("One more is attached to the running server; Nova reboots it for that")
    done = cyborg.asks(f"attach-instance {server.uuid} -c state -c results -c error")
    require(done["state"] == "succeeded", "it did not succeed")
    listed = arqs(scene, server)
    require([one["state"] for one in listed] == ["Bound", "Bound"], "two bound ones were expected")
    _has(scene, server, listed)
    (new,) = done["results"][0]["result"]["arqs"]
    require(new in {one["uuid"] for one in listed}, "it is not what the operation tells")
    cyborg.is_refused(
        f"detach-instance {server.uuid} {server.arqs[0]['uuid']}",
        "attached accelerator can be detached",
    )
    scene.screen.ok("The guest has both; what came with its flavor is not to be detached.")


def is_detached(scene: Scene) -> None:
    """And takes it back, without waiting at first."""
    cyborg, (server,) = scene.cyborg, scene.servers
    scene.screen.step("It is detached again, first without waiting, then watched to its end")
    begun = cyborg.does(f"detach-instance {server.uuid} --no-wait -f value -c uuid").out.strip()
    over = cyborg.asks(f"operation-show {begun} --wait -c state -c results")
    require(over["state"] == "succeeded", "it did not succeed")
    listed = arqs(scene, server)
    require([one["uuid"] for one in listed] == [one["uuid"] for one in server.arqs], "others left")
    _has(scene, server, listed)
    scene.screen.ok("The guest has what its flavor asks for, and nothing else.")


def boots(scene: Scene, profile: str) -> Server:
    """Nova's part: a server with a flavor of this profile; raises StepFailed."""
    stage = scene.stage
    try:
        server = stage.compute.boot(profile)
    except NovaFault as fault:
        raise StepFailed(f"Nova cannot boot: {fault}") from fault
    require(server.host == RACK, f"it boots on {server.host}")
    guest = stage.nova.own(server.uuid, "demo", server.host, profile)
    guest.has = [one["uuid"] for one in server.arqs]
    scene.guests[server.uuid] = guest
    scene.servers.append(server)
    return server


def goes(scene: Scene, server: Server) -> None:
    """Nova's part: the server is deleted; raises StepFailed."""
    try:
        scene.stage.compute.delete(server)
    except NovaFault as fault:
        raise StepFailed(f"Nova cannot delete: {fault}") from fault
    scene.stage.nova.disown(server.uuid)
    scene.servers.remove(server)


def arqs(scene: Scene, server: Server) -> list[dict[str, Any]]:
    """What the operator sees that a server has."""
    columns = "-c uuid -c state -c device_profile_name -c attach_handle_info"
    found: list[dict[str, Any]] = scene.cyborg.asks(f"arq-list --instance {server.uuid} {columns}")
    return found


def _has(scene: Scene, server: Server, listed: list[dict[str, Any]]) -> None:
    """The guest must have exactly what is listed, after a reboot."""
    guest = scene.guests[server.uuid]
    require(guest.status == "ACTIVE" and guest.reboots, "its server was not rebooted")
    require(set(guest.has) == {one["uuid"] for one in listed}, "its guest has something else")
    told = f"the server was rebooted hard; its guest has {len(guest.has)} accelerator(s)"
    scene.screen.fact("Nova", told)
