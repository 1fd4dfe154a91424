# SPDX-License-Identifier: Apache-2.0
"""Steps that list inactive accelerators and enable them."""

from cyborg_tools.quickstart.clients import require
from cyborg_tools.walkthrough.environment import CARDS, CRYPTO, CRYPTO_CLASS, DRIVER, RACK
from cyborg_tools.walkthrough.scenario import Scenario

_WHERE = f"--host {RACK} --driver {DRIVER}"
#: Two guests may have a unit of each card.
_UNITS = 2 * len(CARDS)


def is_seen(scenario: Scenario) -> None:
    """List the discovered devices, which are inactive."""
    cyborg = scenario.cyborg
    scenario.screen.step("What the driver found is inactive, and its hardware asks to be set up")
    found = cyborg.asks(f"accelerator-list {_WHERE} -c uuid -c model -c status --long -c backend")
    require({one["status"] for one in found} == {"inactive"}, "not all of them are inactive")
    scenario.cards = [one["uuid"] for one in found if one["backend"] == CRYPTO]
    require(len(scenario.cards) == len(CARDS), f"{len(CARDS)} cards were expected")
    waiting = cyborg.asks(
        "hardware-list --setup-required --long"
        " -c uuid -c device_type -c num -c setup_required -c reason"
    )
    require({one["uuid"] for one in waiting} == set(scenario.cards), "other hardware asks for it")
    kinds = {(one["device_type"], one["setup_required"]) for one in waiting}
    require(kinds == {("CRYPTO", True)}, "their hardware is told otherwise")
    scenario.awaits_offered(RACK, CRYPTO_CLASS, 0)
    scenario.screen.ok("Placement knows the cards, and all of their units are reserved.")


def is_enabled(scenario: Scenario) -> None:
    """Enable the devices, one of them with --wait."""
    cyborg, place = scenario.cyborg, scenario.environment.place
    first, second = scenario.cards
    scenario.screen.step("They are made ready: their host sets them up, and then they are offered")
    if not place.trusted:
        scenario.screen.fact("by hand", "without root no install_command can be configured")
        for address in CARDS:
            place.mark(address).touch()
    else:
        require(not any(place.mark(one).exists() for one in CARDS), "one is set up already")
    made = cyborg.asks(f"accelerator-update {first} --status ready --wait -c uuid -c status")
    require(made["status"] == "enabled", "it is not enabled")
    cyborg.does(f"accelerator-update {second} --status ready -f value -c status")
    cyborg.awaits(
        f"accelerator-list {_WHERE} --status enabled -c uuid -c status",
        lambda rows: {one["uuid"] for one in rows} == set(scenario.cards),
        "they do not become enabled",
    )
    require(all(place.mark(one).exists() for one in CARDS), "install_command did not run")
    require(cyborg.asks("hardware-list --setup-required") == [], "hardware still asks for it")
    scenario.awaits_offered(RACK, CRYPTO_CLASS, _UNITS)
    scenario.screen.ok(f"Both are set up, and Placement gives out {_UNITS} units.")
