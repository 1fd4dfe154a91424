# SPDX-License-Identifier: Apache-2.0
"""The step about device profiles: one is changed while a server lives from it."""

from cyborg_tools.quickstart.peer import require
from cyborg_tools.walkthrough import instances
from cyborg_tools.walkthrough.instances import PROFILE
from cyborg_tools.walkthrough.scene import Scene
from cyborg_tools.walkthrough.stage import CRYPTO_CLASS


def is_changed(scene: Scene) -> None:
    """Who has made requests from it keeps them; who comes later gets the new one."""
    cyborg, (server,) = scene.cyborg, scene.servers
    scene.screen.step("The profile is changed while it is in use: it asks for two units from now")
    group = f"resources:{CRYPTO_CLASS}=2"
    shown = cyborg.asks(f"profile-update {PROFILE} --group {group} --description 'for pairs'")
    require(shown["groups"] == [{f"resources:{CRYPTO_CLASS}": "2"}], "its groups are not those")
    (kept,) = instances.arqs(scene, server)
    own = {name: server.arqs[0][name] for name in kept}
    require(kept == own, "the running server's request has changed")
    later = instances.boots(scene, PROFILE)
    require(len(instances.arqs(scene, later)) == 2, "two accelerators were expected")
    instances.goes(scene, later)
    scene.screen.ok("The running server has what it had; a later one got two units, and is gone.")
