# SPDX-License-Identifier: Apache-2.0
"""Base classes of the commands: lists, single objects, deletions and operations."""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final
from uuid import UUID

from cliff.command import Command
from cliff.lister import Lister
from cliff.show import ShowOne

from cyborg_cli import cells, exception, terminal
from cyborg_cli.client import Client, failures, follow
from cyborg_cli.layout import FittedTable
from cyborg_cli.routes import PAGING, ROUTES
from cyborg_cli.text import escaped

#: The name of the attribute of cliff's client manager that holds the Client.
CLIENT_ATTRIBUTE = "cyborg"


def column_paths(*names: str, **paths: str) -> Mapping[str, str]:
    """Return the columns of a list, each with its path in an object of the answer.

    A column of ``names`` has its own name as path.
    """
    return {name: name for name in names} | paths


#: Seconds between two refreshes of a list at least, and if the user must not see events.
_REFRESH_AFTER: Final = 1.0
_REFRESH_EVERY: Final = 5.0
#: The units of a duration.
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class BaseCommand(Command):
    """A command that sends requests to the accelerator service.

    ``route`` is the key of its first request in ROUTES. ``status`` is the exit status of a command
    that raised no error.
    """

    app: Any
    route: ClassVar[str]
    status = 0

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return cliff's parser with the arguments of this command."""
        parser = super().get_parser(prog_name)
        self.add_arguments(parser)
        return parser

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments; each ``dest`` is a name of the query or of the body."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; return what cliff returns, or ``status`` if that is 0."""
        return super().run(parsed_args) or self.status

    @property
    def client(self) -> Client:
        """Return the client of the accelerator service."""
        client: Client = getattr(self.app.client_manager, CLIENT_ATTRIBUTE)
        return client

    def report_error(self, message: str) -> None:
        """Write an error message and set the exit status to 1; the command continues."""
        self.status = 1
        self.app.stderr.write(f"{escaped(message)}\n")

    def print_note(self, line: str) -> None:
        """Write a line to the error output, unless the user gave ``--quiet``."""
        if self.app.options.verbose_level > 0:
            self.app.stderr.write(f"{line}\n")
            self.app.stderr.flush()

    def print_dry_run(self) -> None:
        """Say that the output is that of a dry run."""
        self.print_note("Dry run: nothing was changed.")

    def print_result(self, result: Mapping[str, Any]) -> None:
        """Write a line about the state of an operation on one host."""
        colours = terminal.supports_colours(self.app.stderr)
        self.print_note(cells.result_line(cells.escaped_value(result), colours=colours))

    def format_cells(self, parsed: argparse.Namespace, values: Mapping[str, Any]) -> list[Any]:
        """Return the values, by column, in the form that the selected formatter needs."""
        colours = terminal.supports_colours(self.app.stdout)
        return [
            cells.format_cell(name, value, parsed.formatter, colours=colours)
            for name, value in values.items()
        ]


class TableCommand(BaseCommand, Lister):
    """A command that prints a table of objects.

    ``columns`` maps each column to its path in an object. A dot in a path leads into a nested
    object, or into each object of a nested list.
    """

    columns: ClassVar[Mapping[str, str]]
    #: Whether the table is drawn in place of the one before.
    redraws = False
    #: Columns that stay columns on a narrow terminal; others move below the first column.
    essential: ClassVar[Sequence[str]] = ()

    def table(
        self,
        parsed: argparse.Namespace,
        columns: Mapping[str, str],
        objects: Iterable[Mapping[str, Any]],
    ) -> tuple[Sequence[str], Iterable[Any]]:
        """Return the columns and the rows of objects."""
        rows = [
            self.format_cells(
                parsed, {name: _value_at(item, path) for name, path in columns.items()}
            )
            for item in objects
        ]
        return list(columns), rows

    def produce_output(
        self,
        parsed_args: argparse.Namespace,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
    ) -> int:
        """Write the list; a table is fitted to the terminal."""
        if parsed_args.formatter == "table":
            self.formatter = FittedTable(self.essential)
        if self.redraws:
            self.app.stdout.write(terminal.CLEAR)
        return super().produce_output(parsed_args, column_names, data)

    def redraw(self, parsed_args: argparse.Namespace, ticks: Iterable[object]) -> int:
        """Draw the table at each tick; an error that may pass leaves the last one.

        ``run`` returns only when there are no more ticks, or with an error.
        """
        self.redraws = True
        status = 0
        for _ in ticks:
            try:
                status = super().run(parsed_args)
            except exception.CommandFailed as error:
                if not error.transient:
                    raise
                self.print_note(f"{error} Trying again.")
            self.app.stdout.flush()
        return status


