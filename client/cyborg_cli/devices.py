# SPDX-License-Identifier: Apache-2.0
"""Commands for accelerators: the devices that instances use."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from cyborg_cli import exception
from cyborg_cli.base import (
    DeleteCommand,
    KeyValueAction,
    ListCommand,
    MultipleTargets,
    OperationCommand,
    ShowCommand,
    UnsetKeyAction,
    add_dry_run,
    add_force,
    column_paths,
    duration,
    positive_integer,
    provided_values,
)
from cyborg_cli.client import FAILED, poll

#: The status of a device while its host sets it up.
_INSTALLING = "installing"
#: The words of the API for the health of an accelerator.
HEALTH: Final = ("ok", "degraded", "drain", "dead", "probation", "parked", "ignored")


#: The name of an instance that Nova has not told.
_UNKNOWN = "unknown"


def instance_names(instances: Sequence[Mapping[str, Any]] | None, name: str, uuid: str) -> Any:
    """Return the names of instances, or the UUID of one without a name."""
    if instances is None:
        return None
    return [
        each.get(uuid) if each.get(name) in (None, _UNKNOWN) else each[name] for each in instances
    ]


class AcceleratorList(ListCommand):
    """List accelerators; members of a project see those that the project uses."""

    route = "accelerator-list"
    columns = column_paths(
        "uuid",
        "hostname",
        "address",
        "type",
        "model",
        "status",
        "health",
        free="units.free",
        total="units.total",
        holder="holder",
    )
    essential = ("hostname", "address", "status")
    empty_message = (
        "There are no accelerators. Run cyborg discover-services, then cyborg hardware-list: it "
        "shows the hardware of the hosts and the reason why it is not offered."
    )
    long_columns = column_paths(
        "vendor",
        "driver",
        "backend",
        "numa_node",
        "resource_classes",
        "traits",
        "pools",
        "in_use",
        "labels",
        "instances",
        "status_reason",
        "health_reasons",
        "health_since",
        "holders",
        "std_board_info",
        "vendor_board_info",
        "created_at",
        "updated_at",
        instance_name="instance_name",
        instance_status="instances.status",
        provider="providers.name",
        reserved="providers.reserved",
        reasons="units.reasons",
        identity="identity.value",
        root_port="topology.root_port",
        switch="topology.switch",
        siblings="topology.siblings",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--host", dest="hostname", metavar="HOST", help="Show only accelerators on this host."
        )
        parser.add_argument("--driver", help="Show only accelerators of this driver.")
        parser.add_argument("--backend", help="Show only accelerators of this backend.")
        parser.add_argument("--type", help="Show only this device type, for example FPGA.")
        parser.add_argument("--vendor", help="Show only this vendor, spelled as in the list.")
        parser.add_argument("--status", help="Show only accelerators with this status.")
        parser.add_argument(
            "--health",
            choices=HEALTH,
            help="Show only accelerators with this health. The units of accelerators with health "
            "drain, dead, probation and parked are reserved.",
        )
        parser.add_argument(
            "--instance", metavar="UUID", help="Show only accelerators that this instance uses."
        )
        parser.add_argument(
            "--label",
            dest="pairs",
            metavar="KEY=VALUE",
            action=KeyValueAction,
            help="Show only accelerators with this label. Repeat the option for more labels.",
        )
        group = parser.add_mutually_exclusive_group()
        group.add_argument(
            "--attached",
            dest="in_use",
            action="store_const",
            const="true",
            help="Show only accelerators that instances use.",
        )
        group.add_argument(
            "--free",
            dest="in_use",
            action="store_const",
            const="false",
            help="Show only accelerators that no instance uses.",
        )

    def shown(
        self, objects: Sequence[Mapping[str, Any]], _parsed: argparse.Namespace
    ) -> Sequence[Mapping[str, Any]]:
        """Return the accelerators, each with the names of the instances that hold its units.

        An instance whose name Nova has not told is shown by its UUID.
        """
        return [
            {
                **item,
                "holder": instance_names(item.get("holders"), "instance_name", "instance_uuid"),
                "instance_name": instance_names(item.get("instances"), "name", "uuid"),
            }
            for item in objects
        ]

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """List accelerators; the labels are one query parameter."""
        pairs = parsed_args.pairs or {}
        parsed_args.labels = ",".join(f"{key}={value}" for key, value in pairs.items()) or None
        return super().take_action(parsed_args)


class AcceleratorShow(ShowCommand):
    """Show one accelerator."""

    route = "accelerator-show"
    key_name, key_help = "accelerator", "UUID of the accelerator."


class AcceleratorCreate(OperationCommand):
    """Create an accelerator on a backend for which backend-list shows a value in "creates"."""

    route = "accelerator-create"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--host", metavar="HOST", required=True, help="Host of the backend.")
        parser.add_argument("--driver", required=True, help="Driver of the backend.")
        parser.add_argument(
            "--backend", required=True, help="Backend that creates the accelerator."
        )
        parser.add_argument("--model", required=True, help="Model, a text for users.")
        parser.add_argument("--type", required=True, help="Device type, for example FPGA.")
        parser.add_argument(
            "--resource-class", required=True, help="Resource class of the units in Placement."
        )
        parser.add_argument(
            "--trait",
            dest="traits",
            metavar="TRAIT",
            action="append",
            help="Trait of the resource provider. Repeat the option for more traits.",
        )
        group = parser.add_mutually_exclusive_group()
        group.add_argument(
            "--units",
            dest="handles",
            metavar="N",
            type=positive_integer,
            help="Number of units (default: 1). One instance can use each unit. Use it only with "
            "a backend that creates TEST_PCI.",
        )
        group.add_argument(
            "--handle",
            dest="handles",
            metavar="ADDRESS",
            action="append",
            help="PCI address of a unit. A backend that creates PCI takes exactly one; for other "
            "backends repeat the option for more units.",
        )
        parser.add_argument(
            "--label",
            dest="labels",
            metavar="KEY=VALUE",
            action=KeyValueAction,
            help="Label of the accelerator. Repeat the option for more labels.",
        )

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Return the new accelerator, or the operation while or if there is none."""
        operation = super().fetch(parsed)
        for result in operation.get("results") or ():
            device = (result.get("result") or {}).get("device")
            if device and not parsed.wait:
                return self.unwrap(self.client.request("accelerator-show", device))
        return operation


