# SPDX-License-Identifier: Apache-2.0
"""The step that changes a device profile while a server uses it."""

from cyborg_tools.quickstart.clients import require
from cyborg_tools.walkthrough import instances
from cyborg_tools.walkthrough.environment import CRYPTO_CLASS
from cyborg_tools.walkthrough.instances import PROFILE
from cyborg_tools.walkthrough.scenario import Scenario


def is_changed(scenario: Scenario) -> None:
    """Change the profile: existing ARQs stay as they are, later ones use the new groups."""
    cyborg, (server,) = scenario.cyborg, scenario.servers
    scenario.screen.step(
        "The profile is changed while it is in use: it asks for two units from now"
    )
    group = f"resources:{CRYPTO_CLASS}=2"
    shown = cyborg.asks(f"profile-update {PROFILE} --group {group} --description 'for pairs'")
    require(shown["groups"] == [{f"resources:{CRYPTO_CLASS}": "2"}], "its groups are not those")
    (kept,) = instances.arqs(scenario, server)
    own = {name: server.arqs[0][name] for name in kept}
    require(kept == own, "the running server's request has changed")
    later = instances.boots(scenario, PROFILE)
    require(len(instances.arqs(scenario, later)) == 2, "two accelerators were expected")
    instances.goes(scenario, later)
    scenario.screen.ok(
        "The running server is unchanged; a later server got two units and was deleted."
    )
