# SPDX-License-Identifier: Apache-2.0
"""Commands for drivers, the backends that they attach, the hardware they find, and limits."""

import argparse
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

from cyborg_cli.base import (
    KeyValueAction,
    ListCommand,
    NamedShow,
    OperationCommand,
    ShowCommand,
    UnsetKeyAction,
    add_dry_run,
    add_force,
    column_paths,
)
from cyborg_cli.driver_plans import FAILS, SUCCEEDS, UNKNOWN, DriverPlan, Result

_STATES = ("READY", "STARTING", "FAILED", "STOPPED")
_DRIVER_HELP = (
    "Name of the driver's entry point, or the UUID of its row in driver-list for one host."
)


class DriverList(ListCommand):
    """List the drivers of each host, with --all also installed drivers that are not enabled."""

    route = "driver-list"
    columns = column_paths(
        "uuid",
        "host",
        "name",
        "state",
        "enabled",
        found="devices.found",
        offered="devices.offered",
        in_use="devices.in_use",
    )
    long_columns = column_paths("version", "type", "endpoint", "options", "error", "discovered_at")
    essential = ("host", "name", "state")
    empty_message = (
        "There are no drivers: no cyborg-agent ever reported. Start cyborg-agent on the compute "
        "hosts. cyborg service-list shows the agents that report."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--host", help="Show only drivers on this host.")
        parser.add_argument("--name", help="Show only this driver.")
        parser.add_argument("--state", choices=_STATES, help="Show only drivers in this state.")
        parser.add_argument(
            "--all",
            action="store_true",
            help="Show also installed drivers that nobody enabled. --name and --state show them "
            "as well.",
        )

    def shown(
        self, objects: Sequence[Mapping[str, Any]], parsed: argparse.Namespace
    ) -> Sequence[Mapping[str, Any]]:
        """Return the drivers without those that are only installed; say how many those are."""
        if parsed.all or parsed.name or parsed.state:
            return objects
        used = [item for item in objects if not _is_only_installed(item)]
        hidden = len(objects) - len(used)
        if hidden:
            self.print_note(f"{hidden} installed driver(s) that nobody enabled: --all shows them.")
        return used


def _is_only_installed(driver: Mapping[str, Any]) -> bool:
    """Return whether nobody has enabled a driver, and it has neither devices nor an error."""
    devices = (driver.get("devices") or {}).get("found")
    return not (driver.get("enabled") or devices or driver.get("error"))


class DriverShow(NamedShow):
    """Show one driver of one host."""

    route, list_route = "driver-show", "driver-list"
    key_name = "driver"
    key_help = "UUID of the driver's row in driver-list, or its name if only one host has it."


class _DriverCommand(OperationCommand):
    """A change of a driver; ``--dry-run`` shows the results that it would have on the hosts.

    ``verb`` is that of its operation.
    """

    verb: ClassVar[str]

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with ``--dry-run``."""
        parser = super().get_parser(prog_name)
        add_dry_run(parser)
        return parser

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Return the operation, or in a dry run what it would be."""
        if not parsed.dry_run:
            return super().fetch(parsed)
        key, filters = self.driver(parsed), {}
        name, hosts = key, None
        with contextlib.suppress(ValueError):
            row = self.client.request("driver-show", str(UUID(key)))
            name, hosts = row["name"], [row["host"]]
            filters["host"] = row["host"]
        rows = self.client.read_list("driver-list", {"name": name, **filters})
        services = self.client.read_list("service-list", {"kind": "process"})
        plan = DriverPlan.of(name, rows, services, defers=parsed.wait is not None)
        results = list(self.results(plan, parsed, hosts))
        for result in results:
            if result["state"] == FAILS:
                self.report_error(f"{result['host']}: {result['error']}")
        self.print_dry_run()
        subject = {"driver": name, "hosts": [result["host"] for result in results]}
        # A refusal on one host refuses the whole request.
        states = {result["state"] for result in results}
        state = next((state for state in (FAILS, UNKNOWN) if state in states), SUCCEEDS)
        return {"verb": self.verb, "state": state, "subject": subject, "results": results}

    def driver(self, parsed: argparse.Namespace) -> str:
        """Return the name of the driver, or the UUID of its row for one host."""
        return str(parsed.key)

    def results(
        self, plan: DriverPlan, parsed: argparse.Namespace, hosts: Sequence[str] | None
    ) -> Iterable[Result]:
        """Return the results on the hosts; ``hosts`` limits it to the host of a row."""
        raise NotImplementedError


class DriverInstall(_DriverCommand):
    """Load a driver on hosts where its package is installed, and discover its devices."""

    route = "install-driver"
    verb = "install_driver"

    def driver(self, parsed: argparse.Namespace) -> str:
        return str(parsed.driver)

    def results(
        self, plan: DriverPlan, parsed: argparse.Namespace, hosts: Sequence[str] | None
    ) -> Iterable[Result]:
        return plan.install(hosts or parsed.hosts, parsed.options)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("driver", metavar="<driver_id>", help=_DRIVER_HELP)
        parser.add_argument(
            "--host",
            dest="hosts",
            metavar="HOST",
            action="append",
            help="Host that loads the driver (default: all hosts that are up). Repeat the option "
            "for more hosts.",
        )
        _add_option(parser)


class DriverUninstall(_DriverCommand):
    """Unload a driver from its hosts; its devices are removed from database and Placement."""

    route = "uninstall-driver"
    verb = "uninstall_driver"
    key_name, key_help = "driver_id", _DRIVER_HELP

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--drain",
            action="store_const",
            const="true",
            help="Accept a driver whose devices are in use. Its devices are not offered any more, "
            "and the driver is removed when all of them are free.",
        )
        add_force(parser)

    def results(
        self, plan: DriverPlan, parsed: argparse.Namespace, hosts: Sequence[str] | None
    ) -> Iterable[Result]:
        return plan.uninstall(drain=bool(parsed.drain))