class AcceleratorUpdate(MultipleTargets):
    """Enable accelerators, take them out of service, label them, or change created ones."""

    route = "accelerator-update"
    columns = column_paths(
        "uuid",
        "hostname",
        "address",
        "model",
        "status",
        "health",
        "labels",
        reason="status_reason",
    )
    essential = ("address", "status")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "keys",
            metavar="<accelerator>",
            nargs="*",
            help="UUID of an accelerator. Without a UUID, --host, --driver and --label select the "
            "accelerators.",
        )
        parser.add_argument(
            "--host",
            dest="hostname",
            metavar="HOST",
            help="Select the accelerators on this host.",
        )
        parser.add_argument("--driver", help="Select the accelerators of this driver.")
        parser.add_argument(
            "--yes",
            action="store_true",
            help="Change selected accelerators without a question. Use it in scripts.",
        )
        parser.add_argument(
            "--status",
            choices=("ready", "enabled", "maintaining"),
            help="New status. ready and enabled mean the same: the accelerator is set up, then "
            "offered. maintaining takes it out of service; accelerator-drain empties it.",
        )
        parser.add_argument(
            "--reason",
            dest="status_reason",
            help="Reason for --status maintaining; accelerator-show shows it as status_reason.",
        )
        parser.add_argument(
            "--label",
            dest="label",
            metavar="KEY=VALUE",
            action=KeyValueAction,
            help="With UUIDs: label to add or change. Without a UUID: select the accelerators "
            "with this label. Repeat the option for more labels.",
        )
        parser.add_argument(
            "--set-label",
            dest="labels",
            metavar="KEY=VALUE",
            action=KeyValueAction,
            help="Label to add or change. Repeat the option for more labels.",
        )
        parser.add_argument(
            "--unset-label",
            dest="labels",
            metavar="KEY",
            action=UnsetKeyAction,
            help="Key of a label to remove. Repeat the option for more labels.",
        )
        self._add_health(parser)
        parser.add_argument("--model", help="New model of a created accelerator.")
        parser.add_argument(
            "--trait",
            dest="traits",
            metavar="TRAIT",
            action="append",
            help="Trait of a created accelerator. The given traits replace all present ones. "
            "Repeat the option for more traits.",
        )
        parser.add_argument(
            "--free-unit",
            dest="free_unit",
            metavar="UNIT",
            help="Key of a unit in quarantine that you have cleaned yourself; accelerator-show "
            "lists the units. The unit is given out again, and its host does not clean it.",
        )
        parser.add_argument(
            "--wait",
            action="store_true",
            help="Wait until the set-up on the host ends. The command fails if the set-up fails.",
        )
        add_dry_run(parser)

    def _add_health(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--health",
            choices=("ignore", "auto"),
            help="ignore: faults have no effect for the time in --for. auto: faults count, and an "
            "accelerator that is parked or in probation is offered, unless it is faulty.",
        )
        parser.add_argument(
            "--for",
            dest="ignore_for",
            metavar="TIME",
            type=duration,
            help="Time for --health ignore: a number with s, m, h or d, from 60s to 30d.",
        )

    def target_keys(self, parsed: argparse.Namespace) -> Sequence[str]:
        """Return the UUIDs of the accelerators that are named or selected."""
        by_selection = parsed.keys == []
        if not by_selection:
            if parsed.hostname or parsed.driver:
                raise exception.CommandFailed(
                    reason="Name accelerators by UUID, or select them with --host, --driver and "
                    "--label, but not both."
                )
            # With UUIDs, --label means the same as --set-label.
            duplicates = sorted((parsed.label or {}).keys() & (parsed.labels or {}).keys())
            if duplicates:
                raise exception.CommandFailed(reason=f"Label {duplicates[0]} is given twice.")
            if parsed.label:
                parsed.labels = {**parsed.label, **(parsed.labels or {})}
        changes = {"status", "labels", "health", "model", "traits", "free_unit"}
        if not provided_values(parsed).keys() & changes:
            raise exception.CommandFailed(
                reason="No change is given. Give --status, --health, --set-label, --unset-label, "
                "--model, --trait or --free-unit, or with UUIDs also --label."
            )
        if (parsed.health == "ignore") is not (parsed.ignore_for is not None):
            raise exception.CommandFailed(reason="--health ignore and --for go together.")
        if parsed.status_reason is not None and parsed.status != "maintaining":
            raise exception.CommandFailed(
                reason="--reason can be used with --status maintaining only."
            )
        return self._select(parsed) if by_selection else super().target_keys(parsed)

    def update(self, key: str, parsed: argparse.Namespace) -> Mapping[str, Any]:
        if parsed.dry_run:
            return self._expected(key, parsed)
        return self.unwrap(self.client.request(self.route, key, values=provided_values(parsed)))

    def _expected(self, key: str, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Return an accelerator as the change would leave it, if its host need not set it up."""
        device = self.unwrap(self.client.request("accelerator-show", key))
        changes = {name: getattr(parsed, name) for name in ("model", "traits")}
        changes = {name: value for name, value in changes.items() if value is not None}
        if parsed.status is not None:
            changes["status"] = "enabled" if parsed.status == "ready" else parsed.status
            changes["status_reason"] = parsed.status_reason
        if parsed.health == "ignore":
            changes["health"] = "ignored"
        if parsed.labels:
            labels = {**(device.get("labels") or {}), **parsed.labels}
            changes["labels"] = {name: value for name, value in labels.items() if value is not None}
        changed = [name for name, value in changes.items() if value != device.get(name)]
        # Their effect depends on what the service does not show.
        changed += ["health"] if parsed.health == "auto" else []
        changed += [f"unit {parsed.free_unit}"] if parsed.free_unit else []
        self.print_note(f"{key}: would change {', '.join(changed) or 'nothing'}.")
        used = (device.get("units") or {}).get("used") or 0
        if used and "status" in changed and changes["status"] == "maintaining":
            self.print_note(f"{key}: {used} unit(s) in use stay with their instances.")
        return {**device, **changes}

    def finish(
        self, updated: dict[str, Mapping[str, Any]], parsed: argparse.Namespace
    ) -> dict[str, Mapping[str, Any]]:
        """Return the accelerators, with ``--wait`` after the end of their set-up."""
        if parsed.dry_run:
            self.print_dry_run()
            return updated
        for key in updated if parsed.wait else ():
            updated[key] = poll(
                partial(self.client.request, "accelerator-show", key),
                lambda device: device.get("status") != _INSTALLING,
                self.client.pause,
            )
        for key, device in updated.items():
            if device.get("status") == FAILED:
                self.report_error(f"{key}: {device.get('status_reason') or 'The set-up failed.'}")
        return updated

    def _select(self, parsed: argparse.Namespace) -> list[str]:
        """Return the UUIDs of the selected accelerators, after the user agreed to the change."""
        pairs = parsed.label or {}
        filters = {
            "hostname": parsed.hostname,
            "driver": parsed.driver,
            "labels": ",".join(f"{key}={value}" for key, value in pairs.items()) or None,
        }
        filters = {name: value for name, value in filters.items() if value is not None}
        if not filters:
            raise exception.CommandFailed(
                reason="No accelerator is given. Give UUIDs, or select accelerators with --host, "
                "--driver or --label."
            )
        description = ", ".join(f"{name} {value}" for name, value in filters.items())
        devices = self.client.request("accelerator-list", values=filters)
        if not devices:
            raise exception.CommandFailed(
                reason=f"No accelerator matches {description}. Run cyborg accelerator-list to see "
                "all accelerators."
            )
        keys = [device["uuid"] for device in devices]
        if parsed.yes or parsed.dry_run:
            return keys
        accelerators = f"{len(keys)} accelerator{'' if len(keys) == 1 else 's'}"
        if not (self.app.stdin.isatty() and self.app.stdout.isatty()):
            raise exception.CommandFailed(
                reason=f"{accelerators} with {description} would change. Give --yes to change "
                "them without a question."
            )
        self.app.stderr.write(f"Change {accelerators} with {description}? [y/N or {len(keys)}] ")
        self.app.stderr.flush()
        if self.app.stdin.readline().strip().lower() not in ("y", "yes", str(len(keys))):
            raise exception.CommandFailed(reason="Nothing was changed.")
        return keys


class AcceleratorDelete(DeleteCommand):
    """Delete created accelerators, and the records of lost ones."""

    route = "accelerator-delete"
    noun = "accelerator"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add_force(parser)
