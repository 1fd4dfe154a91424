# SPDX-License-Identifier: Apache-2.0
"""Steps that install, update, drain and uninstall a driver."""

from cyborg_tools.quickstart.clients import require
from cyborg_tools.walkthrough import instances
from cyborg_tools.walkthrough.environment import CRYPTO, CRYPTO_CLASS, DRIVER, RACK, SOFT, SPARE
from cyborg_tools.walkthrough.scenario import Scenario

_LIST = f"driver-list --name {DRIVER} -c host -c state -c enabled -c found -c offered"
_OUTCOME = "-c state -c results -c error"


def is_installed(scenario: Scenario) -> None:
    """Install the driver on one of two hosts."""
    cyborg = scenario.cyborg
    scenario.screen.step(f"{DRIVER} is installed on {RACK} while everything runs, and nowhere else")
    unloaded = {(RACK, "STOPPED"), (SPARE, "STOPPED")}
    cyborg.awaits(
        _LIST,
        lambda rows: {(one["host"], one["state"]) for one in rows} == unloaded,
        f"{DRIVER} is not known as a package of both hosts",
    )
    cyborg.is_refused(
        f"install-driver no_such_driver --host {RACK} {_OUTCOME}",
        f"{RACK}: no_such_driver: no driver of this name is installed",
    )
    option = f"{DRIVER}.backends={CRYPTO},{SOFT}"
    done = cyborg.asks(f"install-driver {DRIVER} --host {RACK} --option {option} {_OUTCOME}")
    require([one["host"] for one in done["results"]] == [RACK], "another host took part")
    loaded = cyborg.asks(_LIST)
    states = {one["host"]: one["state"] for one in loaded}
    require(states == {RACK: "READY", SPARE: "STOPPED"}, "it is not loaded where it should be")
    backends = cyborg.asks(
        f"backend-list --host {RACK} --driver {DRIVER} -c driver -c name -c state"
    )
    require({one["name"] for one in backends} == {CRYPTO, SOFT}, "other backends were expected")
    services = cyborg.asks(
        f"service-list --kind backend --driver {DRIVER} -c host -c backend -c name -c state"
    )
    found = {(one["backend"], one["name"]) for one in services}
    require(found == {(CRYPTO, "aes"), (CRYPTO, "rsa"), (SOFT, "zip")}, "other services are found")
    scenario.screen.ok(f"{RACK} has both backends, with the services on each; {SPARE} has none.")


def is_updated(scenario: Scenario) -> None:
    """Change options, refuse invalid ones, and reload the code with the same process id."""
    cyborg, agent = scenario.cyborg, scenario.environment.agents[RACK]
    scenario.screen.step(f"{DRIVER} is updated: its options, and then its code, under the same pid")
    option = f"{DRIVER}:{SOFT}.services"
    cyborg.asks(f"update-driver {DRIVER} --option {option}=zip,zstd {_OUTCOME}")
    services = cyborg.asks(f"service-list --backend {SOFT} -c name -c state")
    require({one["name"] for one in services} == {"zip", "zstd"}, "the option is not in force")
    cyborg.is_refused(
        f"update-driver {DRIVER} --option {DRIVER}:{SOFT}.resource_class=nonsense {_OUTCOME}",
        "resource_class",
        "nonsense",
    )
    begins = agent.output.count("cyborg-agent is running")
    cyborg.asks(f"update-driver {DRIVER} {_OUTCOME}")
    require(agent.running, f"the process {agent.pid} has ended")
    scenario.until(
        lambda: agent.output.count("cyborg-agent is running") == begins + 1,
        f"the process {agent.pid} has not restarted",
    )
    (server,) = scenario.servers
    held = instances.arqs(scenario, server)
    require([one["state"] for one in held] == ["Bound"], "the server has lost its accelerator")
    scenario.screen.ok(f"Process {agent.pid} has restarted, and the server kept its accelerator.")


def is_refused(scenario: Scenario) -> None:
    """Refuse to uninstall the driver while it is in use."""
    cyborg, (server,) = scenario.cyborg, scenario.servers
    scenario.screen.step("While it is in use it is not uninstalled")
    cyborg.is_refused(f"uninstall-driver {DRIVER}", server.arqs[0]["uuid"], "have it drained")
    scenario.awaits_offered(RACK, CRYPTO_CLASS, 2 * len(scenario.cards))
    scenario.screen.ok("The accelerator request that uses it is named, and nothing has changed.")


def is_drained(scenario: Scenario) -> None:
    """Drain the driver; it is uninstalled when the last server is deleted."""
    cyborg, (server,) = scenario.cyborg, scenario.servers
    scenario.screen.step("It is drained: nothing more is offered, and with the last server it goes")
    begun = cyborg.does(f"uninstall-driver {DRIVER} --drain --no-wait -f value -c uuid")
    operation = begun.out.strip()
    cyborg.awaits(
        f"operation-show {operation} -c state -c results",
        lambda shown: "it waits for 1 " in str(shown["results"][0]["error"]),
        "it does not wait for the server",
    )
    scenario.awaits_offered(RACK, CRYPTO_CLASS, 0)
    instances.goes(scenario, server)
    over = cyborg.asks(f"operation-show {operation} --wait {_OUTCOME}")
    require(over["state"] == "succeeded", "it did not succeed")
    require(cyborg.asks(f"accelerator-list --host {RACK}") == [], "accelerators are left")
    rows = {one["host"]: one for one in cyborg.asks(_LIST)}
    after = (rows[RACK]["state"], rows[RACK]["enabled"])
    require(after == ("STOPPED", False), "it is loaded still")
    scenario.awaits_offered(RACK, CRYPTO_CLASS, None)
    scenario.screen.ok("Its accelerators have left Placement and the lists; the package stays.")
