# SPDX-License-Identifier: Apache-2.0
"""Commands for services: the processes of Cyborg, and the services on accelerator backends."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

from cyborg_cli import exception
from cyborg_cli.base import (
    ListCommand,
    MultipleTargets,
    OperationCommand,
    ShowCommand,
    add_force,
    column_paths,
    provided_values,
)
from cyborg_cli.client import Client

AGENT = "cyborg-agent"
_SERVICE_HELP = "UUID of the service, or its host if the host has only one service."


class ServiceList(ListCommand):
    """List services: Cyborg's own processes, and the services found on attached backends."""

    route = "service-list"
    columns = column_paths(
        *("uuid", "kind", "host", "binary", "driver", "backend", "name"),
        *("state", "status", "listening", "cause"),
    )
    essential = ("host", "binary", "state", "status")
    empty_message = (
        "There are no services: no cyborg-conductor and no cyborg-agent ever reported. Start them, "
        "and check transport_url and the database connection of cyborg-conductor."
    )
    long_columns = column_paths(
        *("remedy", "bus_error", "bus_error_since", "disabled_reason"),
        *("version", "endpoint", "last_seen_at", "last_discovered_at"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--kind", choices=("process", "backend"), help="Show only services of this kind."
        )
        parser.add_argument("--host", help="Show only services on this host.")
        parser.add_argument("--driver", help="Show only services of this driver's backends.")
        parser.add_argument("--backend", help="Show only services of this backend.")
        parser.add_argument(
            "--expect",
            metavar="FILE",
            type=Path,
            help="File with the names of expected hosts, one per line. The command fails if the "
            "agent of one of them never reported. Use it after a deployment.",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """List the services, and report expected hosts without an agent."""
        table = super().take_action(parsed_args)
        if not parsed_args.expect:
            return table
        try:
            lines = parsed_args.expect.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise exception.CommandFailed(
                reason=f"The file of expected hosts cannot be read: {error}"
            ) from error
        expected = [host for line in lines if (host := line.partition("#")[0].strip())]
        reported = {
            service["host"]
            for service in self.client.request("service-list", values={"kind": "process"})
            if service["binary"] == AGENT and service.get("last_seen_at")
        }
        missing = [host for host in dict.fromkeys(expected) if host not in reported]
        if missing:
            self.report_error(
                f"Never reported: {', '.join(missing)}. Check that cyborg-agent runs there, "
                "and transport_url and host in its configuration."
            )
        return table


class ServiceShow(ShowCommand):
    """Show one service."""

    route = "service-show"
    key_name, key_help = "service", _SERVICE_HELP

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        return self.unwrap(self.client.request(self.route, service_uuid(self.client, parsed.key)))


class ServiceEnable(MultipleTargets):
    """Enable the agents of hosts; Placement offers their accelerators again."""

    route = "service-enable"
    columns = column_paths("uuid", "host", "binary", "state", "status", reason="disabled_reason")
    essential = ("host", "status")
    new_status: ClassVar[str] = "enabled"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "keys",
            metavar="<host>",
            nargs="+",
            help="A host, or the UUID of its cyborg-agent in service-list.",
        )

    def update(self, key: str, parsed: argparse.Namespace) -> Mapping[str, Any]:
        uuid = service_uuid(self.client, key, binary=AGENT)
        values = provided_values(parsed) | {"status": self.new_status}
        return self.unwrap(self.client.request(self.route, uuid, values=values))


class ServiceDisable(ServiceEnable):
    """Disable the agents of hosts; instances keep the accelerators that they use."""

    route = "service-disable"
    new_status = "disabled"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--reason",
            dest="disabled_reason",
            help="Reason, a text for other operators; service-list --long shows it.",
        )


class ServiceDelete(OperationCommand):
    """Delete a service; with an agent, its host's devices leave database and Placement, too."""

    route = "service-delete"
    key_name, key_help = "service", _SERVICE_HELP

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add_force(parser)

    def path_keys(self, parsed: argparse.Namespace) -> tuple[str, ...]:
        return (service_uuid(self.client, parsed.key),)


class ServiceDiscover(OperationCommand):
    """Discover the accelerators and backends of hosts now."""

    route = "discover-services"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--host",
            dest="hosts",
            metavar="HOST",
            action="append",
            help="Host to discover (default: all hosts that are up). Repeat the option for more "
            "hosts.",
        )
        parser.add_argument("--driver", help="Discover with this driver only (default: all).")
        parser.add_argument(
            "--setup",
            action="store_const",
            const=True,
            help="Also set up the devices that the driver finds and that need set-up before use. "
            "It requires --driver.",
        )

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Return the operation; ``--setup`` needs a driver."""
        if parsed.setup and not parsed.driver:
            raise exception.CommandFailed(
                reason="--setup sets up the devices of one driver. Name the driver with --driver."
            )
        return super().fetch(parsed)


def service_uuid(client: Client, key: str, binary: str | None = None) -> str:
    """Return the UUID of a service that is given by UUID, or by host if it is the only one there.

    With ``binary`` only services of that program count.
    """
    try:
        return str(UUID(key))
    except ValueError:
        services = client.request("service-list", values={"kind": "process", "host": key})
    matches = [service for service in services if binary in (None, service["binary"])]
    if services and not matches:
        others = ", ".join(service["binary"] for service in services)
        raise exception.CommandFailed(
            reason=f"Host {key} has no {binary}, only {others}. Only {binary} can be enabled or "
            "disabled."
        )
    if len(matches) == 1:
        return str(matches[0]["uuid"])
    if not matches:
        raise exception.CommandFailed(
            reason=f"Host {key} has no services. Run cyborg service-list to see all services."
        )
    choices = ", ".join(f"{service['binary']} is {service['uuid']}" for service in matches)
    raise exception.CommandFailed(
        reason=f"Host {key} has several services. Give the UUID of one of them: {choices}."
    )
