# SPDX-License-Identifier: Apache-2.0
"""Commands that go on: the events as they happen, and what the accelerators do now."""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from cyborg_cli import exception, terminal
from cyborg_cli.base import BaseCommand, TableCommand, column_paths, positive_integer
from cyborg_cli.client import Resource
from cyborg_cli.devices import instance_names
from cyborg_cli.operations import add_event_filters
from cyborg_cli.text import escaped_line

#: The fields of an event that a line shows with their names.
_NAMED: Final = ("device", "host", "instance", "request")
_GIB: Final = 1 << 30
#: Seconds between two refreshes, without the option.
_INTERVAL: Final = 5
#: The lines of a screen that a table needs besides its rows, and those of notes.
_FRAME: Final = 6


def _share(value: Any, whole: Any) -> float | None:
    """Return a part of a whole in percent; None if it is not known."""
    return None if value is None or not whole else round(100 * value / whole, 1)


def _rounded(value: Any, unit: float = 1) -> float | None:
    return None if value is None else round(value / unit, 1)


#: The columns with numbers, and how they follow from the figures of an accelerator.
_FIGURES: Final[Mapping[str, Callable[[Mapping[str, Any]], float | None]]] = {
    "util_%": lambda figures: _share(figures.get("utilization_ratio"), 1),
    "memory_GiB": lambda figures: _rounded(figures.get("memory_used_bytes"), _GIB),
    "memory_%": lambda figures: _share(
        figures.get("memory_used_bytes"), figures.get("memory_total_bytes")
    ),
    "temp_C": lambda figures: _rounded(figures.get("temperature_celsius")),
    "power_W": lambda figures: _rounded(figures.get("power_watts")),
}
_SORTED_BY: Final = "util_%"


class Watch(BaseCommand):
    """Print events as they happen, one line each, until the command is interrupted."""

    route = "watch"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_event_filters(parser)
        parser.add_argument(
            "--since",
            metavar="TIME",
            help="Print first the events at or after this time, in ISO 8601 format, for example "
            "2026-11-22T13:05. A time without an offset is in UTC. Without the option, the command "
            "begins with the events that happen from now on.",
        )
        parser.add_argument(
            "--count",
            metavar="N",
            type=positive_integer,
            help="End after N events.",
        )
        parser.add_argument(
            "-f",
            "--format",
            choices=("line", "json"),
            default="line",
            help="Format of an event: a line of text, or a JSON object in a line (default: line).",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Print events; the command ends if nothing reads its output any more."""
        try:
            self._print_events(parsed_args)
        except BrokenPipeError:
            # Python would fail again when it closes the output.
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self.app.stdout.fileno())

    def _print_events(self, parsed_args: argparse.Namespace) -> None:
        left: int | None = parsed_args.count
        for events in self.client.follow_events(vars(parsed_args), self.print_note):
            for event in events[:left]:
                self.app.stdout.write(f"{self._line(event, parsed_args.format)}\n")
            self.app.stdout.flush()
            if left is not None:
                left -= len(events[:left])
                if not left:
                    return

    def _line(self, event: Resource, form: str) -> str:
        if form == "json":
            return json.dumps(event)
        action = str(event["action"])
        if event.get("state") and event["state"] != action:
            action = f"{action} ({event['state']})"
        line = [str(event["at"]), str(event["noun"]), str(event.get("subject_uuid") or "-"), action]
        for name in _NAMED:
            value = event.get(name) or event.get(f"{name}_uuid") or event.get(f"{name}_id")
            if value and value != event.get("subject_uuid"):
                line.append(f"{name}={value}")
        if event.get("reason"):
            line.append(f": {event['reason']}")
        return escaped_line(" ".join(line).replace(" : ", ": "))


class Top(TableCommand):
    """Show what accelerators do now and who has them, on a terminal again and again."""

    route = "top"
    columns = column_paths(
        *("hostname", "address", "model", *_FIGURES, "health", "holder", "measured_at", "uuid")
    )
    essential = ("hostname", "util_%", "temp_C", "power_W")

    @property
    def need_sort_by_cliff(self) -> bool:
        """Return False: here the rows without a value are the last in both directions."""
        return False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--host", dest="hostname", metavar="HOST", help="Show only accelerators on this host."
        )
        parser.add_argument("--type", help="Show only this device type, for example GPU.")
        parser.add_argument(
            "--rows",
            metavar="N",
            type=positive_integer,
            help="Show the first N accelerators only (default: as many as fit on the terminal).",
        )
        parser.add_argument(
            "--interval",
            metavar="SECONDS",
            type=positive_integer,
            default=_INTERVAL,
            help=f"Seconds between two refreshes on a terminal (default: {_INTERVAL}). Agents "
            "measure every [agent] usage_interval seconds.",
        )
        parser.add_argument(
            "--once", action="store_true", help="Print one table and end, also on a terminal."
        )

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Print the table, on a terminal again and again."""
        if parsed_args.once or not self.app.stdout.isatty():
            return super().run(parsed_args)
        return self.redraw(parsed_args, self._ticks(parsed_args.interval))

    def _ticks(self, interval: int) -> Iterator[object]:
        while True:
            yield None
            self.client.pause(interval)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Request the accelerators; return the columns, and the rows in the order to show."""
        devices = self.client.read_list(self.route, vars(parsed_args))
        rows = [_measured(device) for device in devices]
        if not rows:
            self.print_note("There are no accelerators that match.")
        elif not any(row["measured_at"] for row in rows):
            self.print_note(
                "No accelerator has readings of the last hour: agents send them if [agent] "
                "usage_interval is not 0 and the driver can measure, and operators see them."
            )
        names = {name.lower(): name for name in self.columns}
        for column in reversed(parsed_args.sort_columns or [_SORTED_BY]):
            if column.lower() not in names:
                raise exception.CommandFailed(
                    reason=f"There is no column {column}. The columns are "
                    f"{', '.join(self.columns)}."
                )
            rows = _sorted(rows, names[column.lower()], parsed_args.sort_direction)
        shown = parsed_args.rows
        if shown is None and self.redraws:
            shown = max(1, terminal.height_of(self.app.stdout, len(rows)) - _FRAME)
        if shown is not None and len(rows) > shown:
            self.print_note(f"{len(rows) - shown} more accelerators are not shown.")
        return self.table(parsed_args, self.columns, rows[:shown])


def _measured(device: Resource) -> Mapping[str, Any]:
    """Return the columns of an accelerator."""
    reading = device.get("reading") or {}
    figures = reading.get("figures") or {}
    holders = instance_names(device.get("holders"), "instance_name", "instance_uuid")
    return {
        **device,
        **{name: figure(figures) for name, figure in _FIGURES.items()},
        "holder": holders or None,
        "measured_at": reading.get("at"),
    }


def _sorted(
    rows: Sequence[Mapping[str, Any]], name: str, direction: str | None
) -> list[Mapping[str, Any]]:
    """Return the rows in the order of a column: numbers fall unless told otherwise, texts rise."""
    present = [row for row in rows if row.get(name) is not None]
    absent = [row for row in rows if row.get(name) is None]
    falls = direction == "desc" or (direction is None and name in _FIGURES)
    key = (lambda row: row[name]) if name in _FIGURES else (lambda row: str(row[name]))
    return sorted(present, key=key, reverse=falls) + absent
