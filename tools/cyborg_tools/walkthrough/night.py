# SPDX-License-Identifier: Apache-2.0
"""An operator's night: a server does not boot, and why; who had a card; a host is emptied."""

from cyborg.tests.fixtures.accelerators import NovaFault
from cyborg_tools.quickstart.clients import StepFailed, require
from cyborg_tools.walkthrough.environment import SPARE
from cyborg_tools.walkthrough.tenant import FAKE_CLASS, Tenant, column

_PROFILE = "night"
_CARDS = f"accelerator-list --host {SPARE} -c uuid -c status"


class Night(Tenant):
    """An operator who is on call; only the host SPARE has accelerators then."""

    def night(self) -> None:
        """Run the steps of the night; raises StepFailed."""
        self._is_explained()
        self._is_mended()
        self._is_told_later()
        self._is_emptied()
        self._is_back()

    def _is_explained(self) -> None:
        self.screen.step("Night: a server does not boot, and Nova says no more than that")
        self.asks(f"profile-create {_PROFILE} --group resources:{FAKE_CLASS}=1")
        try:
            self.environment.compute.boot(_PROFILE)
        except NovaFault as fault:
            self.screen.fact("Nova", str(fault))
        else:
            raise StepFailed("a server boots without accelerators")
        self._does_not_fit("wait for cyborg accelerator-update --status ready")
        (answer,) = self.asks(f"capacity --profile {_PROFILE} -c further -c total -c reserved")
        reserved = {"inactive": answer["total"]}
        require((answer["further"], answer["reserved"]) == (0, reserved), "another cause is named")
        self.screen.ok("profile-explain names the cause, and what to do: its card is inactive.")

    def _is_mended(self) -> None:
        self.screen.step("Night: it is mended as the explanation suggests, and the server boots")
        for uuid in column(self.asks(_CARDS), "uuid"):
            self.does(f"accelerator-update {uuid} --status ready --wait -f value -c status")
        self._fits()
        self.boots(_PROFILE, SPARE)
        (answer,) = self.asks(
            f"capacity --profile {_PROFILE} -c further -c used -c total -c unattached"
        )
        require(answer["used"] == 1, "one unit was expected in use")
        require(answer["further"] == answer["total"] - 1, "the others were expected to fit")
        self.screen.ok(f"It runs, and {answer['further']} more would fit.")

    def _is_told_later(self) -> None:
        self.screen.step("Night: the server is gone; who had the card?")
        (server,) = self.servers
        (held,) = self.asks("accelerator-list --attached -c uuid -c hostname")
        self.goes(server)
        rows = self.asks(f"event-list --device {held['uuid']} -c action -c instance_uuid -c at")
        require(server.uuid in column(rows, "instance_uuid"), "the server is not named")
        self.screen.ok(f"Events of accelerator {held['uuid']} name server {server.uuid}.")

    def _is_emptied(self) -> None:
        self.screen.step(f"Night: {SPARE} shall be repaired; it is drained")
        server = self.boots(_PROFILE, SPARE)
        (row,) = self.asks(f"host-drain {SPARE} --dry-run")
        require(row["server"] == server.uuid and not row["movable"], "it cannot move")
        self.asks(f"host-drain {SPARE} --reason repair")
        self.awaits_offered(SPARE, FAKE_CLASS, 0)
        self._does_not_fit("host-resume")
        self.goes(server)
        require(self.asks(f"host-drain {SPARE} --wait") == [], "servers are left")
        self.screen.ok("Its server ran until its owner deleted it; nothing uses the host now.")

    def _is_back(self) -> None:
        self.screen.step(f"Night: {SPARE} is repaired, and comes back")
        self.does(f"host-resume {SPARE}")
        self._fits()
        self.goes(self.boots(_PROFILE, SPARE))
        self.does(f"profile-delete {_PROFILE}")
        self.screen.ok("Servers boot on it again.")

    def _does_not_fit(self, cause: str) -> None:
        told = " ".join(self.does(f"profile-explain {_PROFILE}").err.split())
        require(told.startswith("Does not fit: ") and cause in told, f"{cause!r} is not told")

    def _fits(self) -> None:
        line = f"profile-explain {_PROFILE}"
        self.awaits(line, lambda _: self.last.err.startswith("Fits: "), "it does not fit")
