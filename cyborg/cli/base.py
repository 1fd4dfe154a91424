# SPDX-License-Identifier: Apache-2.0
"""What commands are made of: lists, single things, removals and long work."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

from cliff.command import Command
from cliff.lister import Lister
from cliff.show import ShowOne

from cyborg import exception
from cyborg.cli import terminal, waiting
from cyborg.cli.client import Client
from cyborg.cli.layout import FittedTable
from cyborg.cli.routes import PAGING, ROUTES

#: The attribute of a program's client manager that is the Client.
ATTRIBUTE = "cyborg"
#: What else not waiting means where hosts may come later.
_FOLLOWS = "; a host whose agent is down follows when the agent is back"


def shown(*same: str, **places: str) -> Mapping[str, str]:
    """What a list shows, and where it is: under its own name, or at a place in an object."""
    return {name: name for name in same} | places


class Spoken(Command):
    """A command that talks to the service.

    ``route`` is its name among the routes. ``status`` is what it ends with when it ran through.
    """

    app: Any
    route: ClassVar[str]
    status = 0

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The options of every such command, and its own."""
        parser = super().get_parser(prog_name)
        self.arguments(parser)
        return parser

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments; their names are those of query and body."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run, and end with what was found to be wrong while running."""
        return super().run(parsed_args) or self.status

    @property
    def client(self) -> Client:
        """The service."""
        found: Client = getattr(self.app.client_manager, ATTRIBUTE)
        return found

    def complain(self, sentence: str) -> None:
        """Tell what is wrong; the command goes on, and ends with 1."""
        self.status = 1
        self.app.stderr.write(f"{sentence}\n")

    def say(self, line: str) -> None:
        """Tell about progress, beside the output."""
        if self.app.options.verbose_level > 0:
            self.app.stderr.write(f"{line}\n")
            self.app.stderr.flush()

    def tell(self, result: Mapping[str, Any]) -> None:
        """Tell how far long work is on one host."""
        self.say(terminal.result_line(result, colours=terminal.coloured(self.app.stderr)))

    def cells(self, parsed: argparse.Namespace, values: Mapping[str, Any]) -> list[Any]:
        """Values as the chosen format should get them."""
        colours = terminal.coloured(self.app.stdout)
        return [
            terminal.cell(name, value, parsed.formatter, colours=colours)
            for name, value in values.items()
        ]


class List(Spoken, Lister):
    """A list; ``columns`` maps what is shown to where it is, ``more`` what ``--long`` adds.

    A dot in a place leads into an object, or into each of a list of them.
    """

    columns: ClassVar[Mapping[str, str]]
    more: ClassVar[Mapping[str, str]] = {}
    #: Columns that stay columns on a narrow terminal; others move below the first one.
    essential: ClassVar[Sequence[str]] = ()
    #: What an empty list means, and what to do next.
    empty: ClassVar[str]

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Paging where the list has pages, and ``--long`` where there is more to see."""
        parser = super().get_parser(prog_name)
        if "limit" in ROUTES[self.route].query:
            parser.add_argument("--limit", metavar="N", type=count, help="show at most N")
            parser.add_argument("--marker", metavar="UUID", help="begin after this one")
        if self.more:
            parser.add_argument("--long", action="store_true", help="show more columns")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Ask for the list."""
        objects = self.client.ask(self.route, given=vars(parsed_args))
        if not objects:
            self.say(self._nothing(parsed_args))
        columns = {**self.columns, **(self.more if getattr(parsed_args, "long", False) else {})}
        rows = [
            self.cells(parsed_args, {name: _at(item, place) for name, place in columns.items()})
            for item in objects
        ]
        return list(columns), rows

    def produce_output(
        self,
        parsed_args: argparse.Namespace,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
    ) -> int:
        """Write the list; a table fits the terminal."""
        if parsed_args.formatter == "table":
            self.formatter = FittedTable(self.essential)
        return super().produce_output(parsed_args, column_names, data)

    def _nothing(self, parsed: argparse.Namespace) -> str:
        """What to do about an empty list."""
        if getattr(parsed, "marker", None):
            return "There are no more."
        filters = set(ROUTES[self.route].query) - {*PAGING, "sort_key", "sort_dir"}
        if any(getattr(parsed, name, None) is not None for name in filters):
            return "Nothing matches. Leave filters out to see more."
        return self.empty


class Show(Spoken, ShowOne):
    """One thing, with whatever the service says about it."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Ask for the thing, or change it."""
        return self.rendered(parsed_args, self.fetch(parsed_args))

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """The thing; by default the one with the key of the command line."""
        return self.one(self.client.ask(self.route, parsed.key))

    def one(self, found: Any) -> Mapping[str, Any]:
        """The thing itself; an answer without a body shows nothing."""
        return found or {}

    def rendered(
        self, parsed: argparse.Namespace, thing: Mapping[str, Any]
    ) -> tuple[Sequence[str], Sequence[Any]]:
        """Names and values, without the links that are for programs."""
        values = {name: value for name, value in thing.items() if name != "links"}
        return list(values), self.cells(parsed, values)

    def produce_output(
        self,
        parsed_args: argparse.Namespace,
        column_names: Sequence[str],
        data: Any,
    ) -> int:
        """Write the object; a table fits the terminal."""
        if parsed_args.formatter == "table":
            self.formatter = FittedTable()
        return super().produce_output(parsed_args, column_names, data)


