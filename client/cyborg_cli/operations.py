# SPDX-License-Identifier: Apache-2.0
"""Commands for operations, and for events: the history of devices, hosts, instances and ARQs."""

import argparse
from collections.abc import Mapping
from typing import Any, Final

from cyborg_cli.base import ListCommand, ShowCommand, column_paths, uuid_string
from cyborg_cli.client import failures, follow

#: The number of events without --limit: the history of a large cloud has millions of them.
_LAST_EVENTS: Final = 100


class OperationList(ListCommand):
    """List operations, newest first; users who are not operators see those of their project."""

    route = "operation-list"
    columns = column_paths("uuid", "verb", "subject", "state", "created_at", "finished_at")
    long_columns = column_paths("error", "results", "project_id", "user_id", "request_id")

    essential = ("subject", "verb", "state")
    empty_message = "There are no operations. Commands such as cyborg discover-services start them."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.set_defaults(sort_key="created_at", sort_dir="desc")
        # --verb would be an abbreviation of the program's own --verbose.
        parser.add_argument(
            "--action",
            dest="verb",
            metavar="VERB",
            help="Show only operations with this verb, for example discover.",
        )
        parser.add_argument(
            "--state",
            choices=("running", "succeeded", "failed"),
            help="Show only operations in this state.",
        )


class OperationShow(ShowCommand):
    """Show one operation; the command fails if the operation failed."""

    route = "operation-show"

    key_name, key_help = "operation", "UUID of the operation."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--wait", action="store_true", help="Wait until the operation ends.")

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Return the operation, and report its failures."""
        operation = super().fetch(parsed)
        if parsed.wait:
            operation = follow(self.client, operation, self.print_result)
        for message in failures(operation):
            self.report_error(message)
        return operation


def add_event_filters(parser: argparse.ArgumentParser) -> None:
    """Add the options that select events."""
    parser.add_argument(
        "--device", metavar="UUID", type=uuid_string, help="Show only events of this device."
    )
    parser.add_argument("--host", help="Show only events on this host.")
    parser.add_argument(
        "--instance",
        metavar="UUID",
        type=uuid_string,
        help="Show only events of this instance.",
    )
    parser.add_argument(
        "--arq",
        metavar="UUID",
        type=uuid_string,
        help="Show only events of this accelerator request.",
    )
    parser.add_argument(
        "--request",
        dest="request_id",
        metavar="REQUEST_ID",
        help="Show only events caused by this API request, for example req-6a1c...",
    )


class EventList(ListCommand):
    """List events, newest first; without --limit the last 100."""

    route = "event-list"
    marker = "ID"
    # The command watch does.
    can_watch = False
    columns = column_paths(
        "id",
        "at",
        "noun",
        "action",
        "subject_uuid",
        "device_uuid",
        "host",
        "instance_uuid",
        "request_id",
        "reason",
    )
    long_columns = column_paths(
        "state", "global_request_id", "operation_uuid", "project_id", "user_id"
    )
    essential = ("at", "noun", "action")
    empty_message = (
        "There are no events. Conductors delete events that are older than [conductor] "
        "history_retention."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.set_defaults(limit=_LAST_EVENTS)
        add_event_filters(parser)
        parser.add_argument(
            "--since",
            metavar="TIME",
            help="Show only events at or after this time, in ISO 8601 format, for example "
            "2026-11-22T13:05. A time without an offset is in UTC.",
        )
