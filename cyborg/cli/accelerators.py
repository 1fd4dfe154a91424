# SPDX-License-Identifier: Apache-2.0
"""Accelerators: the devices that instances get."""

import argparse
from collections.abc import Mapping
from typing import Any

from cyborg import exception
from cyborg.cli import waiting
from cyborg.cli.base import Delete, List, Long, Pair, Show, Unset, count, given, shown

#: The status while a host sets a device up.
_INSTALLING = "installing"


class AcceleratorList(List):
    """List accelerators; members see those that their project holds."""

    route = "accelerator-list"
    columns = shown(
        "uuid",
        "type",
        "vendor",
        "model",
        "hostname",
        "driver",
        "status",
        "in_use",
        instance_name="instances.name",
        instance_status="instances.status",
    )
    more = shown(
        "backend",
        "labels",
        "instances",
        "status_reason",
        "std_board_info",
        "vendor_board_info",
        "created_at",
        "updated_at",
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Filters."""
        parser.add_argument("--host", dest="hostname", metavar="HOST", help="only on this host")
        parser.add_argument("--driver", help="only of this driver")
        parser.add_argument("--backend", help="only of this backend")
        parser.add_argument("--type", help="only this type, for example FPGA")
        parser.add_argument("--vendor", help="only this vendor, as the list spells it")
        parser.add_argument("--status", help="only in this status")
        parser.add_argument("--instance", metavar="UUID", help="only what this instance holds")
        parser.add_argument(
            "--label",
            dest="pairs",
            metavar="KEY=VALUE",
            action=Pair,
            help="only with this label; may be repeated",
        )
        group = parser.add_mutually_exclusive_group()
        group.add_argument(
            "--attached",
            dest="in_use",
            action="store_const",
            const="true",
            help="only what instances hold",
        )
        group.add_argument(
            "--free",
            dest="in_use",
            action="store_const",
            const="false",
            help="only what nobody holds",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """List; labels go into one parameter."""
        pairs = parsed_args.pairs or {}
        parsed_args.labels = ",".join(f"{key}={value}" for key, value in pairs.items()) or None
        return super().take_action(parsed_args)


class AcceleratorShow(Show):
    """Show one accelerator."""

    route = "accelerator-show"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one."""
        parser.add_argument("key", metavar="<accelerator>", help="its UUID")


class AcceleratorCreate(Long):
    """Create an accelerator on a backend; backend-list tells in "creates" where one can."""

    route = "accelerator-create"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Where, and what."""
        parser.add_argument("--host", metavar="HOST", required=True, help="where")
        parser.add_argument("--driver", required=True, help="whose backend it is")
        parser.add_argument("--backend", required=True, help="on which backend")
        parser.add_argument("--model", required=True, help="its model, for people")
        parser.add_argument("--type", required=True, help="its type, for example FPGA")
        parser.add_argument("--resource-class", required=True, help="what Placement counts it as")
        parser.add_argument(
            "--trait",
            dest="traits",
            metavar="TRAIT",
            action="append",
            help="a trait of its provider; may be repeated",
        )
        group = parser.add_mutually_exclusive_group()
        group.add_argument(
            "--units",
            dest="handles",
            metavar="N",
            type=count,
            help="how many guests may have a unit (default: 1); only where a backend creates "
            "TEST_PCI",
        )
        group.add_argument(
            "--handle",
            dest="handles",
            metavar="ADDRESS",
            action="append",
            help="the PCI address of a unit; just one where a backend creates PCI, else it may be "
            "repeated",
        )
        parser.add_argument(
            "--label",
            dest="labels",
            metavar="KEY=VALUE",
            action=Pair,
            help="a label; may be repeated",
        )

    def keys(self, parsed: argparse.Namespace) -> tuple[str, ...]:
        """None: everything is in the body."""
        return ()

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """The new accelerator; the operation where there is none yet."""
        operation = super().fetch(parsed)
        for one in operation.get("results") or ():
            made = (one.get("result") or {}).get("device")
            if made and not parsed.wait:
                return self.one(self.client.ask("accelerator-show", made))
        return operation


class AcceleratorUpdate(AcceleratorShow):
    """Put an accelerator into service or out of it, label it, change what was created."""

    route = "accelerator-update"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one, and what about it."""
        super().arguments(parser)
        parser.add_argument(
            "--status",
            choices=("ready", "enabled", "maintaining"),
            help="ready and enabled are the same: set up, then offered",
        )
        parser.add_argument(
            "--label",
            dest="labels",
            metavar="KEY=VALUE",
            action=Pair,
            help="add or change a label; may be repeated",
        )
        parser.add_argument(
            "--unset-label",
            dest="labels",
            metavar="KEY",
            action=Unset,
            help="take a label away; may be repeated",
        )
        parser.add_argument("--model", help="its model, if it was created")
        parser.add_argument(
            "--trait",
            dest="traits",
            metavar="TRAIT",
            action="append",
            help="its traits instead of those that it had, if it was created; may be repeated",
        )
        parser.add_argument(
            "--wait", action="store_true", help="until its set-up has ended; fail if that fails"
        )

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """The accelerator as it is now."""
        wish = given(parsed)
        if not wish.keys() & {"status", "labels", "model", "traits"}:
            raise exception.CommandFailed(
                reason="Nothing is to be changed: give --status, --label, --unset-label, --model "
                "or --trait."
            )
        thing = self.one(self.client.ask(self.route, parsed.key, given=wish))
        if parsed.wait:
            thing = waiting.until(
                lambda: self.client.ask("accelerator-show", parsed.key),
                lambda one: one.get("status") != _INSTALLING,
                self.client.pause,
            )
        if thing.get("status") == waiting.FAILED:
            self.complain(f"{parsed.key}: {thing.get('status_reason') or 'The set-up failed.'}")
        return thing


class AcceleratorDelete(Delete):
    """Delete accelerators that were created, and forget those that are lost."""

    route = "accelerator-delete"
    noun = "accelerator"
