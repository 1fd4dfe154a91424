# SPDX-License-Identifier: Apache-2.0
"""Drivers on their hosts, the backends that they attach, and the hardware that they see."""

import argparse

from cyborg.cli.base import List, Long, Pair, Show, Unset, shown

_STATES = ("READY", "STARTING", "FAILED", "STOPPED")


class DriverList(List):
    """List drivers per host, those that are installed but not loaded included."""

    route = "driver-list"
    columns = shown(
        "uuid",
        "host",
        "name",
        "state",
        "enabled",
        found="devices.found",
        offered="devices.offered",
        in_use="devices.in_use",
    )
    more = shown("version", "type", "endpoint", "options", "error", "discovered_at")
    essential = ("host", "name", "state")
    empty = (
        "There are no drivers: no cyborg-agent ever reported. Start cyborg-agent on the compute "
        "hosts; cyborg service-list shows those that report."
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Filters."""
        parser.add_argument("--host", help="only those on this host")
        parser.add_argument("--name", help="only this driver")
        parser.add_argument("--state", choices=_STATES, help="only in this state")


class DriverShow(Show):
    """Show one driver of one host."""

    route = "driver-show"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one."""
        parser.add_argument("key", metavar="<driver>", help="the UUID of the host's row")


class DriverInstall(Long):
    """Have hosts load a driver that is installed there as a package, and discover with it."""

    route = "install-driver"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one, where, and how."""
        parser.add_argument(
            "driver",
            metavar="<driver_id>",
            help="name of the entry point, or the UUID of one host's row",
        )
        parser.add_argument(
            "--host",
            dest="hosts",
            metavar="HOST",
            action="append",
            help="only there; may be repeated (default: all hosts that are up)",
        )
        _add_option(parser)

    def keys(self, parsed: argparse.Namespace) -> tuple[str, ...]:
        """None: what is installed is in the body."""
        return ()


class DriverUninstall(Long):
    """Take a driver from its hosts; its devices go from database and Placement."""

    route = "uninstall-driver"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one, and whether it may wait."""
        _add_driver(parser)
        parser.add_argument(
            "--drain",
            action="store_const",
            const="true",
            help="while devices are in use: offer no more of them now, remove when they are free",
        )


class DriverUpdate(Long):
    """Change a driver's options, enable or disable it; without options: load it anew."""

    route = "update-driver"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one, and what about it."""
        _add_driver(parser)
        _add_option(parser)
        parser.add_argument(
            "--unset-option",
            dest="options",
            metavar="KEY",
            action=Unset,
            help="have an option again as the host's configuration has it; may be repeated",
        )
        group = parser.add_mutually_exclusive_group()
        group.add_argument(
            "--enable",
            dest="enabled",
            action="store_const",
            const=True,
            help="have it work",
        )
        group.add_argument(
            "--disable",
            dest="enabled",
            action="store_const",
            const=False,
            help="have it rest",
        )


class BackendList(List):
    """List the accelerator backends that are attached, per host and driver."""

    route = "backend-list"
    columns = shown("uuid", "host", "driver", "name", "state", "services", "creates")
    more = shown("capabilities", "discovered_at")
    essential = ("host", "name", "state")
    empty = (
        "There are no accelerator backends. Run cyborg discover-services; cyborg driver-list shows "
        "the drivers that look for them."
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Filters."""
        parser.add_argument("--host", help="only those on this host")
        parser.add_argument("--driver", help="only those of this driver")
        parser.add_argument("--name", help="only of this name")
        parser.add_argument("--capability", help="only those with this capability")


class BackendShow(Show):
    """Show one backend."""

    route = "backend-show"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one."""
        parser.add_argument("key", metavar="<backend>", help="its UUID")


class HardwareList(List):
    """List the physical devices of hosts, supported or not, ready or not."""

    route = "hardware-list"
    columns = shown(
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
    more = shown(
        remote="acc_specs.remote",
        acc_capability="acc_specs.acc_capability",
        reason="acc_status.reason",
    )
    essential = ("hostname", "key", "offered")
    empty = (
        "There are no physical devices. Run cyborg discover-services; cyborg driver-list shows "
        "which drivers look for hardware, and their errors."
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Filters."""
        parser.add_argument("--host", help="only that of this host")
        parser.add_argument("--driver", help="only what this driver sees")
        parser.add_argument("--type", help="only this type, for example CRYPTO")
        parser.add_argument(
            "--setup-required",
            action="store_const",
            const="true",
            help="only what has to be set up first",
        )
        parser.add_argument(
            "--remote",
            choices=("true", "false"),
            help="only hardware with (true) or without (false) units that are not local",
        )
        parser.add_argument("--capability", help="only hardware with this capability")


class HardwareShow(Show):
    """Show one physical device."""

    route = "hardware-show"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one."""
        parser.add_argument("key", metavar="<hardware>", help="its UUID")


class UsageShow(List):
    """Count the units of accelerators by resource class: used, free and out of service."""

    route = "usage-show"
    columns = shown(
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
    empty = "There are no accelerators to count. Run cyborg discover-services."

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Filters."""
        parser.add_argument("--type", help="only this type")
        parser.add_argument("--host", help="only those on this host")
        parser.add_argument(
            "--project", dest="project_id", metavar="PROJECT_ID", help="only what this one holds"
        )
        parser.add_argument("--resource-class", metavar="CLASS", help="only this resource class")
        parser.add_argument(
            "--by",
            dest="group_by",
            metavar="COLUMNS",
            help="count apart by type, host or project_id, or by several of them with commas "
            "between; only operators count by host",
        )


def _add_driver(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "key",
        metavar="<driver_id>",
        help="name of the entry point, or the UUID of one host's row",
    )


def _add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--option",
        dest="options",
        metavar="KEY=VALUE",
        action=Pair,
        help="an option of the driver; may be repeated",
    )
