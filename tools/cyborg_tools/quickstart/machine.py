# SPDX-License-Identifier: Apache-2.0
"""Show the devices of the host, offered or with a reason, and choose one for the walk."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cyborg.agent.discover import Discovery, discover
from cyborg.cmd.discover import table
from cyborg.drivers.host import Host
from cyborg.drivers.loader import LoadResult
from cyborg.model.device import Deployable
from cyborg_tools.quickstart.screen import Screen

_NUMBER = re.compile(r"[0-9a-f]{4}")
#: How long a driver may take to look, in seconds.
_PATIENCE = 60.0
_FAKE = "fake_driver"


@dataclass(frozen=True)
class Findings:
    """What the drivers list, and the accelerator that the walk asks for.

    ``own`` tells whether that one is the host's own. ``unmatched`` are the entries of the whitelist
    that name no function of the host.
    """

    discovery: Discovery
    deployable: Deployable
    own: bool
    unmatched: tuple[str, ...] = ()


def look(drivers: Sequence[LoadResult], host: Host, unmatched: Sequence[str] = ()) -> Findings:
    """Look once; the first device that is offered is the one to ask for, else the fake.

    ``drivers`` are those of the agent, one of which is the fake driver. ``unmatched`` are the
    entries of the whitelist that name no function of the host.
    """
    discovery = discover(drivers, host, timeout=_PATIENCE)
    offered = [
        (driver.driver == _FAKE, deployable)
        for driver in discovery.report.drivers
        for device in driver.devices
        for deployable in device.deployables
    ]
    fake, deployable = min(offered, key=lambda offer: offer[0])
    return Findings(discovery, deployable, not fake, tuple(unmatched))


def show(screen: Screen, findings: Findings) -> None:
    """Print the table, or its summary, and what the walk asks for."""
    rows = findings.discovery.rows
    if screen.brief:
        functions = [row for row in rows if row.offered_by != _FAKE]
        offered = sum(row.offered_by is not None for row in functions)
        screen.say(
            f"This host has {len(functions)} PCI function(s), {offered} of them offered, and "
            f"{len(rows) - len(functions)} fake accelerator."
        )
    else:
        screen.raw([*table(rows, screen.width), ""])
    for note in notes(findings):
        screen.say(note)
    kind = "the first function that is offered" if findings.own else "the fake accelerator"
    screen.say(f"The walk asks for {kind}, {findings.deployable.name}.")


def notes(findings: Findings) -> list[str]:
    """Return hints that the table does not show."""
    functions = [row for row in findings.discovery.rows if row.offered_by != _FAKE]
    if findings.discovery.notes:
        return list(findings.discovery.notes)
    if not functions:
        return ["This host shows no PCI bus; the fake accelerator needs none."]
    hints = [f"--whitelist {text!r} matches no PCI function here." for text in findings.unmatched]
    if not findings.own:
        hints.append(
            "Nothing of this host is offered unless --whitelist names it, and not even then what "
            "the host itself is using."
        )
    if all(_NUMBER.fullmatch(row.model) for row in functions):
        hints.append("Models are numbers: no list of PCI names (pci.ids) is installed here.")
    return hints
