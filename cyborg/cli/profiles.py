# SPDX-License-Identifier: Apache-2.0
"""Commands for device profiles: named requests for accelerators."""

import argparse
from collections.abc import Mapping
from typing import Any

from cyborg import exception
from cyborg.cli.base import (
    DeleteCommand,
    ListCommand,
    ShowCommand,
    column_paths,
    provided_values,
)


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


class _ProfileWriteCommand(ShowCommand):
    """A command that stores a profile; it shows the profile without the warnings about it."""

    def unwrap(self, answer: Any) -> Mapping[str, Any]:
        """Return the profile; each warning becomes a line of the error output."""
        profile = dict(super().unwrap(answer))
        for warning in profile.pop("warnings", ()):
            self.app.stderr.write(f"Warning: {warning}\n")
        return profile


class ProfileCreate(_ProfileWriteCommand):
    """Create a device profile."""

    route = "profile-create"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="<name>", help="Name of the profile.")
        _add_group(parser, required=True)
        parser.add_argument("--description", help="Description of the profile, a text for users.")
        _add_project(parser, "By default all projects may use it.")

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        return self.unwrap(self.client.request(self.route, values=provided_values(parsed)))


class ProfileUpdate(_ProfileWriteCommand):
    """Change a device profile; existing accelerator requests do not change."""

    route = "profile-update"
    key_name, key_help = ProfileShow.key_name, ProfileShow.key_help

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--name", help="New name of the profile.")
        _add_group(parser, required=False)
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
        if not values.keys() & {"name", "groups", "description", "projects"}:
            raise exception.CommandFailed(
                reason="No change is given. Give --name, --group, --description, "
                "--no-description, --project or --public."
            )
        return self.unwrap(self.client.request(self.route, parsed.key, values=values))


class ProfileDelete(DeleteCommand):
    """Delete device profiles."""

    route = "profile-delete"
    noun = "profile"


def _add_group(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--group",
        dest="groups",
        metavar="KEY=VALUE[,KEY=VALUE...]",
        type=_parse_group,
        action="append",
        required=required,
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
