# SPDX-License-Identifier: Apache-2.0
"""How cells of tables show values: states in colour, and nested values as text."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from cliff.columns import FormattableColumn

from cyborg_cli.terminal import GREEN, RED, YELLOW, coloured
from cyborg_cli.text import escaped

_COLOURS: Final = {
    **dict.fromkeys(("up", "enabled", "ready", "active", "bound", "succeeded", "ok"), GREEN),
    "would succeed": GREEN,
    "would fail": RED,
    **dict.fromkeys(
        (
            "disabled",
            "inactive",
            "installing",
            "starting",
            "stopped",
            "maintaining",
            "draining",
            "drained",
            "running",
            "waiting",
            "bindstarted",
            "degraded",
            "probation",
            "ignored",
        ),
        YELLOW,
    ),
    **dict.fromkeys(
        ("down", "failed", "lost", "bindfailed", "unbindfailed", "drain", "dead", "parked"), RED
    ),
}
#: Columns whose values are states.
_STATE_COLUMNS: Final = frozenset({"state", "status", "health"})
#: Formats that can represent objects and lists.
_STRUCTURED_FORMATS: Final = frozenset({"json", "yaml"})
#: Fields that users write as ``key=value``.
_PAIR_COLUMNS: Final = frozenset({"labels", "options", "groups"})
#: The maximum number of host names in a subject.
_MAX_HOSTS: Final = 3


class State(FormattableColumn[str]):
    """A state that a table shows in colour; an empty state sorts last."""

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, State):
            return False
        return (not self._value, self._value) < (not other._value, other._value)

    def human_readable(self) -> str:
        """Return the state with its colour."""
        return colour_state(self._value)


class Absent:
    """A missing value: an empty cell in a table that sorts after all other cells."""

    def __str__(self) -> str:
        return ""

    def __lt__(self, _other: object) -> bool:
        return False

    def __gt__(self, _other: object) -> bool:
        return True


def colour_state(state: str) -> str:
    """Return the state with the escape sequences of its colour, if it has one."""
    colour = _COLOURS.get(state.lower())
    return coloured(state, colour) if colour else state


def format_cell(name: str, value: Any, formatter: str, *, colours: bool) -> Any:
    """Return a value in the form for a formatter; nested values as text if it cannot nest."""
    if formatter in _STRUCTURED_FORMATS:
        return value
    value = escaped_value(value)
    if formatter == "table":
        if name in _STATE_COLUMNS and colours:
            return State(value or "")
        if value is None:
            return Absent()
        if name in _FORMATTERS:
            return _FORMATTERS[name](value)
        if name in _PAIR_COLUMNS:
            return _format_pairs(value)
        return _format_lines(value)
    return json.dumps(value) if isinstance(value, Mapping | list) else value


def escaped_value(value: Any) -> Any:
    """Return a value of an answer whose texts have no character that a terminal obeys."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return {escaped(str(name)): escaped_value(member) for name, member in value.items()}
    return [escaped_value(item) for item in value] if isinstance(value, list) else value


def result_line(result: Mapping[str, Any], *, colours: bool = False) -> str:
    """Return the result of an operation on one host as a line: host, state, details."""
    state = str(result.get("state"))
    line = f"{result.get('host') or '-'}: {colour_state(state) if colours else state}"
    if result.get("error"):
        return f"{line}, {result['error']}"
    # The keys of the outcome depend on the verb of the operation.
    outcome = result.get("result") or {}
    parts = [_format_discovery(driver) for driver in outcome.get("drivers") or ()]
    for key, value in outcome.items():
        if key == "installing":
            if value:
                parts.append(f"being set up: {', '.join(value)}")
        elif key == "devices":
            parts.append(f"{_count(value, 'device')} removed")
        elif key == "arqs":
            parts.append(f"accelerator requests {', '.join(value)}" if value else "nothing to do")
        elif key != "drivers":
            parts.append(f"{_words(key)} {_brief(value)}")
    return f"{line}, {'; '.join(parts)}" if parts else line


def _format_discovery(driver: Mapping[str, Any]) -> str:
    """Return what one driver found in a discovery."""
    name = driver.get("name")
    if driver.get("error"):
        return f"{name} failed: {driver['error']}"
    changes = [
        f"{driver[key]} {adjective}"
        for key, adjective in (
            ("added", "new"),
            ("changed", "changed"),
            ("lost", "lost"),
            ("failed", "refused"),
        )
        if driver.get(key)
    ]
    details = f" ({', '.join(changes)})" if changes else ""
    line = f"{name} found {_count(driver.get('found') or 0, 'device')}{details}"
    backends = [
        f"backend {backend.get('name')} is {backend.get('state')}"
        for backend in driver.get("backends") or ()
    ]
    return ", ".join([line, *backends])