class ListCommand(TableCommand):
    """A list of objects; ``long_columns`` are those that ``--long`` adds."""

    long_columns: ClassVar[Mapping[str, str]] = {}
    #: The form of the identifier that ``--marker`` takes.
    marker: ClassVar[str] = "UUID"
    #: Whether ``--watch`` refreshes the list.
    can_watch: ClassVar[bool] = True
    #: What to print when the service has no such object: that there is none, and what to do next.
    empty_message: ClassVar[str]

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with paging and ``--long``, where the list supports them."""
        parser = super().get_parser(prog_name)
        if "limit" in ROUTES[self.route].query:
            parser.add_argument(
                "--limit",
                metavar="N",
                type=positive_integer,
                help="Maximum number of rows; without it the command prints the whole list. Use "
                "it with --marker to read a long list page by page.",
            )
            parser.add_argument(
                "--marker",
                metavar=self.marker,
                help="Start after the row with this identifier: the last row of the page before.",
            )
        if self.long_columns:
            parser.add_argument("--long", action="store_true", help="Show additional columns.")
        if self.can_watch:
            parser.add_argument(
                "--watch",
                action="store_true",
                help="Show the list again whenever something has changed, until the command is "
                "interrupted. Only on a terminal.",
            )
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Print the list; with ``--watch`` after each event."""
        if not getattr(parsed_args, "watch", False):
            return super().run(parsed_args)
        if not self.app.stdout.isatty():
            raise exception.CommandFailed(
                reason="--watch draws the list again and again, which is for terminals only. "
                "cyborg watch prints events as lines."
            )
        return self.redraw(parsed_args, self._changes())

    def _changes(self) -> Iterator[object]:
        """Yield when something may have changed; regularly to users who must not see events."""
        try:
            for _ in self.client.follow_events({}, self.print_note):
                yield None
                self.client.pause(_REFRESH_AFTER)
        except exception.CommandFailed as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
        while True:
            yield None
            self.client.pause(_REFRESH_EVERY)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Request the list; return the columns and the rows."""
        objects = self.objects(parsed_args)
        if not objects:
            filters = set(ROUTES[self.route].query) - {*PAGING, "sort_key", "sort_dir", "group_by"}
            if getattr(parsed_args, "marker", None):
                self.print_note("There are no more rows.")
            elif any(getattr(parsed_args, name, None) is not None for name in filters):
                self.print_note("Nothing matches the filters. Remove filters to see more.")
            else:
                self.print_note(self.empty_message)
        long_format = getattr(parsed_args, "long", False)
        columns = {**self.columns, **(self.long_columns if long_format else {})}
        return self.table(parsed_args, columns, self.shown(objects, parsed_args))

    def objects(self, parsed: argparse.Namespace) -> Sequence[Mapping[str, Any]]:
        """Request the list; return its objects."""
        return self.client.read_list(self.route, vars(parsed))

    def shown(
        self, objects: Sequence[Mapping[str, Any]], _parsed: argparse.Namespace
    ) -> Sequence[Mapping[str, Any]]:
        """Return the objects to print, as the columns show them."""
        return objects


class ShowCommand(BaseCommand, ShowOne):
    """One object with all fields that the service returns.

    ``key_name`` and ``key_help`` describe the key of the object on the command line.
    """

    key_name: ClassVar[str]
    key_help: ClassVar[str]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("key", metavar=f"<{self.key_name}>", help=self.key_help)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Request or change the object; return its names and values without the API's links."""
        fields = self.fetch(parsed_args)
        values = {name: value for name, value in fields.items() if name != "links"}
        return list(map(escaped, values)), self.format_cells(parsed_args, values)

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Return the object; by default the one whose key is on the command line."""
        return self.unwrap(self.client.request(self.route, parsed.key))

    def unwrap(self, answer: Any) -> Mapping[str, Any]:
        """Return the object in an answer; empty for an answer without a body."""
        return answer or {}

    def produce_output(
        self,
        parsed_args: argparse.Namespace,
        column_names: Sequence[str],
        data: Any,
    ) -> int:
        """Write the object; a table is fitted to the terminal."""
        if parsed_args.formatter == "table":
            self.formatter = FittedTable()
        return super().produce_output(parsed_args, column_names, data)


class NamedShow(ShowCommand):
    """One object, by its UUID or by a name that no other object has.

    ``list_route`` lists the objects; their names are in ``name_field``, which is also the filter of
    the list if it has such a filter.
    """

    list_route: ClassVar[str]
    name_field: ClassVar[str] = "name"

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Return the object."""
        try:
            uuid = str(UUID(parsed.key))
        except ValueError:
            uuid = self._uuid_of(parsed.key)
        return self.unwrap(self.client.request(self.route, uuid))

    def _uuid_of(self, name: str) -> str:
        filters = {self.name_field: name}
        if self.name_field not in ROUTES[self.list_route].query:
            filters = {}
        listed = self.client.read_list(self.list_route, filters)
        matches = [item for item in listed if item.get(self.name_field) == name]
        if not matches:
            raise exception.CommandFailed(
                reason=f"No {self.key_name} has the UUID or the name {name}. Run cyborg "
                f"{self.list_route} to see all."
            )
        if len(matches) > 1:
            choices = ", ".join(
                f"{item.get('host', item.get('hostname'))} has {item['uuid']}" for item in matches
            )
            raise exception.CommandFailed(
                reason=f"Several hosts have the {self.key_name} {name}. Give the UUID of one of "
                f"them: {choices}."
            )
        return str(matches[0]["uuid"])


