# SPDX-License-Identifier: Apache-2.0
"""Accelerators: the devices that instances get."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from cyborg import exception
from cyborg.cli import waiting
from cyborg.cli.base import Delete, List, Long, Pair, Several, Show, Unset, count, given, shown
from cyborg.model.health import CONDITIONS

#: The status while a host sets a device up.
_INSTALLING = "installing"


class AcceleratorList(List):
    """List accelerators; members see those that their project holds."""

    route = "accelerator-list"
    columns = shown(
        "uuid",
        "hostname",
        "address",
        "type",
        "model",
        "status",
        free="units.free",
        total="units.total",
        holder="holders.instance_name",
    )
    essential = ("hostname", "address", "status")
    empty = (
        "There are no accelerators. Run cyborg discover-services, and cyborg hardware-list to see "
        "what the hosts have and why it is not offered."
    )
    more = shown(
        "vendor",
        "driver",
        "backend",
        "numa_node",
        "resource_classes",
        "traits",
        "in_use",
        "labels",
        "instances",
        "status_reason",
        "health",
        "health_reasons",
        "health_since",
        "holders",
        "std_board_info",
        "vendor_board_info",
        "created_at",
        "updated_at",
        instance_name="instances.name",
        instance_status="instances.status",
        provider="providers.name",
        reserved="providers.reserved",
        reasons="units.reasons",
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Filters."""
        parser.add_argument("--host", dest="hostname", metavar="HOST", help="only on this host")
        parser.add_argument("--driver", help="only of this driver")
        parser.add_argument("--backend", help="only of this backend")
        parser.add_argument("--type", help="only this type, for example FPGA")
        parser.add_argument("--vendor", help="only this vendor, as the list spells it")
        parser.add_argument("--status", help="only in this status")
        parser.add_argument(
            "--health",
            choices=CONDITIONS,
            help="only in this health; the units of drain and dead are reserved",
        )
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


class AcceleratorUpdate(Several):
    """Put accelerators into service or out of it, label them, change created ones."""

    route = "accelerator-update"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The accelerators, and their changes."""
        parser.add_argument(
            "keys",
            metavar="<accelerator>",
            nargs="*",
            help="a UUID; without any, --host, --driver and --label select accelerators",
        )
        parser.add_argument(
            "--host", dest="hostname", metavar="HOST", help="select the accelerators of this host"
        )
        parser.add_argument("--driver", help="select the accelerators of this driver")
        parser.add_argument(
            "--yes", action="store_true", help="do not ask before selected accelerators change"
        )
        parser.add_argument(
            "--status",
            choices=("ready", "enabled", "maintaining"),
            help="ready and enabled are the same: set up, then offered",
        )
        parser.add_argument(
            "--reason",
            dest="status_reason",
            help="the reason for --status maintaining; accelerator-show has it as status_reason",
        )
        parser.add_argument(
            "--label",
            dest="label",
            metavar="KEY=VALUE",
            action=Pair,
            help="of accelerators named by UUID: add or change this label; without a UUID: select "
            "the accelerators with this label; may be repeated",
        )
        parser.add_argument(
            "--set-label",
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

    def keys(self, parsed: argparse.Namespace) -> Sequence[str]:
        """The accelerators that are named, or those that are selected."""
        selected = parsed.keys == []
        if not selected and (parsed.hostname or parsed.driver):
            raise exception.CommandFailed(
                reason="Name accelerators by UUID, or select them with --host, --driver and "
                "--label, but not both."
            )
        if not selected:
            _merge_labels(parsed)
        self._check(parsed)
        return self._selected(parsed) if selected else super().keys(parsed)

    def change(self, key: str, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Change one accelerator."""
        return self.one(self.client.ask(self.route, key, given=given(parsed)))

    def finished(
        self, changed: dict[str, Mapping[str, Any]], parsed: argparse.Namespace
    ) -> dict[str, Mapping[str, Any]]:
        """The accelerators; with ``--wait`` at the end of their set-up."""
        for key in changed if parsed.wait else ():
            changed[key] = waiting.until(
                partial(self.client.ask, "accelerator-show", key),
                lambda device: device.get("status") != _INSTALLING,
                self.client.pause,
            )
        for key, device in changed.items():
            if device.get("status") == waiting.FAILED:
                self.complain(f"{key}: {device.get('status_reason') or 'The set-up failed.'}")
        return changed

    def _check(self, parsed: argparse.Namespace) -> None:
        """Raise CommandFailed for a change of nothing and for a reason without its status."""
        if not given(parsed).keys() & {"status", "labels", "model", "traits"}:
            raise exception.CommandFailed(
                reason="Nothing is to be changed: give --status, --set-label, --unset-label, "
                "--model or --trait (with the UUIDs of accelerators --label, too)."
            )
        if parsed.status_reason is not None and parsed.status != "maintaining":
            raise exception.CommandFailed(reason="--reason goes with --status maintaining only.")

    def _selected(self, parsed: argparse.Namespace) -> list[str]:
        """The UUIDs of the accelerators that the options select, once the user agrees."""
        pairs = parsed.label or {}
        filters = {
            "hostname": parsed.hostname,
            "driver": parsed.driver,
            "labels": ",".join(f"{key}={value}" for key, value in pairs.items()) or None,
        }
        filters = {name: value for name, value in filters.items() if value is not None}
        if not filters:
            raise exception.CommandFailed(
                reason="No accelerator is named: give UUIDs, or select some with --host, --driver "
                "or --label."
            )
        words = ", ".join(f"{name} {value}" for name, value in filters.items())
        devices = self.client.ask("accelerator-list", given=filters)
        if not devices:
            raise exception.CommandFailed(
                reason=f"No accelerator matches {words}; cyborg accelerator-list shows all."
            )
        count = f"{len(devices)} accelerator{'' if len(devices) == 1 else 's'}"
        if not parsed.yes:
            self._ask_back(count, len(devices), words)
        return [device["uuid"] for device in devices]

    def _ask_back(self, count: str, number: int, words: str) -> None:
        """Ask the user whether to change so many accelerators; raises CommandFailed for a no."""
        if not (self.app.stdin.isatty() and self.app.stdout.isatty()):
            raise exception.CommandFailed(
                reason=f"{count} with {words} would change; give --yes to change them without a "
                "question."
            )
        self.app.stderr.write(f"Change {count} with {words}? [y/N or {number}] ")
        self.app.stderr.flush()
        if self.app.stdin.readline().strip().lower() not in ("y", "yes", str(number)):
            raise exception.CommandFailed(reason="Nothing was changed.")


def _merge_labels(parsed: argparse.Namespace) -> None:
    """Count ``--label`` among the labels to set; raises CommandFailed for a key given twice."""
    twice = sorted((parsed.label or {}).keys() & (parsed.labels or {}).keys())
    if twice:
        raise exception.CommandFailed(reason=f"Label {twice[0]} is given twice.")
    if parsed.label:
        parsed.labels = {**parsed.label, **(parsed.labels or {})}


class AcceleratorDelete(Delete):
    """Delete accelerators that were created, and forget those that are lost."""

    route = "accelerator-delete"
    noun = "accelerator"
