# SPDX-License-Identifier: Apache-2.0
"""Events: the history of devices, hosts, instances and requests."""

import argparse

from cyborg.cli.base import List, shown, uuid


class EventList(List):
    """List events, newest first; without --limit the last 100."""

    route = "event-list"
    columns = shown(
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
    more = shown("state", "global_request_id", "operation_uuid", "project_id", "user_id")
    essential = ("at", "noun", "action")
    empty = (
        "There are no events. Conductors delete events that are older than [conductor] "
        "history_retention."
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Filters."""
        parser.add_argument(
            "--device", metavar="UUID", type=uuid, help="only what concerns this device"
        )
        parser.add_argument("--host", help="only what happened on this host")
        parser.add_argument(
            "--instance", metavar="UUID", type=uuid, help="only what concerns this instance"
        )
        parser.add_argument(
            "--arq", metavar="UUID", type=uuid, help="only what happened to this request"
        )
        parser.add_argument(
            "--request",
            dest="request_id",
            metavar="REQUEST_ID",
            help="only what this API request caused, for example req-6a1c...",
        )
        parser.add_argument(
            "--since",
            metavar="TIME",
            help="only from this time on, in ISO 8601, UTC unless it names an offset; for example "
            "2026-11-22T13:05",
        )