class DriverUpdate(_DriverCommand):
    """Change the options of a driver, enable or disable it; without options reload the driver."""

    route = "update-driver"
    verb = "update_driver"
    key_name, key_help = "driver_id", _DRIVER_HELP

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        _add_option(parser)
        parser.add_argument(
            "--unset-option",
            dest="options",
            metavar="KEY",
            action=UnsetKeyAction,
            help="Option to reset to the value in the host's configuration. Repeat it for more "
            "options.",
        )
        group = parser.add_mutually_exclusive_group()
        group.add_argument(
            "--enable",
            dest="enabled",
            action="store_const",
            const=True,
            help="Enable the driver.",
        )
        group.add_argument(
            "--disable",
            dest="enabled",
            action="store_const",
            const=False,
            help="Disable the driver.",
        )

    def results(
        self, plan: DriverPlan, parsed: argparse.Namespace, hosts: Sequence[str] | None
    ) -> Iterable[Result]:
        return plan.update(parsed.options, enabled=parsed.enabled)


class BackendList(ListCommand):
    """List the attached accelerator backends of each host and driver."""

    route = "backend-list"
    columns = column_paths("uuid", "host", "driver", "name", "state", "services", "creates")
    long_columns = column_paths("capabilities", "discovered_at")
    essential = ("host", "name", "state")
    empty_message = (
        "There are no accelerator backends. Run cyborg discover-services. cyborg driver-list shows "
        "the drivers that discover backends."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--host", help="Show only backends on this host.")
        parser.add_argument("--driver", help="Show only backends of this driver.")
        parser.add_argument("--name", help="Show only backends with this name.")
        parser.add_argument("--capability", help="Show only backends with this capability.")


class BackendShow(NamedShow):
    """Show one backend."""

    route, list_route = "backend-show", "backend-list"
    key_name, key_help = "backend", "UUID of the backend, or its name if only one host has it."


class HardwareList(ListCommand):
    """List the physical devices of hosts, also those that are not supported or not ready."""

    route = "hardware-list"
    columns = column_paths(
        "uuid",
        "hostname",
        "driver",
        "key",
        device_type="acc_specs.device_type",
        num="acc_specs.num",
        setup_required="acc_status.setup_required",
        reboot_required="acc_status.reboot_required",
        driver_offers="offered",
        reason="acc_status.reason",
    )
    long_columns = column_paths(
        remote="acc_specs.remote", acc_capability="acc_specs.acc_capability"
    )
    essential = ("hostname", "key", "driver_offers")
    empty_message = (
        "There are no physical devices. Run cyborg discover-services. cyborg driver-list shows the "
        "drivers that discover hardware, and their errors."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--host", help="Show only hardware of this host.")
        parser.add_argument("--driver", help="Show only hardware that this driver found.")
        parser.add_argument("--type", help="Show only this device type, for example CRYPTO.")
        parser.add_argument(
            "--setup-required",
            action="store_const",
            const="true",
            help="Show only hardware that needs set-up before use.",
        )
        parser.add_argument(
            "--remote",
            choices=("true", "false"),
            help="Show only hardware with (true) or without (false) units that are not local.",
        )
        parser.add_argument("--capability", help="Show only hardware with this capability.")


class HardwareShow(NamedShow):
    """Show one physical device."""

    route, list_route, name_field = "hardware-show", "hardware-list", "key"
    key_name = "hardware"
    key_help = "UUID of the physical device, or its key if only one host has it."


class LimitsShow(ShowCommand):
    """Show what the project may have and has, and the limits of each request."""

    route = "limits-show"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing: a token belongs to one project."""

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Return the limits of the project of the token."""
        return self.unwrap(self.client.request(self.route))


def _add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--option",
        dest="options",
        metavar="KEY=VALUE",
        action=KeyValueAction,
        help="Option of the driver to set. Repeat it for more options; driver-show lists the "
        "accepted ones.",
    )
