# SPDX-License-Identifier: Apache-2.0
"""Directives that generate tables and texts from the code, so that no page repeats the code.

``arq-moves``, ``device-moves`` and ``handle-moves`` list the state transitions, ``driver-support``
the methods of each driver, ``driver-proofs`` what tests show of them, ``catalogue-names`` the
devices that the catalogue can offer, and ``cyborg-commands`` the help of every command.
"""

import csv
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from cyborg.drivers.base import Driver
from cyborg.drivers.catalogue import SHIPPED, Catalogue
from cyborg.model import arq, device
from cyborg.model.moves import Move
from cyborg_cli.shell import COMMANDS, Shell

#: The optional methods of a driver, with what the driver does in each.
VERBS = {
    "hardware": "lists all hardware, with the reason why a device is not offered",
    "backends": "lists backends and their services",
    "install": "sets up hardware",
    "prepare": "prepares a unit before a guest uses it",
    "release": "cleans a unit after a guest used it",
    "prepared": "lists prepared units, so that the agent prepares the others again after a reboot",
    "signals": "tells signals about the health of a device",
    "stats": "measures devices (utilisation, temperature, power)",
    "program": "loads images into a device",
}
#: Written by cyborg/tests/unit/documents/test_driver_proofs.py from the marks of tests.
PROOFS = Path(__file__).parents[1] / "reference" / "driver-proofs.csv"
#: What was used on the devices themselves; the same test checks that each line has its record.
METAL = Path(__file__).parents[1] / "reference" / "driver-metal.csv"
#: The features of drivers that tests show, and the kinds of proof, the best first.
FEATURES = ("discover", "partition", "bind", "health", "cleaning", "programming", "stats")
KINDS = {
    "kernel": "real kernel",
    "recorded": "recorded",
    "library": "library mock",
    "simulated": "simulated",
}


class Written(Directive):
    """A directive that generates reStructuredText and parses it in place."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the generated text."""
        section = nodes.section()
        section.document = self.state.document
        text = StringList(list(self.lines()), source=f"{type(self).__module__}")
        self.state.nested_parse(text, 0, section, match_titles=True)
        return section.children

    def lines(self) -> Iterable[str]:
        """Yield the lines of the generated text."""
        raise NotImplementedError


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """Yield a list-table with these header and body cells."""
    yield from (".. list-table::", "   :header-rows: 1", "")
    for row in [head, *rows]:
        for at, cell in enumerate(row):
            yield f"   {'*' if at == 0 else ' '} - {cell}"
    yield ""


def _moves(
    head: Sequence[str], states: Iterable[StrEnum], moves: Mapping[StrEnum, Move[StrEnum]]
) -> Iterable[str]:
    """Yield the table of some state transitions: event, states before, state after."""
    rows = [
        (event, ", ".join(state for state in states if state in move.sources), move.target)
        for event, move in moves.items()
    ]
    yield from table(head, rows)


class ArqMoves(Written):
    """The table of the state transitions of accelerator requests."""

    def lines(self) -> Iterable[str]:
        """Yield the table from ``cyborg.model.arq.MOVES``."""
        head = ("An accelerator request can …", "in the states", "New state")
        yield from _moves(head, arq.State, arq.MOVES)


class DeviceMoves(Written):
    """The table of the state transitions of devices."""

    def lines(self) -> Iterable[str]:
        """Yield the table from ``cyborg.model.device.MOVES``."""
        head = ("Event", "Status before", "Status after")
        yield from _moves(head, device.DeviceStatus, device.MOVES)


class HandleMoves(Written):
    """The table of the state transitions of attach handles."""

    def lines(self) -> Iterable[str]:
        """Yield the table from ``cyborg.model.device.HANDLE_MOVES``."""
        head = ("Event", "State before", "State after")
        yield from _moves(head, device.HandleState, device.HANDLE_MOVES)


def _drivers() -> list[EntryPoint]:
    """Return the drivers of this package, ordered by name."""
    entries = entry_points(group="cyborg.accelerator.driver")
    own = (entry for entry in entries if entry.value.startswith("cyborg."))
    return sorted(own, key=lambda entry: entry.name)


class DriverSupport(Written):
    """The table of the methods that each driver of this package implements."""

    def lines(self) -> Iterable[str]:
        """Yield the table; a driver has a method if its class overrides that of ``Driver``."""
        drivers: list[type[Driver]] = [entry.load() for entry in _drivers()]
        offers = ("yes" if driver.offers_devices else "\\-" for driver in drivers)
        rows = [("offers devices", *offers)]
        for verb, meaning in VERBS.items():
            has = [getattr(driver, verb) is not getattr(Driver, verb) for driver in drivers]
            rows.append(
                (
                    f"{meaning} (``{verb}``)",
                    *("yes" if implemented else "\\-" for implemented in has),
                )
            )
        yield from table(("", *(f"``{driver.name}``" for driver in drivers)), rows)


class DriverProofs(Written):
    """The table of what tests show of each driver."""

    def lines(self) -> Iterable[str]:
        """Yield the table."""
        kinds: dict[tuple[str, str], set[str]] = defaultdict(set)
        with PROOFS.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                kinds[row["driver"], row["feature"]].add(row["proof"])
        metal: dict[str, list[str]] = defaultdict(list)
        with METAL.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                metal[row["driver"]].append(f"{row['features']} ({row['device']})")
        rows = []
        for driver in _drivers():
            cells = (
                ", ".join(word for kind, word in KINDS.items() if kind in kinds[driver.name, name])
                for name in FEATURES
            )
            seen = "; ".join(metal[driver.name])
            rows.append((f"``{driver.name}``", *(cell or "\\-" for cell in (*cells, seen))))
        yield from table(("Driver", *FEATURES, "seen on metal"), rows)


class CatalogueNames(Written):
    """The table of the entries of the device catalogue that have a name."""

    def lines(self) -> Iterable[str]:
        """Yield the table from the files of this package."""
        rows = []
        for name, entry in sorted(Catalogue.load([SHIPPED]).named.items()):
            known = entry.description
            title = " ".join(text for text in (known.vendor, known.model) if text)
            traits = ", ".join(f"``{trait}``" for trait in known.traits)
            rows.append((f"``{name}``", title, entry.type, f"``{known.resource_class}``", traits))
        yield from table(("Name", "Device", "Type", "Resource class", "Traits"), rows)


class Commands(Written):
    """The help of every ``cyborg`` command."""

    def lines(self) -> Iterable[str]:
        """Yield a section for each command, from its parser."""
        os.environ["COLUMNS"] = "90"  # the same pages on every machine
        program = Shell([], pause=float, stdout=None, stderr=None)
        for name, entry in sorted(COMMANDS.items()):
            yield from (name, "=" * len(name), "", str(entry.command.__doc__), "")
            if entry.openstack_name:
                same = f"``openstack {entry.openstack_name}``"
                yield from (f"The same command in the ``openstack`` client: {same}.", "")
            parser = entry.command(program, None, cmd_name=name).get_parser(f"cyborg {name}")
            yield from (".. code-block:: text", "")
            yield from (f"   {line}" for line in parser.format_help().splitlines())
            yield ""


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives with Sphinx."""
    app.add_directive("arq-moves", ArqMoves)
    app.add_directive("device-moves", DeviceMoves)
    app.add_directive("handle-moves", HandleMoves)
    app.add_directive("driver-support", DriverSupport)
    app.add_directive("driver-proofs", DriverProofs)
    app.add_directive("catalogue-names", CatalogueNames)
    app.add_directive("cyborg-commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
