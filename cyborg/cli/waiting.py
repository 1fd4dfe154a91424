# SPDX-License-Identifier: Apache-2.0
"""Wait for the end of an operation, and report each host whose state changes."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from cyborg import exception
from cyborg.cli.client import Client

#: An object as the service returns it.
Resource = Mapping[str, Any]

RUNNING: Final = "running"
FAILED: Final = "failed"
#: The interval between two polls, in seconds: at first, and at most.
_FIRST_INTERVAL: Final = 0.25
_LONGEST_INTERVAL: Final = 3.0
#: How many polls in a row may fail; a conductor may be restarting.
_MAX_FAILED_POLLS: Final = 10


def poll(
    fetch: Callable[[], Resource],
    is_finished: Callable[[Resource], bool],
    pause: Callable[[float], object],
) -> Resource:
    """Fetch an object at growing intervals until it is finished, and return it.

    Raises exception.CommandFailed for an error that is not transient, and for a transient one
    after _MAX_FAILED_POLLS of them in a row.
    """
    seconds, failed_polls = _FIRST_INTERVAL, 0
    while True:
        try:
            resource = fetch()
        except exception.CommandFailed as error:
            failed_polls += 1
            if not error.fields.get("transient") or failed_polls > _MAX_FAILED_POLLS:
                raise
        else:
            failed_polls = 0
            if is_finished(resource):
                return resource
        pause(seconds)
        seconds = min(seconds * 1.5, _LONGEST_INTERVAL)


def follow(
    client: Client, operation: Resource, on_result: Callable[[Mapping[str, Any]], object]
) -> Mapping[str, Any]:
    """Poll an operation until it ends, and return it.

    ``on_result`` is called with the result of a host each time it changes. Raises
    exception.CommandFailed, with the UUID of the operation, when the service stops answering.
    """
    results: dict[str, Mapping[str, Any]] = {}
    unread: list[Resource] = [operation]

    def fetch() -> Resource:
        # The answer to the request that started the operation counts as the first poll.
        current: Resource = (
            unread.pop() if unread else client.request("operation-show", operation["uuid"])
        )
        for result in current.get("results") or []:
            if results.get(result["host"]) != result:
                results[result["host"]] = result
                on_result(result)
        return current

    try:
        return poll(fetch, lambda current: current["state"] != RUNNING, client.pause)
    except exception.CommandFailed as error:
        raise exception.CommandFailed(
            reason=f"{error} The operation continues without this command: see operation "
            f"{operation['uuid']}."
        ) from error


def failures(operation: Mapping[str, Any]) -> list[str]:
    """Return a message for the operation and for each host that failed; empty if none did."""
    messages = [
        f"{result.get('host') or 'The service'}: "
        f"{result.get('error') or 'The host reported no reason.'}"
        for result in operation.get("results") or []
        if result.get("state") == FAILED
    ]
    if operation["state"] == FAILED and (operation.get("error") or not messages):
        messages.insert(0, operation.get("error") or "The operation failed without a reason.")
    return messages
