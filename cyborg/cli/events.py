# SPDX-License-Identifier: Apache-2.0
"""The command for events: the history of devices, hosts, instances and accelerator requests."""

import argparse

from cyborg.cli.base import ListCommand, column_paths, uuid_string


class EventList(ListCommand):
    """List events, newest first; without --limit the last 100."""

    route = "event-list"
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
        """Add the filters."""
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
        parser.add_argument(
            "--since",
            metavar="TIME",
            help="Show only events at or after this time, in ISO 8601 format, for example "
            "2026-11-22T13:05. A time without an offset is in UTC.",
        )
