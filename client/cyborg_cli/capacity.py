# SPDX-License-Identifier: Apache-2.0
"""The command for the capacity of the cloud: how many further servers of each profile fit."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cyborg_cli.base import ListCommand, column_paths


class CapacityShow(ListCommand):
    """Count how many further servers of each device profile fit now, and what limits them."""

    route = "capacity"
    marker = "ID"
    columns = column_paths(
        "profile",
        "part",
        "satisfiable",
        "further",
        "limits",
        "total",
        "used",
        "free",
        "unattached",
        "reserved",
        largest_group="largest.units",
        headroom="headroom.further",
    )
    long_columns = column_paths(
        "id",
        "host",
        "type",
        "numa_node",
        "zone",
        largest_host="largest.host",
        largest_provider="largest.provider_units",
        fullest_host="headroom.host",
    )
    essential = ("part", "further", "limits", "free")
    empty_message = "There are no device profiles to count for, or no hosts that can serve them."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--profile",
            action="append",
            metavar="<profile>",
            help="Name or UUID of a profile. Repeat the option for more profiles (default: all).",
        )
        parser.add_argument("--host", metavar="<host>", help="Count only units on this host.")
        parser.add_argument(
            "--by",
            choices=("host", "type", "numa", "az"),
            help="Print a row for each host, device type, NUMA node of a host or availability "
            "zone. All accelerators of a server come from the part of its row. Nova is asked for "
            "the zones.",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Request the list; return the columns and the rows."""
        if parsed_args.profile is not None:
            parsed_args.profile = ",".join(parsed_args.profile)
        return super().take_action(parsed_args)

    def shown(
        self, objects: Sequence[Mapping[str, Any]], _parsed: argparse.Namespace
    ) -> Sequence[Mapping[str, Any]]:
        """Return the rows with their parts in one column; each note becomes a line once."""
        for note in dict.fromkeys(note for row in objects for note in row.get("notes", ())):
            self.print_note(f"Note: {note}")
        return [{**row, "part": _part(row)} for row in objects]


def _part(row: Mapping[str, Any]) -> str:
    """Return the part of the cloud that a row is about; empty for all of it."""
    names = [str(row[name]) for name in ("host", "type", "zone") if row.get(name) is not None]
    if row.get("numa_node") is not None:
        names.append(f"NUMA {row['numa_node']}")
    return " ".join(names)
