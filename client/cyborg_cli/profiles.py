# SPDX-License-Identifier: Apache-2.0
"""Commands for device profiles: named requests for accelerators."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from cyborg_cli import exception
from cyborg_cli.base import (
    DeleteCommand,
    ListCommand,
    ShowCommand,
    TableCommand,
    add_dry_run,
    column_paths,
    positive_integer,
    provided_values,
    uuid_string,
)
from cyborg_cli.device_groups import offer_of, profile_name
from cyborg_cli.text import escaped

#: The members of a profile that commands set.
_MEMBERS: Final = ("name", "groups", "description", "projects")


class ProfileList(ListCommand):
    """List device profiles."""

    route = "profile-list"
    columns = column_paths("uuid", "name", "groups", "satisfiable", "description")
    long_columns = column_paths("projects", "created_at", "updated_at")
    essential = ("name", "groups")
    empty_message = "There are no device profiles. Create one with cyborg profile-create."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--name",
            help="Show only the profile with this name, or with one of several names "
            "that are separated by commas.",
        )


class ProfileShow(ShowCommand):
    """Show one device profile."""

    route = "profile-show"
    key_name, key_help = "profile", "Name or UUID of the profile."


class ProfileExplain(TableCommand):
    """Explain why servers with a device profile get their accelerators now, or do not."""

    route = "profile-explain"
    columns = column_paths(
        "step",
        "group",
        asked="subject",
        hosts_left="hosts",
        units_left="units",
        reason="reason",
    )
    essential = ("asked", "hosts_left", "units_left", "reason")
    by_host: ClassVar[Mapping[str, str]] = column_paths(
        "host",
        "step",
        "reason",
        total="desired.total",
        reserved="desired.reserved",
        published_total="published.total",
        published_reserved="published.reserved",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("key", metavar="<profile>", help="Name or UUID of the profile.")
        parser.add_argument(
            "--flavor",
            metavar="<flavor>",
            help="Name or ID of a flavor: hosts without room for its CPUs and memory fall away, "
            "and Placement is asked for its disk as well.",
        )
        parser.add_argument("--host", metavar="<host>", help="Explain it for this host only.")
        parser.add_argument(
            "--instance",
            metavar="<server>",
            help="UUID of a server: say as well which of its last accelerator requests failed.",
        )
        parser.add_argument(
            "--hosts",
            action="store_true",
            help="Print a row for each host instead: the step at which it fell away, and the "
            "units that Placement shall show and those that the agent has published.",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Request the explanation; return the columns and rows of its steps or hosts."""
        given = self.client.request(
            self.route, parsed_args.key, values=provided_values(parsed_args)
        )
        self.print_note(f"{'Fits' if given['fits'] else 'Does not fit'}: {given['summary']}")
        for failure in given["failures"]:
            self.print_note(
                f"{failure['at']}: {failure['action']} of request {failure['subject_uuid']}: "
                f"{failure['reason']} ({failure['request_id']})"
            )
        for note in given["notes"]:
            self.print_note(f"Note: {note}")
        if parsed_args.hosts:
            return self.table(parsed_args, self.by_host, given.get("hosts", ()))
        return self.table(parsed_args, self.columns, given.get("steps", ()))


class _ProfileWriteCommand(ShowCommand):
    """A command that stores a profile; it shows the profile without the warnings about it."""

    def unwrap(self, answer: Any) -> Mapping[str, Any]:
        """Return the profile; each warning becomes a line of the error output."""
        profile = dict(super().unwrap(answer))
        for warning in profile.pop("warnings", ()):
            self.print_warning(warning)
        return profile

    def print_warning(self, warning: str) -> None:
        """Write a warning to the error output."""
        self.app.stderr.write(f"Warning: {escaped(warning)}\n")


