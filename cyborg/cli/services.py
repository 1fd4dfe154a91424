# SPDX-License-Identifier: Apache-2.0
"""Services: the processes of Cyborg, and what runs on accelerator backends."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from cyborg import exception
from cyborg.cli.base import List, Long, Show, given, shown
from cyborg.cli.client import Client

AGENT = "cyborg-agent"


class ServiceList(List):
    """List services: Cyborg's own processes, and the services found on attached backends."""

    route = "service-list"
    columns = shown(
        "uuid", "kind", "host", "binary", "driver", "backend", "name", "state", "status"
    )
    more = shown("disabled_reason", "version", "endpoint", "last_seen_at", "last_discovered_at")

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Filters, and the file of the hosts that there should be."""
        parser.add_argument("--kind", choices=("process", "backend"), help="only this kind")
        parser.add_argument("--host", help="only those on this host")
        parser.add_argument("--driver", help="only those of this driver's backends")
        parser.add_argument("--backend", help="only those of this backend")
        parser.add_argument(
            "--expect",
            metavar="FILE",
            type=Path,
            help="fail if an agent never reported from a host named in FILE (one in a line)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """List, and look for who is missing."""
        shown = super().take_action(parsed_args)
        if parsed_args.expect:
            missing = _absent(self.client, parsed_args.expect)
            if missing:
                self.complain(
                    f"Never reported: {', '.join(missing)}. Is cyborg-agent running there, with "
                    "the transport_url and the host of its configuration right?"
                )
        return shown


class ServiceShow(Show):
    """Show one service."""

    route = "service-show"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one."""
        parser.add_argument("key", metavar="<service>", help="its UUID, or its host")

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """The service."""
        return self.one(self.client.ask(self.route, _service(self.client, parsed.key)))


class ServiceEnable(ServiceShow):
    """Enable a service."""

    route = "service-enable"

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """The service, enabled."""
        key = _service(self.client, parsed.key)
        return self.one(self.client.ask(self.route, key, given={"status": "enabled"}))


class ServiceDisable(ServiceShow):
    """Disable a service."""

    route = "service-disable"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one, and why."""
        super().arguments(parser)
        parser.add_argument("--reason", dest="disabled_reason", help="why, for colleagues")

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """The service, disabled."""
        key = _service(self.client, parsed.key)
        wish = given(parsed) | {"status": "disabled"}
        return self.one(self.client.ask(self.route, key, given=wish))


class ServiceDelete(Long):
    """Forget a service; with a host's agent its devices go from database and Placement, too."""

    route = "service-delete"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one."""
        parser.add_argument("key", metavar="<service>", help="its UUID, or its host")

    def keys(self, parsed: argparse.Namespace) -> tuple[str, ...]:
        """The UUID of the service that is meant."""
        return (_service(self.client, parsed.key),)


class Discover(Long):
    """Have hosts discover their accelerators and backends now."""

    route = "discover-services"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Where, and with which driver."""
        parser.add_argument(
            "--host",
            dest="hosts",
            metavar="HOST",
            action="append",
            help="only there; may be repeated",
        )
        parser.add_argument("--driver", help="only with this driver")

    def keys(self, parsed: argparse.Namespace) -> tuple[str, ...]:
        """None: it is about all hosts."""
        return ()


def _service(client: Client, key: str) -> str:
    """The UUID of a service that was named by UUID or, if there is one only, by host."""
    try:
        return str(UUID(key))
    except ValueError:
        found = client.ask("service-list", given={"kind": "process", "host": key})
    if len(found) == 1:
        return str(found[0]["uuid"])
    if not found:
        raise exception.CommandFailed(
            reason=f"No service of host {key} is known; service-list shows all."
        )
    choice = ", ".join(f"{one['binary']} is {one['uuid']}" for one in found)
    raise exception.CommandFailed(
        reason=f"Host {key} has several services; name one of them by its UUID: {choice}."
    )


def _absent(client: Client, path: Path) -> list[str]:
    """The hosts named in a file from which no agent ever reported, in the file's order."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise exception.CommandFailed(
            reason=f"The hosts to expect cannot be read: {fault}"
        ) from fault
    expected = [host for line in lines if (host := line.partition("#")[0].strip())]
    known = {
        one["host"]
        for one in client.ask("service-list", given={"kind": "process"})
        if one["binary"] == AGENT and one.get("last_seen_at")
    }
    return [host for host in dict.fromkeys(expected) if host not in known]
