# SPDX-License-Identifier: Apache-2.0
"""Commands for drivers, the backends that they attach, the hardware they find, usage and limits."""

import argparse
from collections.abc import Mapping
from typing import Any

from cyborg.cli.base import (
    KeyValueAction,
    ListCommand,
    OperationCommand,
    ShowCommand,
    UnsetKeyAction,
    column_paths,
)

_STATES = ("READY", "STARTING", "FAILED", "STOPPED")
_DRIVER_HELP = (
    "Name of the driver's entry point, or the UUID of its row in driver-list for one host."
)


class DriverList(ListCommand):
    """List the drivers of each host, including installed drivers that are not loaded."""

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


class DriverShow(ShowCommand):
    """Show one driver of one host."""

    route = "driver-show"
    key_name, key_help = "driver", "UUID of the driver's row in driver-list."


class DriverInstall(OperationCommand):
    """Load a driver on hosts where its package is installed, and discover its devices."""

    route = "install-driver"

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


class DriverUninstall(OperationCommand):
    """Unload a driver from its hosts; its devices are removed from database and Placement."""

    route = "uninstall-driver"
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


class DriverUpdate(OperationCommand):
    """Change the options of a driver, enable or disable it; without options reload the driver."""

    route = "update-driver"
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


class BackendShow(ShowCommand):
    """Show one backend."""

    route = "backend-show"
    key_name, key_help = "backend", "UUID of the backend."


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
        offered="offered",
    )
    long_columns = column_paths(
        remote="acc_specs.remote",
        acc_capability="acc_specs.acc_capability",
        reason="acc_status.reason",
    )
    essential = ("hostname", "key", "offered")
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


class HardwareShow(ShowCommand):
    """Show one physical device."""

    route = "hardware-show"
    key_name, key_help = "hardware", "UUID of the physical device."


class UsageShow(ListCommand):
    """Count the units of accelerators by resource class: used, free and out of service."""

    route = "usage-show"
    columns = column_paths(
        "resource_class",
        "type",
        "host",
        "project_id",
        "total",
        "used",
        "free",
        "out_of_service",
        "reasons",
    )
    essential = ("total", "used", "free", "out_of_service")
    empty_message = "There are no accelerators to count. Run cyborg discover-services."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--type", help="Count only this device type.")
        parser.add_argument("--host", help="Count only units on this host.")
        parser.add_argument(
            "--project",
            dest="project_id",
            metavar="PROJECT_ID",
            help="Count only units that this project uses.",
        )
        parser.add_argument(
            "--resource-class", metavar="CLASS", help="Count only this resource class."
        )
        parser.add_argument(
            "--by",
            dest="group_by",
            metavar="COLUMNS",
            help="Additional columns to count by: type, host or project_id, separated by commas. "
            "Only operators can count by host.",
        )


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
