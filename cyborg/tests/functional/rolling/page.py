# SPDX-License-Identifier: Apache-2.0
"""What the page of the internal API shows of the code: its verbs, and the shapes of its values."""

import inspect
import json
from dataclasses import MISSING, Field, fields
from enum import Enum
from types import NoneType
from typing import Any, get_type_hints

from cyborg.rpc.command import Command, commands
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC
from cyborg.rpc.verbs import AgentRequest, DesiredChanged, ToAgent, ToConductor
from cyborg.tests.unit.model.shapes import everything, named, typed

_AGENTS = commands(AgentRequest)
#: Part of the page → the topic of its verbs, and their commands.
PARTS: dict[str, tuple[str, dict[str, type[Command[Any]]]]] = {
    "requests": (
        CONDUCTOR_TOPIC,
        {verb: one for verb, one in commands(ToConductor).items() if verb not in _AGENTS},
    ),
    "reports": (CONDUCTOR_TOPIC, _AGENTS),
    "tasks": (AGENT_TOPIC, commands(ToAgent)),
}


def part(name: str) -> str:
    """The text of a part of the page."""
    _, verbs = PARTS[name]
    return "\n\n".join(map(_verb, verbs.values()))


def shapes() -> str:
    """The text of the part about values."""
    return "\n\n".join(_enum(one) if issubclass(one, Enum) else _shape(one) for one in everything())


def _verb(command: type[Command[Any]]) -> str:
    types = get_type_hints(command)
    raised = dict.fromkeys(command.raises)
    errors = ", ".join(f"``{one.__name__}`` ({one.status})" for one in raised)
    lines = [
        _title(f"``{command.verb}``", "~"),
        inspect.getdoc(command) or "",
        f":Since: {command.since}",
        f":Repeatable: {_repeatable(command)}",
        f":Answer: {_answer(command)}",
        f":Errors: {errors or 'those of the bus only'}",
    ]
    lines += [
        f":{one.name}: ``{typed(types[one.name])}``" + _since(one.metadata.get("since"))
        for one in fields(command)
    ]
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:])


def _since(version: str | None) -> str:
    return f", since {version}" if version else ""


def _repeatable(command: type[Command[Any]]) -> str:
    if command is DesiredChanged:
        return "a hint, which may be lost"
    keys = {"request_key", "task"} & {one.name for one in fields(command)}
    return "by its operation" if keys else "at will"


def _answer(command: type[Command[Any]]) -> str:
    if command is DesiredChanged:
        return "none is waited for"
    return "``null``" if command.answer is NoneType else f"``{typed(command.answer)}``"


def _shape(kind: Any) -> str:
    hints = get_type_hints(kind)
    lines = [f":{one.name}: ``{typed(hints[one.name])}``{_default(one)}" for one in fields(kind)]
    doc = inspect.getdoc(kind) or ""
    return "\n\n".join([_title(f"``{named(kind)}``", "~"), doc, "\n".join(lines)])


def _default(one: Field[Any]) -> str:
    if one.default is not MISSING:
        value = one.default.value if isinstance(one.default, Enum) else one.default
        return f", ``{json.dumps(value)}`` unless given"
    return ", empty unless given" if one.default_factory is not MISSING else ""


def _enum(kind: type[Enum]) -> str:
    words = ", ".join(f"``{one.value}``" for one in kind)
    doc = inspect.getdoc(kind) or ""
    return "\n\n".join([_title(f"``{named(kind)}``", "~"), doc, f"One of {words}."])


def _title(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}"
