# SPDX-License-Identifier: Apache-2.0
"""Services: the processes of Cyborg, and what runs on accelerator backends."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

from cyborg import exception
from cyborg.cli.base import List, Long, Several, Show, given, shown
from cyborg.cli.client import Client

AGENT = "cyborg-agent"


class ServiceList(List):
    """List services: Cyborg's own processes, and the services found on attached backends."""

    route = "service-list"
    columns = shown(
        *("uuid", "kind", "host", "binary", "driver", "backend", "name"),
        *("state", "status", "listening", "cause"),
    )
    essential = ("host", "binary", "state", "status")
    empty = (
        "There are no services: no cyborg-conductor and no cyborg-agent ever reported. Start them, "
        "and check transport_url and the database connection of cyborg-conductor."
    )
    more = shown(
        *("remedy", "bus_error", "bus_error_since", "disabled_reason"),
        *("version", "endpoint", "last_seen_at", "last_discovered_at"),
    )

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


class ServiceEnable(Several):
    """Put the hosts of agents back into service."""

    route = "service-enable"
    status_word: ClassVar[str] = "enabled"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The hosts."""
        parser.add_argument(
            "keys",
            metavar="<host>",
            nargs="+",
            help="a host, or the UUID of its cyborg-agent in service-list",
        )

    def change(self, key: str, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Change the agent of one host."""
        uuid = _service(self.client, key, binary=AGENT)
        wish = given(parsed) | {"status": self.status_word}
        return self.one(self.client.ask(self.route, uuid, given=wish))


class ServiceDisable(ServiceEnable):
    """Take the hosts of agents out of service; instances keep the accelerators that they have."""

    route = "service-disable"
    status_word = "disabled"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The hosts, and the reason."""
        super().arguments(parser)
        parser.add_argument("--reason", dest="disabled_reason", help="the reason, for colleagues")


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
        parser.add_argument(
            "--setup",
            action="store_const",
            const=True,
            help="set up the devices that the driver finds and that need it (requires --driver)",
        )

    def keys(self, parsed: argparse.Namespace) -> tuple[str, ...]:
        """None: it is about all hosts."""
        if parsed.setup and not parsed.driver:
            raise exception.CommandFailed(
                reason="--setup sets up the devices of one driver: name it with --driver."
            )
        return ()


def _service(client: Client, key: str, binary: str | None = None) -> str:
    """The UUID of a service that was named by UUID or, if there is one only, by host.

    With ``binary`` only the services of that program count.
    """
    try:
        return str(UUID(key))
    except ValueError:
        services = client.ask("service-list", given={"kind": "process", "host": key})
    found = [item for item in services if binary in (None, item["binary"])]
    if services and not found:
        raise exception.CommandFailed(
            reason=f"Host {key} has no {binary}: {', '.join(one['binary'] for one in services)} "
            "gives out no units and cannot be disabled or enabled."
        )
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
