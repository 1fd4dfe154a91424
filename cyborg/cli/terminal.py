# SPDX-License-Identifier: Apache-2.0
"""How values look: colours of states on a terminal, text of what is nested in tables."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

from cliff.columns import FormattableColumn

_GREEN, _YELLOW, _RED = "32", "33", "31"
_COLOURS: Final = {
    **dict.fromkeys(("up", "enabled", "ready", "active", "bound", "succeeded"), _GREEN),
    **dict.fromkeys(
        (
            "disabled",
            "inactive",
            "installing",
            "starting",
            "stopped",
            "maintaining",
            "running",
            "waiting",
            "bindstarted",
        ),
        _YELLOW,
    ),
    **dict.fromkeys(("down", "failed", "lost", "bindfailed", "unbindfailed"), _RED),
}
#: Columns whose words are states.
_STATES: Final = frozenset({"state", "status"})
#: Formats that hold objects and lists as they are.
_STRUCTURED: Final = frozenset({"json", "yaml"})
#: Fields that users write as ``key=value``.
_PAIRS: Final = frozenset({"labels", "options", "groups"})
#: How many hosts a subject names.
_NAMED: Final = 3


class State(FormattableColumn[str]):
    """A word that has a colour for people; no word at all sorts last."""

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, State):
            return False
        return (not self._value, self._value) < (not other._value, other._value)

    def human_readable(self) -> str:
        """The word between the sequences of its colour."""
        return paint(self._value)


class Absent:
    """No value: an empty cell in a table, and the last one when its column is sorted."""

    def __str__(self) -> str:
        return ""

    def __lt__(self, _other: object) -> bool:
        return False

    def __gt__(self, _other: object) -> bool:
        return True


def coloured(stream: TextIO) -> bool:
    """Whether colours are wanted there: on a terminal, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def paint(word: str) -> str:
    """The word in the colour of what it means."""
    colour = _COLOURS.get(word.lower())
    return f"\033[{colour}m{word}\033[0m" if colour else word


def cell(name: str, value: Any, formatter: str, *, colours: bool) -> Any:
    """A value as the formatter should get it; nested ones as text where nothing nests."""
    if formatter in _STRUCTURED:
        return value
    if formatter == "table":
        if name in _STATES and colours:
            return State(value or "")
        if value is None:
            return Absent()
        if name in _SENTENCES:
            return _SENTENCES[name](value)
        if name in _PAIRS:
            return _pairs(value)
        return _lines(value)
    return json.dumps(value) if isinstance(value, Mapping | list) else value


def result_line(result: Mapping[str, Any], *, colours: bool = False) -> str:
    """The outcome of an operation on one host, as a sentence without its full stop."""
    state = str(result.get("state"))
    line = f"{result.get('host') or '-'}: {paint(state) if colours else state}"
    detail = result.get("error") or _outcome(result.get("result") or {})
    return f"{line}, {detail}" if detail else line


def _outcome(result: Mapping[str, Any]) -> str:
    """What an operation did on a host, in words; the keys are those of the verbs' results."""
    parts = [_findings(one) for one in result.get("drivers") or ()]
    for key, value in result.items():
        if key == "installing":
            if value:
                parts.append(f"being set up: {', '.join(value)}")
        elif key == "devices":
            parts.append(f"{_number(value, 'device')} removed")
        elif key == "arqs":
            parts.append(f"accelerator requests {', '.join(value)}" if value else "nothing to do")
        elif key != "drivers":
            parts.append(f"{_words(key)} {_brief(value)}")
    return "; ".join(parts)


def _findings(driver: Mapping[str, Any]) -> str:
    """What one driver found in a discovery, in words."""
    name = driver.get("name")
    if driver.get("error"):
        return f"{name} failed: {driver['error']}"
    changes = [
        f"{driver[word]} {said}"
        for word, said in (
            ("added", "new"),
            ("changed", "changed"),
            ("lost", "lost"),
            ("failed", "refused"),
        )
        if driver.get(word)
    ]
    details = f" ({', '.join(changes)})" if changes else ""
    line = f"{name} found {_number(driver.get('found') or 0, 'device')}{details}"
    backends = [
        f"backend {one.get('name')} is {one.get('state')}" for one in driver.get("backends") or ()
    ]
    return ", ".join([line, *backends])


