# SPDX-License-Identifier: Apache-2.0
"""Operations: the long work that is or was under way."""

import argparse
from collections.abc import Mapping
from typing import Any

from cyborg.cli import waiting
from cyborg.cli.base import List, Show, shown


class OperationList(List):
    """List operations, newest first; users who are not operators see those of their project."""

    route = "operation-list"
    columns = shown("uuid", "verb", "subject", "state", "created_at", "finished_at")
    more = shown("error", "results", "project_id", "user_id", "request_id")

    essential = ("subject", "verb", "state")
    empty = "There are no operations. Commands such as cyborg discover-services begin them."

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Filters."""
        parser.set_defaults(sort_key="created_at", sort_dir="desc")
        # A program's own --verbose would take --verb for itself.
        parser.add_argument(
            "--action", dest="verb", metavar="VERB", help="only of this verb, for example discover"
        )
        parser.add_argument(
            "--state", choices=("running", "succeeded", "failed"), help="only in this state"
        )


class OperationShow(Show):
    """Show one operation; fails if the operation did."""

    route = "operation-show"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one."""
        parser.add_argument("key", metavar="<operation>", help="its UUID")
        parser.add_argument("--wait", action="store_true", help="until it has ended")

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """The operation, with its failures told."""
        operation = super().fetch(parsed)
        if parsed.wait:
            operation = waiting.follow(self.client, operation, self.tell)
        for sentence in waiting.faults_of(operation):
            self.complain(sentence)
        return operation
