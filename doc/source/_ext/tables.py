# SPDX-License-Identifier: Apache-2.0
"""Directives that write tables and texts as the code has them, so that there is no second list.

``arq-moves`` and ``device-moves``: which state follows from what. ``driver-support``: what each
driver can do. ``cyborg-commands``: the help of every command.
"""

import os
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from cyborg.cli.catalogue import COMMANDS
from cyborg.cli.shell import Shell
from cyborg.drivers.base import Driver
from cyborg.model import arq, device_life
from cyborg.model.device import DeviceStatus

#: What a driver may do beyond finding devices, by the method that it has then.
VERBS = {
    "hardware": "lists what it does not offer, and why",
    "backends": "tells of backends and their services",
    "install": "sets hardware up",
    "prepare": "prepares a unit for its guest",
    "release": "cleans a unit after its guest",
    "prepared": "has units prepared again after a reboot",
    "health": "tells whether a device works",
    "stats": "measures devices",
    "program": "loads images",
}


class Written(Directive):
    """A directive that writes text, and has it parsed in place."""

    def run(self) -> list[nodes.Node]:
        """Parse what ``lines`` gives."""
        found = nodes.section()
        found.document = self.state.document
        text = StringList(list(self.lines()), source=f"{type(self).__module__}")
        self.state.nested_parse(text, 0, found, match_titles=True)
        return found.children

    def lines(self) -> Iterable[str]:
        """The text."""
        raise NotImplementedError


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """Yield a table of these cells."""
    yield from (".. list-table::", "   :header-rows: 1", "")
    for row in [head, *rows]:
        for at, cell in enumerate(row):
            yield f"   {'*' if at == 0 else ' '} - {cell}"
    yield ""


class ArqMoves(Written):
    """The one table of the states of accelerator requests."""

    def lines(self) -> Iterable[str]:
        """From ``cyborg.model.arq``."""
        rows = [
            (event, ", ".join(one for one in arq.State if one in move.sources), move.target)
            for event, move in arq.MOVES.items()
        ]
        yield from table(("An accelerator request may …", "from", "which makes it"), rows)


class DeviceMoves(Written):
    """The one table of a device's life."""

    def lines(self) -> Iterable[str]:
        """From ``cyborg.model.device_life``."""
        rows = [
            (event, ", ".join(one for one in DeviceStatus if one in move.sources), move.target)
            for event, move in device_life.MOVES.items()
        ]
        yield from table(("event", "of a device that is", "makes it"), rows)


class DriverSupport(Written):
    """Which driver of this package can do what."""

    def lines(self) -> Iterable[str]:
        """From the classes: what overrides the default that cannot."""
        found = sorted(
            entry_points(group="cyborg.accelerator.driver"), key=lambda entry: entry.name
        )
        drivers: list[type[Driver]] = [
            entry.load() for entry in found if entry.value.startswith("cyborg.")
        ]
        rows = [("offers devices", *("yes" for _ in drivers))]
        for verb, meaning in VERBS.items():
            has = [getattr(one, verb) is not getattr(Driver, verb) for one in drivers]
            rows.append((f"{meaning} (``{verb}``)", *("yes" if one else "\\-" for one in has)))
        # No literals: on the dark head of a table their colour cannot be read.
        yield from table(("", *(one.name for one in drivers)), rows)


class Commands(Written):
    """The help of every command of ``cyborg``."""

    def lines(self) -> Iterable[str]:
        """From the parsers of the commands."""
        os.environ["COLUMNS"] = "90"  # the same pages on every machine
        program = Shell([], pause=float, stdout=None, stderr=None)
        for name, entry in sorted(COMMANDS.items()):
            yield from (name, "=" * len(name), "", str(entry.command.__doc__), "")
            if entry.openstack_name:
                yield from (f"``openstack {entry.openstack_name}`` is the same.", "")
            parser = entry.command(program, None, cmd_name=name).get_parser(f"cyborg {name}")
            yield from (".. code-block:: text", "")
            yield from (f"   {line}" for line in parser.format_help().splitlines())
            yield ""


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx about the directives."""
    app.add_directive("arq-moves", ArqMoves)
    app.add_directive("device-moves", DeviceMoves)
    app.add_directive("driver-support", DriverSupport)
    app.add_directive("cyborg-commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