def _format_subject(subject: Mapping[str, Any]) -> str:
    """Return the object of an operation and its hosts."""
    hosts = subject.get("hosts") or []
    fields = [f"{_words(key)} {value}" for key, value in subject.items() if key != "hosts"]
    host_names = ", ".join(hosts[:_MAX_HOSTS])
    if len(hosts) > _MAX_HOSTS:
        host_names += f" and {len(hosts) - _MAX_HOSTS} more hosts"
    return " on ".join(part for part in (", ".join(fields), host_names) if part)


def _format_accepted_options(options: list[Mapping[str, Any]]) -> str:
    """Return a line for each option of a driver, with the key that ``--option`` takes."""
    return "\n".join(
        f"{option.get('group')}.{option.get('name')} ({option.get('type')}, "
        f"default {option.get('default') or 'none'}): {option.get('help')}"
        for option in options
    )


def _format_steps(steps: list[Mapping[str, Any]]) -> str:
    return "\n".join(f"{_words(str(step.get('name')))} at {step.get('at')}" for step in steps)


def _format_results(results: list[Mapping[str, Any]]) -> str:
    return "\n".join(result_line(result) for result in results)


def _format_pairs(value: Any) -> str:
    """Return a line ``key=value`` for each pair of an object, or for each object of a list."""
    if isinstance(value, list):
        return "\n".join(_format_pairs(item).replace("\n", ", ") for item in value)
    return "\n".join(f"{key}={item}" for key, item in value.items())


def _format_address(info: Any) -> Any:
    """Return the address of an attach handle: a PCI address in its usual form, else lines."""
    parts = ("domain", "bus", "device", "function")
    if not isinstance(info, Mapping) or not all(isinstance(info.get(part), str) for part in parts):
        return _format_lines(info)
    address = "{domain}:{bus}:{device}.{function}".format(**info).replace("0x", "")
    rest = _brief({key: value for key, value in info.items() if key not in parts})
    return f"{address}, {rest}" if rest else address


def _format_units(counts: Mapping[str, Any]) -> str:
    """Return how many units are free, used and out of service."""
    line = f"{counts.get('free')} of {counts.get('total')} free, {counts.get('used')} used"
    reasons = _format_reasons(counts.get("reasons") or {})
    return f"{line}, {counts.get('out_of_service')} out of service: {reasons}" if reasons else line


def _format_reasons(reasons: Mapping[str, Any]) -> str:
    """Return each reason why units are out of service, with its number of units."""
    return ", ".join(f"{_words(reason)} {count}" for reason, count in reasons.items())


def _format_events(events: list[Mapping[str, Any]]) -> str:
    """Return a line for each event: time, object, action, reason and API request."""
    lines = []
    for event in events:
        subject = f" {event.get('noun')} {event.get('subject_uuid')}" if event.get("noun") else ""
        line = f"{event.get('at') or event.get('time')}{subject}: {event.get('action')}"
        details = [event.get("reason"), event.get("request_id")]
        lines.append(", ".join([line, *(str(detail) for detail in details if detail)]))
    return "\n".join(lines)


def _format_profiles(profiles: list[Mapping[str, Any]]) -> str:
    """Return a line for each profile: its name, and the groups that the device can satisfy."""
    return "\n".join(
        f"{profile.get('name')} ({profile.get('uuid')}): "
        + ", ".join(f"groups[{index}]" for index in profile.get("groups") or ())
        for profile in profiles
    )


def _count(count: Any, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _brief(value: Any) -> str:
    """Return a value in one line: an object as its name, and its other fields in parentheses."""
    if isinstance(value, Mapping):
        name = str(value.get("name") or "")
        fields = [
            f"{_words(key)} {_brief(item)}"
            for key, item in value.items()
            if key != "name" and item not in (None, {}, [])
        ]
        if set(value) == {"name", "state"}:
            return f"{name}: {value['state']}"
        return f"{name} ({', '.join(fields)})" if name and fields else name or ", ".join(fields)
    if isinstance(value, list):
        return ", ".join(_brief(item) for item in value)
    return str(value)


def _format_lines(value: Any) -> Any:
    """Return a list or an object with a line for each member; any other value unchanged."""
    if isinstance(value, list):
        return "\n".join(_brief(item) for item in value)
    if isinstance(value, Mapping):
        return "\n".join(
            f"{_words(key)}: {_brief(item)}"
            for key, item in value.items()
            if item not in (None, {}, [])
        )
    return value


#: The functions for fields that a table shows in a form of their own.
_FORMATTERS: Final[Mapping[str, Callable[[Any], str]]] = {
    "steps": _format_steps,
    "results": _format_results,
    "subject": _format_subject,
    "attach_handle_info": _format_address,
    "options_accepted": _format_accepted_options,
    "units": _format_units,
    "reasons": _format_reasons,
    "events": _format_events,
    "profiles": _format_profiles,
}
