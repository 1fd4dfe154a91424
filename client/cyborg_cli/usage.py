# SPDX-License-Identifier: Apache-2.0
"""Commands for usage: the units now, and for how long units were in use."""

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cyborg_cli.base import ListCommand, column_paths, uuid_string


class UsageShow(ListCommand):
    """Count the units of accelerators by resource class: used, free and out of service."""

    route = "usage-show"
    columns = column_paths(
        "resource_class",
        "type",
        "host",
        "project_id",
        "total",
        "used",
        "free",
        "out_of_service",
        "reasons",
    )
    essential = ("total", "used", "free", "out_of_service")
    empty_message = "There are no accelerators to count. Run cyborg discover-services."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_filters(parser)
        parser.add_argument(
            "--by",
            dest="group_by",
            metavar="COLUMNS",
            help="Additional columns to count by: type, host or project_id, separated by commas. "
            "Only operators can count by host.",
        )


class UsageList(ListCommand):
    """List for how many seconds units of accelerators were in use, by project and type."""

    route = "usage-list"
    columns = column_paths(
        "resource_class",
        "type",
        "host",
        "project_id",
        "profile",
        "instance",
        "unit_seconds",
    )
    essential = ("unit_seconds",)
    empty_message = "There are no accelerators that were in use. Give an earlier --start."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--start",
            metavar="TIME",
            help="Count from this time on, in ISO 8601 format, for example 2026-11-01 or "
            "2026-11-01T08:00:00.500Z. A time without an offset is in UTC. By default the first "
            "day of this month.",
        )
        parser.add_argument(
            "--until",
            dest="end",
            metavar="TIME",
            help="Count until just before this time (default: now).",
        )
        _add_filters(parser)
        parser.add_argument("--profile", help="Count only units for this device profile.")
        parser.add_argument(
            "--instance",
            metavar="UUID",
            type=uuid_string,
            help="Count only units of this instance.",
        )
        parser.add_argument(
            "--by",
            dest="group_by",
            metavar="COLUMNS",
            default="project,type",
            help="Columns to sum by, besides the resource class: project, type, profile, instance "
            "or host, separated by commas (default: project,type). Only operators can sum by host.",
        )

    def objects(self, parsed: argparse.Namespace) -> Sequence[Mapping[str, Any]]:
        """Request the sums; say of which range they are, and if some of it is missing."""
        values = vars(parsed) | {"start": parsed.start or _month()}
        others: dict[str, Any] = {}
        rows = self.client.read_list(self.route, values, others)
        start, complete = others.get("start"), others.get("complete_from")
        if start:
            self.print_note(f"Use of units from {start} until {others.get('end')}.")
        if start and complete and start < complete:
            self.print_note(
                f"Uses that ended before {complete} may be missing: their records were deleted "
                "([conductor] usage_retention), or it was before the upgrade to this service."
            )
        return rows


def _month() -> str:
    """Return the first day of this month, in UTC."""
    return datetime.now(UTC).date().replace(day=1).isoformat()


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--type", help="Count only this device type.")
    parser.add_argument("--host", help="Count only units on this host.")
    parser.add_argument(
        "--project",
        dest="project_id",
        metavar="PROJECT_ID",
        help="Count only units that this project uses.",
    )
    parser.add_argument("--resource-class", metavar="CLASS", help="Count only this resource class.")
