# SPDX-License-Identifier: Apache-2.0
"""What the page of the internal API shows of the code: its verbs, and the shapes of its values."""

import inspect
import json
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from enum import Enum
from types import NoneType
from typing import Any, get_type_hints

from cyborg.rpc.command import Command, commands
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC
from cyborg.rpc.verbs import AgentRequest, ToAgent, ToConductor
from cyborg.tests.functional.rolling.records import Record
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
_WIDE = 88


def part(name: str, record: Record) -> str:
    """The text of a part of the page."""
    topic, verbs = PARTS[name]
    return "\n\n".join(_verb(one, record.verbs[topic].get(verb)) for verb, one in verbs.items())


def shapes() -> str:
    """The text of the part about values."""
    return "\n\n".join(_enum(one) if issubclass(one, Enum) else _shape(one) for one in everything())


def _verb(command: type[Command[Any]], recorded: dict[str, Any] | None) -> str:
    """The text about a verb; one that is later than the record has no examples."""
    said = recorded or {"args": {one.name: None for one in fields(command)}, "answer": {}}
    types = get_type_hints(command)
    raised = dict.fromkeys(command.raises)
    errors = ", ".join(f"``{one.__name__}`` ({one.status})" for one in raised)
    lines = [
        _title(f"``{command.verb}``", "~"),
        inspect.getdoc(command) or "",
        f":Since: {command.since}",
        f":Repeatable: {_repeatable(said)}",
        f":Answer: {_answer(said, command.answer)}",
        f":Errors: {errors or 'those of the bus only'}",
    ]
    lines += [
        f":{one.name}: ``{typed(types[one.name])}``" + _since(one.metadata.get("since"))
        for one in fields(command)
        if one.name in said["args"]
    ]
    text = "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:])
    if recorded is None:
        return text
    text += "\n\n" + _example("Request", said["args"])
    if said["answer"] is not None:
        text += "\n\n" + _example("Answer", said["answer"])
    return text


def _since(version: str | None) -> str:
    return f", since {version}" if version else ""


def _repeatable(said: dict[str, Any]) -> str:
    if said["answer"] is None:
        return "a hint, which may be lost"
    return "by its operation" if {"request_key", "task"} & said["args"].keys() else "at will"


def _answer(said: dict[str, Any], answer: Any) -> str:
    if said["answer"] is None:
        return "none is waited for"
    return "``null``" if answer is NoneType else f"``{typed(answer)}``"


def _example(title: str, value: Any) -> str:
    text = "\n".join(f"   {line}" for line in drawn(value))
    return f"{title}:\n\n.. code-block:: json\n\n{text}"


def drawn(value: Any, before: str = "", after: str = "") -> Iterator[str]:
    """JSON in as few lines as fit the width."""
    flat = before + json.dumps(value, ensure_ascii=False) + after
    indent = len(before) - len(before.lstrip())
    if len(flat) <= _WIDE or not isinstance(value, dict | list) or not value:
        yield flat
        return
    is_object = isinstance(value, dict)
    items = list(value.items()) if isinstance(value, dict) else [("", one) for one in value]
    yield before + ("{" if is_object else "[")
    inner, line = " " * (indent + 2), ""
    for number, (key, one) in enumerate(items, 1):
        name = f"{json.dumps(key)}: " if is_object else ""
        comma = "," if number < len(items) else ""
        text = name + json.dumps(one, ensure_ascii=False) + comma
        if line and len(line) + 1 + len(text) <= _WIDE:
            line += f" {text}"
            continue
        if line:
            yield line
        line = inner + text if len(inner + text) <= _WIDE else ""
        if not line:
            yield from drawn(one, inner + name, comma)
    if line:
        yield line
    yield " " * indent + ("}" if is_object else "]") + after


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
