# SPDX-License-Identifier: Apache-2.0
"""Long work: seen to its end, with a line for every host whose state changed."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from cyborg import exception
from cyborg.cli.client import Client

#: A thing as the service shows it.
Thing = Mapping[str, Any]

RUNNING: Final = "running"
FAILED: Final = "failed"
#: Seconds between two looks: soon at first, then less often.
_FIRST: Final = 0.25
_LONGEST: Final = 3.0
#: How many looks in a row may stay without an answer; a conductor may be restarting.
_PATIENCE: Final = 10


def until(
    look: Callable[[], Thing],
    ended: Callable[[Thing], bool],
    pause: Callable[[float], object],
) -> Thing:
    """Look, less and less often, until it has ended; what was seen last.

    Raises exception.CommandFailed when the service stays silent, or refuses.
    """
    seconds, silent = _FIRST, 0
    while True:
        try:
            seen = look()
        except exception.CommandFailed as fault:
            silent += 1
            if not fault.fields.get("passing") or silent > _PATIENCE:
                raise
        else:
            silent = 0
            if ended(seen):
                return seen
        pause(seconds)
        seconds = min(seconds * 1.5, _LONGEST)


def follow(
    client: Client, operation: Thing, say: Callable[[Mapping[str, Any]], object]
) -> Mapping[str, Any]:
    """Ask until the operation has ended, and return how it did.

    ``say`` gets the result of each host whenever it is another one than before.
    Raises exception.CommandFailed, naming the operation, when the service stays silent.
    """
    seen: dict[str, Mapping[str, Any]] = {}
    known: list[Thing] = [operation]

    def look() -> Thing:
        # What the verb was answered is the first look.
        found: Thing = known.pop() if known else client.ask("operation-show", operation["uuid"])
        _tell(found, seen, say)
        return found

    try:
        return until(look, lambda one: one["state"] != RUNNING, client.pause)
    except exception.CommandFailed as fault:
        raise exception.CommandFailed(
            reason=f"{fault} The work goes on without this command: see operation "
            f"{operation['uuid']}."
        ) from fault


def faults_of(operation: Mapping[str, Any]) -> list[str]:
    """What failed, a sentence each; nothing when all went well or is still under way."""
    found = [
        f"{one.get('host') or 'The service'}: {one.get('error') or 'failed without a reason'}"
        for one in operation.get("results") or []
        if one.get("state") == FAILED
    ]
    if operation["state"] == FAILED and (operation.get("error") or not found):
        found.insert(0, operation.get("error") or "It failed without a reason.")
    return found


def _tell(
    operation: Mapping[str, Any],
    seen: dict[str, Mapping[str, Any]],
    say: Callable[[Mapping[str, Any]], object],
) -> None:
    for result in operation.get("results") or []:
        if seen.get(result["host"]) != result:
            seen[result["host"]] = result
            say(result)
