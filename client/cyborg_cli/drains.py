# SPDX-License-Identifier: Apache-2.0
"""Commands that empty a host or an accelerator of servers, and that end this."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from cyborg_cli import exception
from cyborg_cli.base import MultipleTargets, TableCommand, add_dry_run, column_paths
from cyborg_cli.client import poll
from cyborg_cli.services import AGENT, ServiceEnable, service_uuid

_DRAINING: Final = "draining"
_DRAINED: Final = "drained"
#: How many servers a line about the progress names.
_NAMED: Final = 5

Drain = Mapping[str, Any]


class _DrainCommand(TableCommand):
    """A command that begins a drain, and prints the servers that it waits for.

    ``change`` is the route of the change, ``reason_field`` its field for the reason, and
    ``resume`` the command that ends the drain.
    """

    columns = column_paths(
        "name",
        "status",
        "project_id",
        "movable",
        "target",
        "reason",
        server="uuid",
        accelerators="devices",
    )
    essential = ("server", "movable", "target")
    change: ClassVar[str]
    reason_field: ClassVar[str]
    resume: ClassVar[str]

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options that all drains have."""
        parser.add_argument("--reason", help="Reason, a text for other operators.")
        parser.add_argument(
            "--wait",
            action="store_true",
            help="Wait until no server has a unit any more, and show the progress. An interrupted "
            "command leaves the drain as it is.",
        )
        add_dry_run(parser)

    def uuid_of(self, key: str) -> str:
        """Return the UUID of what the user has named."""
        return key

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Begin the drain, or with ``--dry-run`` show what it would wait for."""
        key, uuid = parsed_args.key, self.uuid_of(parsed_args.key)
        fetch = partial(self.client.request, self.route, uuid)
        if not parsed_args.dry_run:
            values = {"status": _DRAINING}
            if parsed_args.reason is not None:
                values[self.reason_field] = parsed_args.reason
            self.client.request(self.change, uuid, values=values)
        drain: Drain = fetch()
        if parsed_args.wait and not parsed_args.dry_run:
            drain = self._wait(key, drain, fetch)
        elif not parsed_args.dry_run:
            self.print_note(f"{key} is {drain['status']}: {_left(drain)}.")
        for note in drain["notes"] if drain["servers"] else ():
            self.print_note(f"Note: {note}")
        if parsed_args.dry_run:
            stuck = [server for server in drain["servers"] if server["movable"] is False]
            if stuck:
                self.print_note(
                    f"{key}: {len(stuck)} of {len(drain['servers'])} servers cannot move now: "
                    f"{_names(stuck)}."
                )
            self.print_dry_run()
        return self.table(parsed_args, self.columns, drain["servers"])

    def _wait(self, key: str, drain: Drain, fetch: Any) -> Drain:
        """Return the drain after its end; print what is left whenever that has changed."""
        unread, shown = [drain], [""]

        def read() -> Drain:
            current: Drain = unread.pop() if unread else fetch()
            line = f"{key} is {current['status']}: {_left(current)}."
            if line != shown[0]:
                shown[0] = line
                self.print_note(line)
            return current

        try:
            drain = poll(read, lambda current: current["status"] != _DRAINING, self.client.pause)
        except (KeyboardInterrupt, exception.CommandFailed):
            self.print_note(f"The drain continues: cyborg {self.resume} {key} ends it.")
            raise
        if drain["status"] != _DRAINED:
            self.report_error(f"The drain was called off: {key} is {drain['status']}.")
        return drain


class HostDrain(_DrainCommand):
    """Empty a host of servers with accelerators: bind nothing new, and list what has to move."""

    route, change, reason_field = "host-drain", "service-disable", "disabled_reason"
    resume = "host-resume"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "key", metavar="<host>", help="A host, or the UUID of its cyborg-agent in service-list."
        )
        self.add_options(parser)

    def uuid_of(self, key: str) -> str:
        return service_uuid(self.client, key, binary=AGENT)


class AcceleratorDrain(_DrainCommand):
    """Empty an accelerator of servers: bind nothing new, and list what has to move."""

    route, change, reason_field = "accelerator-drain", "accelerator-update", "status_reason"
    resume = "accelerator-resume"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("key", metavar="<accelerator>", help="UUID of the accelerator.")
        self.add_options(parser)


class HostResume(ServiceEnable):
    """End the drain of hosts; Placement offers their accelerators again."""

    route = "host-resume"


class AcceleratorResume(MultipleTargets):
    """End the drain of accelerators; they are set up if they need it, then offered again."""

    route = "accelerator-resume"
    columns = column_paths("uuid", "hostname", "address", "model", "status", reason="status_reason")
    essential = ("address", "status")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "keys", metavar="<accelerator>", nargs="+", help="UUID of an accelerator."
        )

    def update(self, key: str, _parsed: argparse.Namespace) -> Mapping[str, Any]:
        return self.unwrap(self.client.request(self.route, key, values={"status": "ready"}))


def _left(drain: Drain) -> str:
    """Return which servers are left, as a clause."""
    servers = drain["servers"]
    if not servers:
        return "no server has a unit of it"
    noun = "server is" if len(servers) == 1 else "servers are"
    return f"{len(servers)} {noun} left ({_names(servers)})"


def _names(servers: Sequence[Mapping[str, Any]]) -> str:
    """Return the names of servers, or the UUID of one whose name Nova has not told."""
    names = [str(server["name"] or server["uuid"]) for server in servers[:_NAMED]]
    more = [f"{len(servers) - _NAMED} more"] if len(servers) > _NAMED else []
    return ", ".join([*names, *more])