class MultipleTargets(TableCommand):
    """A change of one or more objects; the failure of one object does not stop the others.

    The command prints a row for each changed object.
    """

    def unwrap(self, answer: Any) -> Mapping[str, Any]:
        """Return the object in an answer; empty for an answer without a body."""
        return answer or {}

    def target_keys(self, parsed: argparse.Namespace) -> Sequence[str]:
        """Return the keys of the objects, each once."""
        keys: list[str] = parsed.keys
        return list(dict.fromkeys(keys))

    def update(self, key: str, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Change one object and return it; raises CommandFailed."""
        raise NotImplementedError

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Change the objects; return the columns and a row for each of them."""
        keys = self.target_keys(parsed_args)
        updated: dict[str, Mapping[str, Any]] = {}
        for key in keys:
            try:
                updated[key] = self.update(key, parsed_args)
            except exception.CommandFailed as error:
                if len(keys) == 1:
                    raise
                self.report_error(f"{key}: {error}")
        updated = self.finish(updated, parsed_args)
        return self.table(parsed_args, self.columns, updated.values())

    def finish(
        self, updated: dict[str, Mapping[str, Any]], parsed: argparse.Namespace
    ) -> dict[str, Mapping[str, Any]]:
        """Return the objects, by key, after the work that their change started."""
        return updated


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Add the option that shows what would happen."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="Print what the command would do, as far as the service shows it now, and change "
        "nothing.",
    )


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add the option by which an administrator removes units that are not cleaned."""
    parser.add_argument(
        "--force",
        action="store_const",
        const="true",
        help="Delete even if the data of guests may be on some units, for example in quarantine. "
        "Without it such a deletion is refused, and the error names the units. Only "
        "administrators can force it. The units are cleaned when a host shows them again.",
    )


class DeleteCommand(BaseCommand):
    """A deletion of one or more objects; the failure of one object does not stop the others."""

    noun: ClassVar[str]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "keys", metavar=f"<{self.noun}>", nargs="+", help=f"The {self.noun}s to delete."
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        for key in parsed_args.keys:
            try:
                self.client.request(self.route, key, values=provided_values(parsed_args))
            except exception.CommandFailed as error:
                self.report_error(f"{key}: {error}")


class OperationCommand(ShowCommand):
    """A command that starts an operation and, without ``--no-wait``, waits until it ends."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with ``--no-wait`` and ``--operation-id``."""
        parser = super().get_parser(prog_name)
        deferrable = "wait" in ROUTES[self.route].query
        parser.add_argument(
            "--no-wait",
            dest="wait",
            action="store_const",
            const="true",
            help="Show the operation at once and do not wait until it ends."
            + (" A host whose agent is down does its part when it is back." if deferrable else ""),
        )
        parser.add_argument(
            "--operation-id",
            metavar="UUID",
            type=uuid_string,
            help="UUID that identifies this request (default: a new one). Repeat a command with "
            "the same UUID if its result is unknown: the operation starts only once.",
        )
        return parser

    def path_keys(self, parsed: argparse.Namespace) -> tuple[str, ...]:
        """Return the keys in the path: that of the object, if the command takes one."""
        return (parsed.key,) if "key" in parsed else ()

    def route_and_values(self, parsed: argparse.Namespace) -> tuple[str, Mapping[str, Any]]:
        """Return the key of the route, and the values for query and body."""
        return self.route, provided_values(parsed)

    def fetch(self, parsed: argparse.Namespace) -> Mapping[str, Any]:
        """Return the operation: after its end, or with ``--no-wait`` as it was started."""
        route, values = self.route_and_values(parsed)
        operation: Mapping[str, Any] = self.client.start_operation(
            route, *self.path_keys(parsed), values=values, request_key=parsed.operation_id
        )
        if not parsed.wait:
            try:
                operation = follow(self.client, operation, self.print_result)
            except KeyboardInterrupt:
                self.print_note(f"The operation continues: see operation {operation['uuid']}.")
                raise
        for message in failures(operation):
            self.report_error(message)
        return operation


