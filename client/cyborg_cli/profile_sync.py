# SPDX-License-Identifier: Apache-2.0
"""Commands that keep device profiles in files: profile-apply and profile-export."""

import argparse
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cyborg_cli import exception, terminal
from cyborg_cli.base import BaseCommand, add_dry_run
from cyborg_cli.profile_files import Profile, dump, read
from cyborg_cli.text import escaped

#: The exit status of a command that has changed profiles, or would change them.
CHANGED: Final = 3
_COLOURS: Final = (
    ("---", terminal.BOLD),
    ("+++", terminal.BOLD),
    ("@@", terminal.CYAN),
    ("-", terminal.RED),
    ("+", terminal.GREEN),
)
_NOWHERE: Final = "/dev/null"


@dataclass(frozen=True)
class _Step:
    """The change of one profile; None: there is none before it, or after it."""

    name: str
    stored: Profile | None
    desired: Profile | None

    @property
    def word(self) -> str:
        """Return what the step does, as a past participle."""
        if self.stored is None:
            return "created"
        return "deleted" if self.desired is None else "updated"

    def diff(self) -> Iterator[str]:
        """Yield the lines of a unified diff from the service to the files."""
        yield from difflib.unified_diff(
            self.stored.document().splitlines() if self.stored else (),
            self.desired.document().splitlines() if self.desired else (),
            f"service/{self.name}" if self.stored else _NOWHERE,
            self.desired.place if self.desired else _NOWHERE,
            lineterm="",
        )


class ProfileApply(BaseCommand):
    """Make device profiles equal to YAML files; exit status 0: no change, 3: changes, 1: failed."""

    route = "profile-apply"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "-f",
            "--file",
            dest="paths",
            metavar="PATH",
            action="append",
            required=True,
            help="File with profiles as YAML documents, or directory whose files with the suffix "
            ".yaml or .yml have them. Repeat the option for more.",
        )
        add_dry_run(parser)
        parser.add_argument(
            "--prune",
            action="store_true",
            help="Delete the profiles that no document names. Those to which accelerator requests "
            "refer stay, and the command fails.",
        )
        parser.add_argument(
            "--yes",
            action="store_true",
            help="Delete profiles without a question. Use it in scripts.",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Print the differences, then make the changes one by one; a failure does not stop it."""
        desired = read(parsed_args.paths)
        if not desired:
            # A wrong path must not delete all profiles.
            raise exception.CommandFailed(
                reason=f"There is no profile in {', '.join(parsed_args.paths)}."
            )
        listed = self.client.read_list(self.route, {})
        stored = {profile["name"]: Profile.of_answer(profile) for profile in listed}
        steps = _steps(stored, desired, prune=parsed_args.prune)
        colours = terminal.supports_colours(self.app.stdout)
        for step in steps:
            for line in step.diff():
                self.app.stdout.write(f"{_coloured(escaped(line)) if colours else escaped(line)}\n")
        if not parsed_args.dry_run:
            self._confirm(steps, yes=parsed_args.yes)
        for step in steps:
            self._take(step, dry_run=parsed_args.dry_run)
        if steps:
            self.status = self.status or CHANGED
        else:
            self.print_note(f"Nothing to change: {len(desired)} profile(s) are as in the files.")

    def _confirm(self, steps: Sequence[_Step], *, yes: bool) -> None:
        """Ask before profiles are deleted; raises CommandFailed, before any change."""
        names = [step.name for step in steps if step.desired is None]
        if not names or yes:
            return
        if not (self.app.stdin.isatty() and self.app.stdout.isatty()):
            raise exception.CommandFailed(
                reason=f"--prune would delete {len(names)} profile(s): {', '.join(names)}. Give "
                "--yes to delete them without a question. Nothing was changed."
            )
        self.app.stderr.write(f"Delete {len(names)} profile(s): {', '.join(names)}? [y/N] ")
        self.app.stderr.flush()
        if self.app.stdin.readline().strip().lower() not in ("y", "yes"):
            raise exception.CommandFailed(reason="Nothing was changed.")

    def _take(self, step: _Step, *, dry_run: bool) -> None:
        name = escaped(step.name)
        if dry_run:
            self.app.stdout.write(f"{name}: would be {step.word}\n")
            return
        try:
            warnings = self._send(step)
        except exception.CommandFailed as error:
            self.report_error(f"{step.name}: not {step.word}: {error}")
            return
        self.app.stdout.write(f"{name}: {step.word}\n")
        for warning in warnings:
            self.app.stderr.write(f"Warning: {name}: {escaped(warning)}\n")

    def _send(self, step: _Step) -> Sequence[str]:
        """Send the request of a change; return the warnings of the service."""
        if step.desired is None:
            self.client.request("profile-delete", step.name)
            return ()
        if step.stored is None:
            values = {
                key: value for key, value in step.desired.members().items() if value is not None
            }
            answer = self.client.request("profile-create", values=values)
        else:
            # Not a deletion and a new profile: accelerator requests may refer to this one.
            changes = step.desired.changes(step.stored)
            answer = self.client.request("profile-update", step.name, values=changes)
        warnings: Sequence[str] = (answer or {}).get("warnings") or ()
        return warnings


class ProfileExport(BaseCommand):
    """Write device profiles as the YAML documents that profile-apply reads."""

    route = "profile-export"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "names",
            metavar="<name>",
            nargs="*",
            help="Names of the profiles (default: all that you can see).",
        )
        parser.add_argument(
            "-o",
            "--output",
            metavar="FILE",
            type=Path,
            help="File to write (default: the output of the command). It is replaced.",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Write the profiles by name; raises CommandFailed if one does not exist."""
        filters: dict[str, Any] = {}
        if parsed_args.names:
            filters["name"] = ",".join(parsed_args.names)
        listed = self.client.read_list(self.route, filters)
        profiles = list(map(Profile.of_answer, listed))
        missing = set(parsed_args.names) - {profile.name for profile in profiles}
        if missing:
            raise exception.CommandFailed(
                reason=f"There is no profile with the name {', '.join(sorted(missing))}. Nothing "
                "was written. Run cyborg profile-list to see all."
            )
        text = dump(profiles)
        if parsed_args.output is None:
            self.app.stdout.write(text)
            return
        try:
            parsed_args.output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise exception.CommandFailed(
                reason=f"File {parsed_args.output} cannot be written: {error.strerror}."
            ) from error


def _steps(stored: dict[str, Profile], desired: dict[str, Profile], *, prune: bool) -> list[_Step]:
    """Return the changes by name, the deletions last."""
    steps = [
        _Step(name, stored.get(name), profile)
        for name, profile in sorted(desired.items())
        if name not in stored or profile.changes(stored[name])
    ]
    if prune:
        steps += [
            _Step(name, profile, None)
            for name, profile in sorted(stored.items())
            if name not in desired
        ]
    return steps


def _coloured(line: str) -> str:
    """Return a line of a diff in its colour."""
    return next(
        (terminal.coloured(line, colour) for start, colour in _COLOURS if line.startswith(start)),
        line,
    )
