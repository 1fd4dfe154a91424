# SPDX-License-Identifier: Apache-2.0
"""The steps in order; each uses the result of the steps before."""

import signal
from collections.abc import Mapping
from typing import Any

from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.fixtures.compute import Server
from cyborg_tools.quickstart.clients import require
from cyborg_tools.quickstart.screen import Screen
from cyborg_tools.walkthrough.environment import (
    CARDS,
    CRYPTO,
    CRYPTO_CLASS,
    DRIVER,
    RACK,
    SOFT,
    SOFT_CLASS,
    SPARE,
    WalkedCloud,
)
from cyborg_tools.walkthrough.night import Night
from cyborg_tools.walkthrough.tenant import FAKE_CLASS, column

#: A host that does not exist.
_MISSING = "compute-3"
_LIST = f"driver-list --name {DRIVER} -c host -c state -c enabled -c found -c offered"
_OUTCOME = "-c state -c results -c error"
_WHERE = f"--host {RACK} --driver {DRIVER}"
#: Two guests may have a unit of each card.
_UNITS = 2 * len(CARDS)
_PROFILE = "crypto"
_MADE_UNITS = 3


class Walk(Night):
    """The operator of a new cloud; ``cards`` are the accelerators of the first backend by uuid."""

    def __init__(
        self, environment: WalkedCloud, variables: Mapping[str, str], screen: Screen
    ) -> None:
        super().__init__(environment, variables, screen)
        self.cards: list[str] = []

    def play(self) -> None:
        """Run every step; the first that fails raises StepFailed."""
        self._come_up()
        self._is_installed()
        self._is_seen()
        self._is_enabled()
        self._is_bound()
        self._is_attached()
        self._is_detached()
        self._is_created_and_deleted()
        self._is_changed()
        self._is_updated()
        self._is_kept_in_use()
        self._is_drained()
        self.night()
        self._is_forgotten()

    def _come_up(self) -> None:
        self.screen.step("Services come up: the API, a conductor, and the agents of two hosts")
        everybody = {(RACK, AGENT), (SPARE, AGENT), ("control", API), ("control", CONDUCTOR)}
        hosts = self.environment.place.directory / "hosts.txt"
        hosts.write_text(f"{RACK}\n{SPARE}\n")
        line = f"service-list --expect {hosts} --kind process -c host -c binary -c state"
        self.awaits(
            line,
            lambda rows: (
                {(one["host"], one["binary"]) for one in rows if one["state"] == "up"} == everybody
            ),
            "not all services are up",
        )
        hosts.write_text(f"{RACK}\n{SPARE}\n{_MISSING}  # was never installed\n")
        self.is_refused(line, f"Never reported: {_MISSING}.")
        self.screen.ok("All are up; a host that never reported is named, and the command fails.")

    def _is_installed(self) -> None:
        self.screen.step(f"{DRIVER} is installed on {RACK} while everything runs, and nowhere else")
        unloaded = {(RACK, "STOPPED"), (SPARE, "STOPPED")}
        self.awaits(
            _LIST,
            lambda rows: set(column(rows, "host", "state")) == unloaded,
            f"{DRIVER} is not known as a package of both hosts",
        )
        self.is_refused(
            f"install-driver no_such_driver --host {RACK} {_OUTCOME}",
            f"{RACK}: no_such_driver: no driver of this name is installed",
        )
        option = f"{DRIVER}.backends={CRYPTO},{SOFT}"
        done = self.asks(f"install-driver {DRIVER} --host {RACK} --option {option} {_OUTCOME}")
        require(column(done["results"], "host") == [RACK], "another host took part")
        loaded = self.asks(_LIST)
        states = {one["host"]: one["state"] for one in loaded}
        require(states == {RACK: "READY", SPARE: "STOPPED"}, "it is not loaded where it should be")
        backends = self.asks(
            f"backend-list --host {RACK} --driver {DRIVER} -c driver -c name -c state"
        )
        require(set(column(backends, "name")) == {CRYPTO, SOFT}, "other backends were expected")
        services = self.asks(
            f"service-list --kind backend --driver {DRIVER} -c host -c backend -c name -c state"
        )
        found = set(column(services, "backend", "name"))
        require(
            found == {(CRYPTO, "aes"), (CRYPTO, "rsa"), (SOFT, "zip")}, "other services are found"
        )
        self.screen.ok(f"{RACK} has both backends, with the services on each; {SPARE} has none.")

    def _is_seen(self) -> None:
        self.screen.step("What the driver found is inactive, and its hardware asks to be set up")
        found = self.asks(f"accelerator-list {_WHERE} -c uuid -c model -c status --long -c backend")
        require(set(column(found, "status")) == {"inactive"}, "not all of them are inactive")
        self.cards = [one["uuid"] for one in found if one["backend"] == CRYPTO]
        require(len(self.cards) == len(CARDS), f"{len(CARDS)} cards were expected")
        waiting = self.asks(
            "hardware-list --setup-required --long"
            " -c uuid -c device_type -c num -c setup_required -c reason"
        )
        require(set(column(waiting, "uuid")) == set(self.cards), "other hardware asks for it")
        kinds = set(column(waiting, "device_type", "setup_required"))
        require(kinds == {("CRYPTO", True)}, "their hardware is told otherwise")
        self.awaits_offered(RACK, CRYPTO_CLASS, 0)
        self.screen.ok("Placement knows the cards, and all of their units are reserved.")

    def _is_enabled(self) -> None:
        place = self.environment.place
        first, second = self.cards
        self.screen.step("They are made ready: their host sets them up, and then they are offered")
        if not place.trusted:
            self.screen.fact("by hand", "without root no install_command can be configured")
            for address in CARDS:
                place.mark(address).touch()
        else:
            require(not any(place.mark(one).exists() for one in CARDS), "one is set up already")
        (made,) = self.asks(f"accelerator-update {first} --status ready --wait -c uuid -c status")
        require(made["status"] == "enabled", "it is not enabled")
        self.does(f"accelerator-update {second} --status ready -f value -c status")
        self.awaits(
            f"accelerator-list {_WHERE} --status enabled -c uuid -c status",
            lambda rows: set(column(rows, "uuid")) == set(self.cards),
            "they do not become enabled",
        )
        require(all(place.mark(one).exists() for one in CARDS), "install_command did not run")
        require(self.asks("hardware-list --setup-required") == [], "hardware still asks for it")
        self.awaits_offered(RACK, CRYPTO_CLASS, _UNITS)
        self.screen.ok(f"Both are set up, and Placement gives out {_UNITS} units.")

    def _is_bound(self) -> None:
        self.screen.step(
            "A device profile is written; a server that asks for it boots (Nova's part)"
        )
        group = f"resources:{CRYPTO_CLASS}=1,trait:OWNER_CYBORG=required"
        self.asks(f"profile-create {_PROFILE} --group {group}")
        server = self.boots(_PROFILE, RACK)
        (bound,) = self.arqs(server)
        require(bound["state"] == "Bound", "it is not Bound")
        held = self.asks("accelerator-list --attached -c uuid -c hostname -c free -c total")
        require(column(held, "hostname") == [RACK], "one accelerator was expected in use")
        counts = self.asks(f"usage-show --host {RACK}")
        require(sum(one["used"] for one in counts) == 1, "one unit was expected to be used")
        self.screen.ok(f"Server {server.uuid} has one unit of accelerator {held[0]['uuid']}.")

    def _is_attached(self) -> None:
        (server,) = self.servers
        self.screen.step("One more is attached to the running server; Nova reboots it for that")
        done = self.asks(f"attach-instance {server.uuid} -c state -c results -c error")
        require(done["state"] == "succeeded", "it did not succeed")
        listed = self.arqs(server)
        require(column(listed, "state") == ["Bound", "Bound"], "two bound ones were expected")
        self._has(server, listed)
        (new,) = done["results"][0]["result"]["arqs"]
        require(new in set(column(listed, "uuid")), "it is not what the operation tells")
        self.is_refused(
            f"detach-instance {server.uuid} {server.arqs[0]['uuid']}",
            "attached accelerator can be detached",
        )
        self.screen.ok("The guest has both; the accelerator of its flavor cannot be detached.")

    def _is_detached(self) -> None:
        (server,) = self.servers
        self.screen.step("It is detached again, first without waiting, then watched to its end")
        begun = self.does(f"detach-instance {server.uuid} --no-wait -f value -c uuid").out.strip()
        over = self.asks(f"operation-show {begun} --wait -c state -c results")
        require(over["state"] == "succeeded", "it did not succeed")
        listed = self.arqs(server)
        require(column(listed, "uuid") == column(server.arqs, "uuid"), "others left")
        self._has(server, listed)
        self.screen.ok("The guest has what its flavor asks for, and nothing else.")

    def _is_created_and_deleted(self) -> None:
        self.screen.step("An accelerator is created on the second backend, labelled, and deleted")
        made = self.asks(
            f"accelerator-create --host {RACK} --driver {DRIVER} --backend {SOFT}"
            f" --model compressor --type FPGA --resource-class {SOFT_CLASS} --units {_MADE_UNITS}"
            " --trait CUSTOM_ZIP -c uuid -c hostname -c backend -c model -c status"
        )
        require(
            (made["hostname"], made["backend"]) == (RACK, SOFT), "it is on another host or backend"
        )
        self.is_refused(
            f"accelerator-create --host {RACK} --driver {DRIVER} --backend none --model compressor"
            f" --type FPGA --resource-class {SOFT_CLASS}",
            "Backend none could not be found",
        )
        uuid = made["uuid"]
        (shown,) = self.asks(
            f"accelerator-update {uuid} --status ready --wait --label rack=7 --label owner=blue"
            " -c status -c labels"
        )
        require(shown == {"status": "enabled", "labels": {"rack": "7", "owner": "blue"}}, "not so")
        self.awaits_offered(RACK, SOFT_CLASS, _MADE_UNITS)
        found = self.asks("accelerator-list --label rack=7 -c uuid -c model")
        require(column(found, "uuid") == [uuid], "it is not found by its label")
        self.does(f"accelerator-delete {uuid}")
        left = f"accelerator-list --host {RACK} --backend {SOFT} -c uuid -c model"
        self.awaits(left, lambda rows: uuid not in set(column(rows, "uuid")), "it is not gone")
        # The devices that the driver found on the backend are still inactive.
        self.awaits_offered(RACK, SOFT_CLASS, 0)
        self.screen.ok(f"Placement offered its {_MADE_UNITS} units and has removed its provider.")

    def _is_changed(self) -> None:
        (server,) = self.servers
        self.screen.step(
            "The profile is changed while it is in use: it asks for two units from now"
        )
        group = f"resources:{CRYPTO_CLASS}=2"
        shown = self.asks(f"profile-update {_PROFILE} --group {group} --description 'for pairs'")
        require(shown["groups"] == [{f"resources:{CRYPTO_CLASS}": "2"}], "its groups are not those")
        (kept,) = self.arqs(server)
        own = {name: server.arqs[0][name] for name in kept}
        require(kept == own, "the running server's request has changed")
        later = self.boots(_PROFILE, RACK)
        require(len(self.arqs(later)) == 2, "two accelerators were expected")
        self.goes(later)
        self.screen.ok(
            "The running server is unchanged; a later server got two units and was deleted."
        )

    def _is_updated(self) -> None:
        agent = self.environment.agents[RACK]
        self.screen.step(f"{DRIVER} is updated: its options, and then its code, under the same pid")
        option = f"{DRIVER}:{SOFT}.services"
        self.asks(f"update-driver {DRIVER} --option {option}=zip,zstd {_OUTCOME}")
        services = self.asks(f"service-list --backend {SOFT} -c name -c state")
        require(set(column(services, "name")) == {"zip", "zstd"}, "the option is not in force")
        self.is_refused(
            f"update-driver {DRIVER} --option {DRIVER}:{SOFT}.resource_class=nonsense {_OUTCOME}",
            "resource_class",
            "nonsense",
        )
        begins = agent.output.count("cyborg-agent is running")
        self.asks(f"update-driver {DRIVER} {_OUTCOME}")
        require(agent.running, f"the process {agent.pid} has ended")
        self.until(
            lambda: agent.output.count("cyborg-agent is running") == begins + 1,
            f"the process {agent.pid} has not restarted",
        )
        (server,) = self.servers
        held = self.arqs(server)
        require(column(held, "state") == ["Bound"], "the server has lost its accelerator")
        self.screen.ok(f"Process {agent.pid} has restarted, and the server kept its accelerator.")

    def _is_kept_in_use(self) -> None:
        (server,) = self.servers
        self.screen.step("While it is in use it is not uninstalled")
        self.is_refused(f"uninstall-driver {DRIVER}", server.arqs[0]["uuid"], "have it drained")
        self.awaits_offered(RACK, CRYPTO_CLASS, 2 * len(self.cards))
        self.screen.ok("The accelerator request that uses it is named, and nothing has changed.")

    def _is_drained(self) -> None:
        (server,) = self.servers
        self.screen.step("It is drained: nothing more is offered, and with the last server it goes")
        begun = self.does(f"uninstall-driver {DRIVER} --drain --no-wait -f value -c uuid")
        operation = begun.out.strip()
        self.awaits(
            f"operation-show {operation} -c state -c results",
            lambda shown: "it waits for 1 " in str(shown["results"][0]["error"]),
            "it does not wait for the server",
        )
        self.awaits_offered(RACK, CRYPTO_CLASS, 0)
        self.goes(server)
        over = self.asks(f"operation-show {operation} --wait {_OUTCOME}")
        require(over["state"] == "succeeded", "it did not succeed")
        require(self.asks(f"accelerator-list --host {RACK}") == [], "accelerators are left")
        rows = {one["host"]: one for one in self.asks(_LIST)}
        after = (rows[RACK]["state"], rows[RACK]["enabled"])
        require(after == ("STOPPED", False), "it is loaded still")
        self.awaits_offered(RACK, CRYPTO_CLASS, None)
        self.screen.ok("Its accelerators have left Placement and the lists; the package stays.")

    def _is_forgotten(self) -> None:
        agent = self.environment.agents[SPARE]
        self.screen.step(f"{SPARE} fails: it is removed with its accelerators")
        self.is_refused(f"service-delete {SPARE}", f"on {SPARE} is up", "Stop it first")
        agent.signal(signal.SIGKILL)
        self.screen.fact("killed", f"{AGENT} on {SPARE}, pid {agent.pid}")
        self.awaits(
            f"service-list --host {SPARE} --kind process -c host -c binary -c state",
            lambda rows: column(rows, "state") == ["down"],
            f"{SPARE} is not down",
        )
        self.is_refused(f"discover-services --host {SPARE}", SPARE, "--no-wait")
        self.does(f"service-delete {SPARE}")
        for line in (f"service-list --host {SPARE}", f"accelerator-list --host {SPARE}"):
            self.awaits(line, lambda rows: rows == [], f"{SPARE} is not gone")
        self.awaits_offered(SPARE, FAKE_CLASS, None)
        require(self.environment.agents[RACK].running, f"the agent on {RACK} has ended")
        self.screen.ok(f"The lists and Placement have nothing of {SPARE} any more.")

    def _has(self, server: Server, listed: list[dict[str, Any]]) -> None:
        """Require that the guest has exactly the listed ARQs after a reboot."""
        guest = self.guests[server.uuid]
        require(guest.status == "ACTIVE" and guest.reboots, "its server was not rebooted")
        require(set(guest.has) == set(column(listed, "uuid")), "its guest has something else")
        told = f"the server was rebooted hard; its guest has {len(guest.has)} accelerator(s)"
        self.screen.fact("Nova", told)
