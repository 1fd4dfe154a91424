# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests, and accelerators for instances that exist."""

import argparse
from collections.abc import Mapping
from typing import Any

from cyborg.cli.base import List, Long, Show, shown, uuid


class ArqList(List):
    """List accelerator requests."""

    route = "arq-list"
    columns = shown(
        "uuid",
        "state",
        "device_profile_name",
        "instance_uuid",
        "attach_handle_type",
        "attach_handle_info",
    )
    more = shown("hostname", "device_rp_uuid")
    essential = ("state", "device_profile_name")
    empty = (
        "There are no accelerator requests. Nova makes them for instances whose flavor has "
        "accel:device_profile."
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Filters."""
        parser.add_argument("--instance", metavar="UUID", type=uuid, help="only of this instance")
        parser.add_argument("--state", help="only in this state, for example Bound")
        parser.add_argument("--host", dest="hostname", metavar="HOST", help="only on this host")
        parser.add_argument(
            "--profile",
            dest="device_profile_name",
            metavar="NAME",
            help="only of this device profile",
        )
        parser.add_argument(
            "--project", dest="project_id", metavar="PROJECT_ID", help="only of this project"
        )


class ArqShow(Show):
    """Show one accelerator request."""

    route = "arq-show"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one."""
        parser.add_argument("key", metavar="<arq>", help="its UUID")


class Attach(Long):
    """Give accelerators to an instance that exists; an active one is rebooted."""

    route = "attach-instance"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Whom, and what."""
        parser.add_argument("key", metavar="<instance_id>", type=uuid, help="UUID of the instance")
        parser.add_argument(
            "--device-profile",
            metavar="PROFILE",
            help="what to attach (default: the device profile of its flavor)",
        )


class Detach(Long):
    """Take accelerators that were attached from an instance; an active one is rebooted."""

    route = "detach-instance"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """From whom, and what."""
        parser.add_argument("key", metavar="<instance_id>", type=uuid, help="UUID of the instance")
        parser.add_argument(
            "arq", metavar="<arq>", nargs="?", type=uuid, help="only this one (default: all)"
        )

    def keys(self, parsed: argparse.Namespace) -> tuple[str, ...]:
        """The instance, and the request if only one is meant."""
        return (parsed.key, parsed.arq) if parsed.arq else (parsed.key,)

    def request(self, parsed: argparse.Namespace) -> tuple[str, Mapping[str, Any]]:
        """Everything, or one."""
        return ("detach-accelerator" if parsed.arq else self.route), {}