class ProfileCreate(_ProfileWriteCommand):
    """Create a device profile."""

    route = "profile-create"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "name",
            metavar="<name>",
            nargs="?",
            help="Name of the profile. With --from-device it can be omitted: the name is the model "
            "of the accelerator then, with -x and the number in --count.",
        )
        groups = parser.add_mutually_exclusive_group(required=True)
        _add_group(groups)
        groups.add_argument(
            "--from-device",
            metavar="UUID",
            type=uuid_string,
            help="Accelerator whose units the profile requests: by their resource class, and by "
            "the traits that name the product.",
        )
        parser.add_argument(
            "--count",
            metavar="N",
            type=positive_integer,
            help="With --from-device: number of units (default: as few as a guest can get). They "
            "are one group if one resource provider has so many, and otherwise several groups.",
        )
        parser.add_argument("--description", help="Description of the profile, a text for users.")
        _add_project(parser, "By default all projects may use it.")
        add_dry_run(parser)

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        values = provided_values(parsed)
        if parsed.from_device:
            values |= self._of_device(parsed)
        elif parsed.count:
            raise exception.CommandFailed(reason="--count can be used with --from-device only.")
        if not values.get("name"):
            raise exception.CommandFailed(
                reason="No name is given. Only with --from-device it can be omitted."
            )
        if parsed.dry_run:
            self.print_dry_run()
            return {name: values[name] for name in _MEMBERS if name in values}
        return self.unwrap(self.client.request(self.route, values=values))

    def _of_device(self, parsed: argparse.Namespace) -> dict[str, Any]:
        """Return name and groups of a profile for units of an accelerator."""
        device = self.client.request("accelerator-show", parsed.from_device)
        offer = offer_of(device)
        if not offer.product_traits:
            self.print_warning(
                f"The driver of the accelerator names no trait of its product. The profile takes "
                f"any unit of {offer.resource_class}."
            )
        name = parsed.name or profile_name(device, parsed.count)
        return {"name": name, "groups": offer.groups(parsed.count)}


class ProfileUpdate(_ProfileWriteCommand):
    """Change a device profile; existing accelerator requests do not change."""

    route = "profile-update"
    key_name, key_help = ProfileShow.key_name, ProfileShow.key_help

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add_dry_run(parser)
        parser.add_argument("--name", help="New name of the profile.")
        _add_group(parser)
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--description", help="New description of the profile.")
        group.add_argument("--no-description", action="store_true", help="Remove the description.")
        access = parser.add_mutually_exclusive_group()
        _add_project(access, "The option replaces the projects that the profile has.")
        access.add_argument(
            "--public", action="store_true", help="Let all projects use the profile."
        )

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        values = provided_values(parsed)
        if parsed.no_description:
            values["description"] = None
        if parsed.public:
            values["projects"] = None
        if not values.keys() & set(_MEMBERS):
            raise exception.CommandFailed(
                reason="No change is given. Give --name, --group, --description, "
                "--no-description, --project or --public."
            )
        if parsed.dry_run:
            stored = self.client.request("profile-show", parsed.key)
            changes = {name: values[name] for name in _MEMBERS if name in values}
            changed = [name for name in changes if changes[name] != stored.get(name)]
            self.print_note(f"Would change: {', '.join(changed) or 'nothing'}.")
            self.print_dry_run()
            # Whether the hardware can satisfy the new groups is not known here.
            kept = {name: value for name, value in stored.items() if name != "satisfiable"}
            return {**kept, **changes}
        return self.unwrap(self.client.request(self.route, parsed.key, values=values))


class ProfileDelete(DeleteCommand):
    """Delete device profiles."""

    route = "profile-delete"
    noun = "profile"


def _add_group(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--group",
        dest="groups",
        metavar="KEY=VALUE[,KEY=VALUE...]",
        type=_parse_group,
        action="append",
        help="A group of the profile, for example "
        "resources:FPGA=1,trait:CUSTOM_FAKE_DEVICE=required. Repeat the option for more groups.",
    )


def _add_project(parser: argparse._ActionsContainer, otherwise: str) -> None:
    parser.add_argument(
        "--project",
        dest="projects",
        metavar="<project>",
        action="append",
        help="ID of a project that may use the profile. Repeat the option for more projects: the "
        f"profile is private to them. {otherwise}",
    )


def _parse_group(text: str) -> dict[str, str]:
    group: dict[str, str] = {}
    for pair in text.split(","):
        key, equals, value = pair.strip().partition("=")
        if not equals or not key:
            raise argparse.ArgumentTypeError(f"{pair!r} does not have the form KEY=VALUE")
        if key in group:
            raise argparse.ArgumentTypeError(f"key {key!r} is given twice")
        group[key] = value
    return group
