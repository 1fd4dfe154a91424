# SPDX-License-Identifier: Apache-2.0
"""Commands for accelerator requests (ARQs), and for accelerators of existing instances."""

import argparse
from collections.abc import Mapping
from typing import Any

from cyborg_cli.base import (
    ListCommand,
    OperationCommand,
    ShowCommand,
    column_paths,
    uuid_string,
)


class ArqList(ListCommand):
    """List accelerator requests."""

    route = "arq-list"
    columns = column_paths(
        "uuid",
        "state",
        "device_profile_name",
        "instance_uuid",
        "attach_handle_type",
        "attach_handle_info",
    )
    long_columns = column_paths("hostname", "device_rp_uuid")
    essential = ("state", "device_profile_name")
    empty_message = (
        "There are no accelerator requests. Nova creates them for instances whose flavor has "
        "accel:device_profile."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--instance",
            metavar="UUID",
            type=uuid_string,
            help="Show only requests of this instance.",
        )
        parser.add_argument("--state", help="Show only requests in this state, for example Bound.")
        parser.add_argument(
            "--host", dest="hostname", metavar="HOST", help="Show only requests on this host."
        )
        parser.add_argument(
            "--profile",
            dest="device_profile_name",
            metavar="NAME",
            help="Show only requests for this device profile.",
        )
        parser.add_argument(
            "--project",
            dest="project_id",
            metavar="PROJECT_ID",
            help="Show only requests of this project.",
        )


class ArqShow(ShowCommand):
    """Show one accelerator request."""

    route = "arq-show"
    key_name, key_help = "arq", "UUID of the request."


class InstanceAttach(OperationCommand):
    """Attach accelerators to an existing instance; an active instance is rebooted."""

    route = "attach-instance"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "key", metavar="<instance_id>", type=uuid_string, help="UUID of the instance."
        )
        parser.add_argument(
            "--device-profile",
            metavar="PROFILE",
            help="Device profile of the accelerators to attach (default: the device profile of "
            "the instance's flavor).",
        )


class InstanceDetach(OperationCommand):
    """Detach attached accelerators from an instance; an active instance is rebooted."""

    route = "detach-instance"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "key", metavar="<instance_id>", type=uuid_string, help="UUID of the instance."
        )
        parser.add_argument(
            "arq",
            metavar="<arq>",
            nargs="?",
            type=uuid_string,
            help="UUID of the only accelerator request to detach (default: all attached ones).",
        )

    def path_keys(self, parsed: argparse.Namespace) -> tuple[str, ...]:
        """Return the instance, and the request if one is given."""
        return (parsed.key, parsed.arq) if parsed.arq else (parsed.key,)

    def route_and_values(self, parsed: argparse.Namespace) -> tuple[str, Mapping[str, Any]]:
        """Return the route for one request or for all requests."""
        return ("detach-accelerator" if parsed.arq else self.route), {}
