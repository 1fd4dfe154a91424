# SPDX-License-Identifier: Apache-2.0
"""List the PCI functions of this machine, offered or with a reason, and the fake device."""

import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.scan import Scan
from cyborg.model.device import Deployable, Hardware
from cyborg_tools.quickstart.screen import Screen

_HEAD = ("Address", "Kind", "Vendor", "Model", "Offered")
_GAP = "  "
_NUMBER = re.compile(r"[0-9a-f]{4}")


@dataclass(frozen=True)
class Findings:
    """The machine's PCI functions, the fakes, and the accelerator that the walk asks for.

    ``own`` tells whether that one is the machine's own. ``fault`` is why the PCI bus could not
    be read, None when it could. ``unmatched`` are the entries of the whitelist that name no
    function of the machine.
    """

    functions: tuple[Hardware, ...]
    fakes: tuple[Hardware, ...]
    deployable: Deployable
    own: bool
    fault: str | None = None
    unmatched: tuple[str, ...] = ()


def look(pci: Driver, fake: Driver, unmatched: Sequence[str] = ()) -> Findings:
    """Look once; the first function that is offered is the one to ask for, else the fake.

    ``unmatched`` are the entries of the whitelist that name no function of the machine.
    """
    functions: list[Hardware] = []
    own: list[Deployable] = []
    fault = None
    try:
        scan = Scan(pci.host)
        functions = pci.hardware(scan)
        own = [one for device in pci.discover(scan) for one in device.deployables]
    except exception.HostError as error:
        fault = str(error)
    chosen = own or [one for device in fake.discover(Scan(fake.host)) for one in device.deployables]
    return Findings(
        tuple(functions),
        tuple(fake.hardware(Scan(fake.host))),
        chosen[0],
        bool(own),
        fault,
        tuple(unmatched),
    )


def show(screen: Screen, findings: Findings) -> None:
    """Print the table, or its summary, and what the walk asks for."""
    if screen.brief:
        offered = sum(function.offered for function in findings.functions)
        screen.say(
            f"This machine has {len(findings.functions)} PCI function(s), {offered} of them "
            f"offered, and {len(findings.fakes)} fake accelerator."
        )
    else:
        screen.raw([*table(findings, screen.width), ""])
    for note in notes(findings):
        screen.say(note)
    kind = "the first function that is offered" if findings.own else "the fake accelerator"
    screen.say(f"The walk asks for {kind}, {findings.deployable.name}.")


def table(findings: Findings, width: int) -> Iterator[str]:
    """The lines of a table with everything found, none longer than ``width``."""
    functions = [(one, "yes" if one.offered else f"no: {one.reason}") for one in findings.functions]
    rows = [_HEAD, *((one.key, one.kind, one.vendor, one.model, text) for one, text in functions)]
    text = "yes; simulated, for tests"
    rows += [("fake", one.kind, one.vendor, one.model, text) for one in findings.fakes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        widths[widths.index(max(widths))] -= 1
    rule = tuple("-" * one for one in widths)
    for row in [rows[0], rule, *rows[1:]]:
        cells = [textwrap.wrap(cell, room) for cell, room in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            line = _GAP.join(f"{part:<{room}}" for part, room in zip(parts, widths, strict=True))
            yield line.rstrip()


def notes(findings: Findings) -> list[str]:
    """Return hints that the table does not show."""
    functions = findings.functions
    if findings.fault is not None:
        return [f"The PCI bus could not be read: {findings.fault}"]
    if not functions:
        return ["This machine shows no PCI bus; the fake accelerator needs none."]
    said = [f"--whitelist {text!r} matches no PCI function here." for text in findings.unmatched]
    if not any(one.offered for one in functions):
        said.append(
            "Nothing of this machine is offered unless --whitelist names it, and not even then "
            "what the machine itself is using."
        )
    if all(_NUMBER.fullmatch(one.model) for one in functions):
        said.append("Models are numbers: no list of PCI names (pci.ids) is installed here.")
    return said