def _subject(subject: Mapping[str, Any]) -> str:
    """The subject of an operation, in words: what, and on which hosts."""
    hosts = subject.get("hosts") or []
    what = [f"{_words(key)} {one}" for key, one in subject.items() if key != "hosts"]
    named = ", ".join(hosts[:_NAMED])
    if len(hosts) > _NAMED:
        named += f" and {len(hosts) - _NAMED} more hosts"
    return " on ".join(part for part in (", ".join(what), named) if part)


def _accepted(options: list[Mapping[str, Any]]) -> str:
    """The options of a driver, a line for each, with the key that ``--option`` takes."""
    return "\n".join(
        f"{one.get('group')}.{one.get('name')} ({one.get('type')}, "
        f"default {one.get('default') or 'none'}): {one.get('help')}"
        for one in options
    )


def _steps(steps: list[Mapping[str, Any]]) -> str:
    return "\n".join(f"{_words(str(one.get('name')))} at {one.get('at')}" for one in steps)


def _results(results: list[Mapping[str, Any]]) -> str:
    return "\n".join(result_line(one) for one in results)


def _pairs(value: Any) -> str:
    """What users write as ``key=value``: a line for each pair, or for each object of a list."""
    if isinstance(value, list):
        return "\n".join(_pairs(item).replace("\n", ", ") for item in value)
    return "\n".join(f"{key}={item}" for key, item in value.items())


def _address(info: Any) -> Any:
    """Where an attach handle is: a PCI address as it is written, anything else in lines."""
    parts = ("domain", "bus", "device", "function")
    if not isinstance(info, Mapping) or not all(isinstance(info.get(one), str) for one in parts):
        return _lines(info)
    address = "{domain}:{bus}:{device}.{function}".format(**info).replace("0x", "")
    more = _brief({key: one for key, one in info.items() if key not in parts})
    return f"{address}, {more}" if more else address


def _units(counts: Mapping[str, Any]) -> str:
    """How many units are free, used and out of service, in words."""
    line = f"{counts.get('free')} of {counts.get('total')} free, {counts.get('used')} used"
    reasons = _reasons(counts.get("reasons") or {})
    return f"{line}, {counts.get('out_of_service')} out of service: {reasons}" if reasons else line


def _reasons(reasons: Mapping[str, Any]) -> str:
    """Why units are out of service, each reason with its number of units."""
    return ", ".join(f"{_words(reason)} {count}" for reason, count in reasons.items())


def _events(events: list[Mapping[str, Any]]) -> str:
    """A line for each event: when, what, to which object, why and by which request."""
    lines = []
    for event in events:
        subject = f" {event.get('noun')} {event.get('subject_uuid')}" if event.get("noun") else ""
        line = f"{event.get('at') or event.get('time')}{subject}: {event.get('action')}"
        more = [event.get("reason"), event.get("request_id")]
        lines.append(", ".join([line, *(str(part) for part in more if part)]))
    return "\n".join(lines)


def _number(count: Any, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _brief(value: Any) -> str:
    """An object in a line: its name, and in parentheses the rest that has a value."""
    if isinstance(value, Mapping):
        name = str(value.get("name") or "")
        fields = [
            f"{_words(key)} {_brief(one)}"
            for key, one in value.items()
            if key != "name" and one not in (None, {}, [])
        ]
        if set(value) == {"name", "state"}:
            return f"{name}: {value['state']}"
        return f"{name} ({', '.join(fields)})" if name and fields else name or ", ".join(fields)
    if isinstance(value, list):
        return ", ".join(_brief(one) for one in value)
    return str(value)


def _lines(value: Any) -> Any:
    """A list or an object with a line for each of its members; anything else as it is."""
    if isinstance(value, list):
        return "\n".join(_brief(one) for one in value)
    if isinstance(value, Mapping):
        return "\n".join(
            f"{_words(key)}: {_brief(one)}"
            for key, one in value.items()
            if one not in (None, {}, [])
        )
    return value


#: Fields whose values are told in sentences.
_SENTENCES: Final[Mapping[str, Callable[[Any], str]]] = {
    "steps": _steps,
    "results": _results,
    "subject": _subject,
    "attach_handle_info": _address,
    "options_accepted": _accepted,
    "units": _units,
    "reasons": _reasons,
    "events": _events,
}
