# SPDX-License-Identifier: Apache-2.0
"""A verb of the bus is a class: its fields are the arguments, its keywords say all the rest.

Clients, endpoints, the page of the internal API and ``[upgrade_levels]`` follow from the classes in
``cyborg.rpc.verbs``. Every verb with all its arguments has version 1.0, that of the first release,
unless it names a later one. Every addition gets the next minor version. A removal or a change of
meaning needs a new verb.
"""

import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, dataclass_transform

from cyborg import exception
from cyborg.model import wire

Answer = TypeVar("Answer")
Errors = tuple[type[exception.CyborgError], ...]
#: ``verb`` or ``verb.argument`` → the version that added it, for all that is later than FIRST.
Later = Mapping[str, str]

FIRST: Final = "1.0"
#: What any verb may raise; ``cyborg.rpc.transport`` raises some of these.
COMMON: Final[Errors] = (exception.Invalid, exception.Unavailable, exception.PeerFault)
_SINCE: Final = "since"


@dataclass(frozen=True)
class Handler:
    """What an endpoint does with one command; see ``Command.handled``."""

    command: "type[Command[Any]]"
    handle: Callable[[Any], Any]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True)
class Command(Generic[Answer]):
    """One call of a verb; ``Answer`` is the type of what the verb answers.

    Each subclass becomes a frozen dataclass. It names its verb, the errors that it raises beyond
    ``COMMON``, and the version that added it (``since``). A subclass without a verb is a base of
    others, which raise its errors as well.
    """

    verb: ClassVar[str] = ""
    since: ClassVar[str] = FIRST
    raises: ClassVar[Errors] = ()
    answer: ClassVar[Any] = None

    def __init_subclass__(cls, *, verb: str = "", raises: Errors = (), since: str = FIRST) -> None:
        super().__init_subclass__()
        cls.verb, cls.since, cls.raises = verb, since, cls.raises + raises
        for base in vars(cls).get("__orig_bases__", ())[:1]:
            (cls.answer,) = typing.get_args(base)
        dataclass(frozen=True)(cls)

    @classmethod
    def handled(cls, handle: Callable[[Self], Answer]) -> Handler:
        """Return the handler that calls ``handle`` for each command of this class."""
        return Handler(cls, handle)

    @classmethod
    def load(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the command with these arguments, which are plain JSON data.

        Raises exception.Invalid for unknown or missing arguments, and for values of a wrong type.
        """
        named = {each.name: each for each in fields(cls)}
        required = {name for name, each in named.items() if _is_required(each)}
        if wrong := (arguments.keys() - named.keys()) | (required - arguments.keys()):
            raise exception.Invalid(
                field="arguments", reason=f"unknown or missing argument: {', '.join(sorted(wrong))}"
            )
        kind: type = cls
        types = wire.hints(kind)
        return cls(
            **{name: wire.unpack(types[name], value, name) for name, value in arguments.items()}
        )

    def dump(self) -> dict[str, Any]:
        """Return the arguments by name, as plain JSON data."""
        return {each.name: wire.pack(getattr(self, each.name)) for each in fields(self)}

    def read(self, body: Any) -> Answer:
        """Return the answer that a reply carries; raise exception.Invalid for a wrong type."""
        nothing = self.answer is NoneType
        answer: Answer = wire.unpack(self.answer, None if nothing else body, self.verb)
        return answer


def added(version: str) -> Any:
    """Return the default of a field that came with this version: None, which is not sent."""
    return field(default=None, metadata={_SINCE: version})


def commands(root: type[Command[Any]]) -> dict[str, type[Command[Any]]]:
    """Return the commands below a class by their verbs, in the order of their declaration."""
    named = {root.verb: root} if root.verb else {}
    for child in root.__subclasses__():
        named.update(commands(child))
    return named


def history(root: type[Command[Any]]) -> Later:
    """Return what was added after FIRST to the commands below a class."""
    later = {}
    for verb, command in commands(root).items():
        versions = {f"{verb}.{each.name}": each.metadata.get(_SINCE) for each in fields(command)}
        versions[verb] = command.since
        later.update(
            {name: since for name, since in versions.items() if since not in (None, FIRST)}
        )
    return later


def newest(later: Later) -> str:
    """Return the version of a service of this release."""
    return max((FIRST, *later.values()), key=_order)


def lowest(later: Later, verb: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the lowest version that a message can have, and its arguments.

    Later arguments that are None are left out: an older peer does not accept them.
    """
    sent = {
        name: value
        for name, value in arguments.items()
        if value is not None or f"{verb}.{name}" not in later
    }
    names = (verb, *(f"{verb}.{name}" for name in sent))
    return max((FIRST, *(later[name] for name in names if name in later)), key=_order), sent


def pinned(option: str, value: str | None, later: Later) -> str | None:
    """Return the newest version that ``[upgrade_levels]`` allows to send; None for no limit.

    Raises ConfigError for a version that this release does not have.
    """
    allowed = sorted({FIRST, *later.values()}, key=_order)
    if value is not None and value not in allowed:
        raise exception.ConfigError(
            reason=f"Option [upgrade_levels] {option} cannot be {value!r}: this release can send "
            f"{', '.join(allowed)}."
        )
    return value


def _is_required(argument: Any) -> bool:
    return argument.default is MISSING and argument.default_factory is MISSING


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))