class Several(Show):
    """A change of one object or of several; an object that refuses it does not stop the others.

    One object is shown whole. Of several the status is shown, by UUID.
    """

    def keys(self, parsed: argparse.Namespace) -> Sequence[str]:
        """The keys of the objects."""
        keys: list[str] = parsed.keys
        return list(dict.fromkeys(keys))

    def change(self, key: str, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Change one object and return it; raises CommandFailed."""
        raise NotImplementedError

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Change all of them."""
        keys = self.keys(parsed)
        changed: dict[str, Mapping[str, Any]] = {}
        for key in keys:
            try:
                changed[key] = self.change(key, parsed)
            except exception.CommandFailed as fault:
                if len(keys) == 1:
                    raise
                self.complain(f"{key}: {fault}")
        changed = self.finished(changed, parsed)
        if len(keys) == 1:
            return next(iter(changed.values()))
        return {str(item.get("uuid", key)): item.get("status") for key, item in changed.items()}

    def finished(
        self, changed: dict[str, Mapping[str, Any]], parsed: argparse.Namespace
    ) -> dict[str, Mapping[str, Any]]:
        """The changed objects, once their changes are done."""
        return changed


class Delete(Spoken):
    """Things that go one after the other; one that cannot does not keep the others."""

    noun: ClassVar[str]

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The keys."""
        parser.add_argument("keys", metavar=f"<{self.noun}>", nargs="+", help="which ones")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Remove each of them."""
        for key in parsed_args.keys:
            try:
                self.remove(key)
            except exception.CommandFailed as fault:
                self.complain(f"{key}: {fault}")

    def remove(self, key: str) -> None:
        """Remove one."""
        self.client.ask(self.route, key)


class Long(Show):
    """Work that takes its time: seen to its end, unless that is not wanted."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """``--no-wait`` and the id that makes repeating safe."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--no-wait",
            dest="wait",
            action="store_const",
            const="true",
            help=f"return at once{_FOLLOWS if 'wait' in ROUTES[self.route].query else ''}",
        )
        parser.add_argument(
            "--operation-id",
            metavar="UUID",
            type=uuid,
            help="an id of your own for the operation: the same id begins it only once",
        )
        return parser

    def keys(self, parsed: argparse.Namespace) -> tuple[str, ...]:
        """What the path needs."""
        return (parsed.key,)

    def request(self, parsed: argparse.Namespace) -> tuple[str, Mapping[str, Any]]:
        """The name of the route, and what goes into query and body."""
        return self.route, given(parsed)

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """The operation, ended if it was waited for."""
        route, values = self.request(parsed)
        operation: Mapping[str, Any] = self.client.begin(
            route, *self.keys(parsed), given=values, operation=parsed.operation_id
        )
        if not parsed.wait:
            operation = self._followed(operation)
        for sentence in waiting.faults_of(operation):
            self.complain(sentence)
        return operation

    def _followed(self, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return waiting.follow(self.client, operation, self.tell)
        except KeyboardInterrupt:
            self.say(f"The work goes on: see operation {operation['uuid']}.")
            raise


def given(parsed: argparse.Namespace) -> dict[str, Any]:
    """The arguments that have a value."""
    return {name: value for name, value in vars(parsed).items() if value is not None}


def count(text: str) -> int:
    """A number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1")
    return int(text)


def uuid(text: str) -> str:
    """A UUID in its usual form."""
    try:
        return str(UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no UUID") from None


class Unset(argparse.Action):
    """``--unset-x key``, any number of times: null for it in the object that Pair fills."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option: str | None = None,
    ) -> None:
        """Add one key; one that is set, too, is a mistake."""
        _add(self, namespace, values, None)


class Pair(argparse.Action):
    """``--x key=value``, any number of times, as one object."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option: str | None = None,
    ) -> None:
        """Add one pair; a key that is given twice is a mistake."""
        name, equals, value = values.partition("=")
        if not equals or not name:
            raise argparse.ArgumentError(self, f"{values} is not of the form key=value")
        _add(self, namespace, name, value)


def _add(
    action: argparse.Action, namespace: argparse.Namespace, name: str, value: str | None
) -> None:
    pairs = dict(getattr(namespace, action.dest) or {})
    if name in pairs:
        raise argparse.ArgumentError(action, f"{name} is given twice")
    setattr(namespace, action.dest, pairs | {name: value})


def _at(thing: Mapping[str, Any], place: str) -> Any:
    found: Any = thing
    for name in place.split("."):
        if isinstance(found, list):
            found = [_at(one, name) for one in found]
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    return found
