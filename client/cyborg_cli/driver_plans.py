# SPDX-License-Identifier: Apache-2.0
"""What a change of a driver would do on each host, from what the service shows now.

A result has the form of that of an operation on one host. Its state is one of these words.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cyborg_cli import exception

SUCCEEDS: Final = "would succeed"
FAILS: Final = "would fail"
UNKNOWN: Final = "unknown"
_AGENT: Final = "cyborg-agent"
_DOWN: Final = "its agent is down"
#: The service does not show which of the two it is.
_NOT_LOADED: Final = "the driver is not loaded: if it is not disabled, it must be installed first"

Result = dict[str, Any]


@dataclass(frozen=True)
class DriverPlan:
    """The change of a driver: its name, its rows, and whether the agent of each host is up.

    ``defers`` says that hosts whose agent is down do their part later.
    """

    name: str
    rows: Mapping[str, Mapping[str, Any]]
    agents: Mapping[str, bool]
    defers: bool

    @classmethod
    def of(
        cls,
        name: str,
        rows: Sequence[Mapping[str, Any]],
        services: Sequence[Mapping[str, Any]],
        *,
        defers: bool,
    ) -> "DriverPlan":
        """Return the plan from the lists of drivers and processes."""
        agents = {
            service["host"]: service.get("state") == "up"
            for service in services
            if service.get("binary") == _AGENT
        }
        return cls(name, {row["host"]: row for row in rows}, agents, defers)

    def install(
        self, hosts: Sequence[str] | None, options: Mapping[str, Any] | None
    ) -> Iterator[Result]:
        """Yield the results of an installation on hosts; None: on all that are up.

        Raises CommandFailed if there is no such host.
        """
        chosen = hosts or sorted(host for host, is_up in self.agents.items() if is_up)
        unknown = sorted(set(chosen) - self.agents.keys())
        if unknown or not chosen:
            reason = f"No agent reports as {', '.join(unknown)}." if unknown else "No agent is up."
            raise exception.CommandFailed(reason=f"{reason} Run cyborg service-list to see all.")
        for host in dict.fromkeys(chosen):
            row = self.rows.get(host)
            if self._is_down(host):
                yield _result(host, FAILS, error=f"{_DOWN}; with --no-wait it follows later")
            elif row is None:
                reason = f"it has not reported a package with driver {self.name}"
                yield _result(host, UNKNOWN, error=reason)
            else:
                kept = row.get("options") or {}
                outcome = {
                    "driver": "is loaded again" if _is_loaded(row) else "is loaded",
                    "options": kept if options is None else options,
                }
                yield _result(host, SUCCEEDS, outcome)

    def uninstall(self, *, drain: bool) -> Iterator[Result]:
        """Yield the results of a removal; raises CommandFailed if no host has the driver."""
        for host, row in self._installed():
            devices = row.get("devices") or {}
            used = devices.get("in_use") or 0
            if not _is_loaded(row):
                yield _result(host, UNKNOWN, error=_NOT_LOADED)
            elif self._is_down(host):
                yield _result(host, FAILS, error=f"{_DOWN}; with --no-wait it follows later")
            elif used and not drain:
                reason = f"{used} of its devices are in use; with --drain it waits for them"
                yield _result(host, FAILS, error=reason)
            else:
                wait = {"waits for devices in use": used} if used else {}
                outcome = {"devices": devices.get("found") or 0, **wait}
                yield _result(host, SUCCEEDS, outcome)

    def update(
        self, options: Mapping[str, Any] | None, *, enabled: bool | None
    ) -> Iterator[Result]:
        """Yield the results of a change; None in the options removes one.

        Raises CommandFailed if no host has the driver.
        """
        for host, row in self._installed():
            used = (row.get("devices") or {}).get("in_use") or 0
            merged = {**(row.get("options") or {}), **(options or {})}
            after = {key: value for key, value in merged.items() if value is not None}
            if not _is_loaded(row):
                yield _result(host, UNKNOWN, error=_NOT_LOADED)
            elif self._is_down(host):
                yield _result(host, FAILS, error=f"{_DOWN}; with --no-wait it follows later")
            elif enabled is False and used:
                yield _result(host, FAILS, error=f"{used} of its devices are in use")
            elif options is None and enabled is None:
                yield _result(host, SUCCEEDS, {"driver": "is loaded again"})
            else:
                is_enabled = bool(row.get("enabled")) if enabled is None else enabled
                word = "is enabled" if is_enabled else "is disabled"
                yield _result(host, SUCCEEDS, {"driver": word, "options": after})

    def _is_down(self, host: str) -> bool:
        return not (self.defers or self.agents.get(host))

    def _installed(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the hosts that have loaded the driver, or if none has, all that have it."""
        if not self.rows:
            raise exception.CommandFailed(
                reason=f"No host has driver {self.name}. Run cyborg driver-list --all to see all."
            )
        loaded = {host: row for host, row in self.rows.items() if _is_loaded(row)}
        return sorted((loaded or self.rows).items())


def _is_loaded(row: Mapping[str, Any]) -> bool:
    return bool(row.get("enabled")) or row.get("state") != "STOPPED"


def _result(
    host: str, state: str, outcome: Mapping[str, Any] | None = None, *, error: str | None = None
) -> Result:
    return {"host": host, "state": state, "result": outcome, "error": error}
