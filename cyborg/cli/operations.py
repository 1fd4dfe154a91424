# SPDX-License-Identifier: Apache-2.0
"""Commands for operations: running and ended."""

import argparse
from collections.abc import Mapping
from typing import Any

from cyborg.cli import waiting
from cyborg.cli.base import ListCommand, ShowCommand, column_paths


class OperationList(ListCommand):
    """List operations, newest first; users who are not operators see those of their project."""

    route = "operation-list"
    columns = column_paths("uuid", "verb", "subject", "state", "created_at", "finished_at")
    long_columns = column_paths("error", "results", "project_id", "user_id", "request_id")

    essential = ("subject", "verb", "state")
    empty_message = "There are no operations. Commands such as cyborg discover-services start them."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the filters."""
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

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the key of the operation, and ``--wait``."""
        parser.add_argument("key", metavar="<operation>", help="UUID of the operation.")
        parser.add_argument("--wait", action="store_true", help="Wait until the operation ends.")

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Return the operation, and report its failures."""
        operation = super().fetch(parsed)
        if parsed.wait:
            operation = waiting.follow(self.client, operation, self.print_result)
        for message in waiting.failures(operation):
            self.report_error(message)
        return operation
