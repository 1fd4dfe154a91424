# SPDX-License-Identifier: Apache-2.0
"""Device profiles: named wishes for accelerators."""

import argparse
from collections.abc import Mapping
from typing import Any

from cyborg import exception
from cyborg.cli.base import Delete, List, Show, given, shown


class ProfileList(List):
    """List device profiles."""

    route = "profile-list"
    columns = shown("uuid", "name", "groups", "description")
    more = shown("created_at", "updated_at")
    essential = ("name", "groups")
    empty = "There are no device profiles. Create one with cyborg profile-create."

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Filters."""
        parser.add_argument("--name", help="only this one, or several with commas between")


class ProfileShow(Show):
    """Show one device profile."""

    route = "profile-show"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one."""
        parser.add_argument("key", metavar="<profile>", help="its name or UUID")


class _ProfileWrite(Show):
    """A command that stores a profile, and shows it without the warnings that came with it."""

    def one(self, found: Any) -> Mapping[str, Any]:
        """The profile; each warning is a line beside the output."""
        profile = dict(super().one(found))
        for sentence in profile.pop("warnings", ()):
            self.app.stderr.write(f"Warning: {sentence}\n")
        return profile


class ProfileCreate(_ProfileWrite):
    """Create a device profile."""

    route = "profile-create"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Name and groups."""
        parser.add_argument("name", metavar="<name>", help="its name")
        _add_group(parser, required=True)
        parser.add_argument("--description", help="what it is for")

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """The new profile."""
        return self.one(self.client.ask(self.route, given=given(parsed)))


class ProfileUpdate(_ProfileWrite):
    """Change a device profile; requests that were made from it keep what they asked for."""

    route = "profile-update"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which one, and what about it."""
        parser.add_argument("key", metavar="<profile>", help="its name or UUID")
        parser.add_argument("--name", help="its new name")
        _add_group(parser, required=False)
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--description", help="what it is for")
        group.add_argument(
            "--no-description", action="store_true", help="take the description away"
        )

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """The profile as it is now."""
        wish = given(parsed)
        if parsed.no_description:
            wish["description"] = None
        if not wish.keys() & {"name", "groups", "description"}:
            raise exception.CommandFailed(
                reason="Nothing is to be changed: give --name, --group, --description or "
                "--no-description."
            )
        return self.one(self.client.ask(self.route, parsed.key, given=wish))


class ProfileDelete(Delete):
    """Delete device profiles."""

    route = "profile-delete"
    noun = "profile"


def _add_group(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--group",
        dest="groups",
        metavar="KEY=VALUE[,KEY=VALUE...]",
        type=_group,
        action="append",
        required=required,
        help="a group, for example resources:FPGA=1,trait:CUSTOM_FAKE_DEVICE=required; may be "
        "repeated",
    )


def _group(text: str) -> dict[str, str]:
    group: dict[str, str] = {}
    for pair in text.split(","):
        key, equals, value = pair.strip().partition("=")
        if not equals or not key:
            raise argparse.ArgumentTypeError(f"{pair} is not of the form key=value")
        if key in group:
            raise argparse.ArgumentTypeError(f"{key} is given twice")
        group[key] = value
    return group