def provided_values(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that have a value."""
    return {name: value for name, value in vars(parsed).items() if value is not None}


def positive_integer(text: str) -> int:
    """Return the integer greater than 0 that an argument holds."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer greater than 0")
    return int(text)


def duration(text: str) -> int:
    """Return the seconds that an argument holds: a number with a unit, ``4h`` for example."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdecimal() and unit in _SECONDS):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number with one of the units {', '.join(_SECONDS)}"
        )
    return int(number) * _SECONDS[unit]


def uuid_string(text: str) -> str:
    """Return the UUID that an argument holds, in lower case with hyphens."""
    try:
        return str(UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a UUID") from None


class UnsetKeyAction(argparse.Action):
    """``--unset-x KEY``, repeatable: sets the key to null in the object of KeyValueAction."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option: str | None = None,
    ) -> None:
        """Add one key; raises ArgumentError for a key that is also set."""
        _add_pair(self, namespace, values, None)


class KeyValueAction(argparse.Action):
    """``--x KEY=VALUE``, repeatable: collects the pairs in one object."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option: str | None = None,
    ) -> None:
        """Add one pair; raises ArgumentError for a key that is given twice."""
        name, equals, value = values.partition("=")
        if not equals or not name:
            raise argparse.ArgumentError(self, f"{values!r} does not have the form KEY=VALUE")
        _add_pair(self, namespace, name, value)


def _add_pair(
    action: argparse.Action, namespace: argparse.Namespace, name: str, value: str | None
) -> None:
    pairs = dict(getattr(namespace, action.dest) or {})
    if name in pairs:
        raise argparse.ArgumentError(action, f"key {name!r} is given twice")
    setattr(namespace, action.dest, pairs | {name: value})


def _value_at(item: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path; a list of values where the path crosses a list."""
    value: Any = item
    for name in path.split("."):
        if isinstance(value, list):
            value = [_value_at(element, name) for element in value]
        else:
            value = value.get(name) if isinstance(value, Mapping) else None
    return value
