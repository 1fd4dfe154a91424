# SPDX-License-Identifier: Apache-2.0
"""Steps about hosts: their services come up, one is missing, one dies and is forgotten."""

import signal

from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg_tools.quickstart.clients import require
from cyborg_tools.walkthrough.environment import MISSING, RACK, SPARE
from cyborg_tools.walkthrough.scenario import Scenario

_FAKE_CLASS = "FPGA"


def come_up(scenario: Scenario) -> None:
    """Every process has sent a heartbeat."""
    scenario.screen.step("Services come up: the API, a conductor, and the agents of two hosts")
    everybody = {(RACK, AGENT), (SPARE, AGENT), ("control", API), ("control", CONDUCTOR)}
    hosts = scenario.environment.place.directory / "hosts.txt"
    hosts.write_text(f"{RACK}\n{SPARE}\n")
    line = f"service-list --expect {hosts} --kind process -c host -c binary -c state"
    scenario.cyborg.awaits(
        line,
        lambda rows: (
            {(one["host"], one["binary"]) for one in rows if one["state"] == "up"} == everybody
        ),
        "not all services are up",
    )
    hosts.write_text(f"{RACK}\n{SPARE}\n{MISSING}  # was never installed\n")
    scenario.cyborg.is_refused(line, f"Never reported: {MISSING}.")
    scenario.screen.ok("All are up; a host that never reported is named, and the command fails.")


def is_forgotten(scenario: Scenario) -> None:
    """A host whose agent is dead goes with its devices."""
    cyborg, agent = scenario.cyborg, scenario.environment.agents[SPARE]
    scenario.screen.step(f"{SPARE} burns down: it is forgotten, and its accelerators with it")
    cyborg.is_refused(f"service-delete {SPARE}", f"on {SPARE} is up", "Stop it first")
    agent.signal(signal.SIGKILL)
    scenario.screen.fact("killed", f"{AGENT} on {SPARE}, pid {agent.pid}")
    cyborg.awaits(
        f"service-list --host {SPARE} --kind process -c host -c binary -c state",
        lambda rows: [one["state"] for one in rows] == ["down"],
        f"{SPARE} is not down",
    )
    cyborg.is_refused(f"discover-services --host {SPARE}", SPARE, "--no-wait")
    scenario.awaits_offered(SPARE, _FAKE_CLASS, 0)
    cyborg.does(f"service-delete {SPARE}")
    for line in (f"service-list --host {SPARE}", f"accelerator-list --host {SPARE}"):
        cyborg.awaits(line, lambda rows: rows == [], f"{SPARE} is not gone")
    scenario.awaits_offered(SPARE, _FAKE_CLASS, None)
    require(scenario.environment.agents[RACK].running, f"the agent on {RACK} has ended")
    scenario.screen.ok(f"Neither the lists nor Placement know anything of {SPARE} any more.")
