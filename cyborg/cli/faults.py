# SPDX-License-Identifier: Apache-2.0
"""What went wrong, and what to do next: the sentences in which a command gives up."""

import json
import socket
from typing import Any, Final

import requests
from keystoneauth1 import exceptions as ks_exceptions

from cyborg import exception

_MAXIMUM: Final = "OpenStack-API-Maximum-Version"

_NO_ACCOUNT = (
    "There is no usable account: {reason}. Name a cloud with --os-cloud, set OS_AUTH_URL and "
    "what belongs to it, or use --os-auth-type none --os-endpoint URL for an API without Keystone."
)
_NO_KEYSTONE = (
    "Keystone cannot be reached at {url}: {reason}. The command got no token and asked nothing of "
    "the accelerator service. Check OS_AUTH_URL (or --os-cloud), and that Keystone runs."
)
_REFUSED = (
    "Keystone refuses the account: {reason}. Check user, password and project (--os-cloud, or "
    "the variables OS_*)."
)
_NOWHERE = (
    "The catalogue names no accelerator service that fits ({reason}). Have one registered, choose "
    "with --os-region-name and --os-interface, or give --os-endpoint-override URL."
)
_UNREACHABLE = (
    "{url} cannot be reached: {reason}. Is cyborg-api running there? Another place is chosen with "
    "--os-endpoint-override URL."
)
_FOREIGN = (
    "{url} does not answer as the accelerator service does (HTTP {status}). Check the catalogue, "
    "or give --os-endpoint-override URL."
)
_OLD = (
    "This service speaks microversions up to {maximum}, and the command needs {needed}: upgrade "
    "cyborg-api first."
)
#: Answers that may be others in a moment.
_PASSING: Final = frozenset({502, 503, 504})
#: The words of exception.OutcomeUnknown.
_OUTCOME: Final = "outcome unknown"
#: What the API calls otherwise than the commands do.
_IN_API, _IN_COMMANDS = "ask with wait=true", "give --no-wait"
#: What to do about an answer, besides what the service says itself.
_ADVICE: Final = {
    401: "Get a fresh token, or check the account (--os-cloud, or the variables OS_*).",
    403: "Use an account with the role admin, or accelerator_operator for the operators' commands.",
    503: "Repeating the command later is safe.",
}


def unsent(fault: Exception, url: str, *, identity: bool = False) -> exception.CommandFailed:
    """The sentence for a request that got no answer; its fields are those of ``refused``.

    ``url`` is where it was sent; ``identity``: to Keystone, for a token.
    """
    cause = _root(fault)
    reason = (cause.strerror or str(cause)) if cause else _first_line(fault)
    if isinstance(fault, ks_exceptions.Unauthorized):
        sentence = _REFUSED
    elif isinstance(fault, ks_exceptions.EndpointNotFound | ks_exceptions.CatalogException):
        sentence = _NOWHERE
    elif isinstance(
        fault,
        ks_exceptions.AuthPluginException
        | ks_exceptions.AuthorizationFailure
        | ks_exceptions.MissingRequiredOptions,
    ):
        sentence = _NO_ACCOUNT
    elif identity:
        sentence = _NO_KEYSTONE
    else:
        sentence = _UNREACHABLE
    lost = isinstance(fault, ks_exceptions.ConnectionError | requests.RequestException)
    return exception.CommandFailed(
        reason=sentence.format(reason=reason, url=url),
        unknown=lost
        and not identity
        and not isinstance(cause, ConnectionRefusedError | socket.gaierror),
        passing=lost,
    )


def no_account(fault: Exception) -> exception.CommandFailed:
    """The sentence for options from which no account can be made."""
    return exception.CommandFailed(reason=_NO_ACCOUNT.format(reason=_first_line(fault)))


def refused(answer: requests.Response, needed: int | None) -> exception.CommandFailed:
    """The sentence for an answer that is an error.

    ``needed`` is the minor version that the request needs, None for the latest. The field
    ``unknown`` of the result says that the request may have been carried out all the same,
    ``passing`` that the next answer may be another.
    """
    status, said = answer.status_code, _said(answer)
    passing = status in _PASSING
    # The service itself says so when it does not know; whoever else answers for it cannot know.
    unknown = passing and (not said or _OUTCOME in said)
    maximum = answer.headers.get(_MAXIMUM, "")
    if status == 406 and needed is not None and _number(maximum) < (2, needed):
        sentence = _OLD.format(maximum=maximum or "below that", needed=f"2.{needed}")
    elif not said:
        sentence = _FOREIGN.format(url=answer.url.partition("?")[0], status=status)
    else:
        told = said.rstrip(".").replace(_IN_API, _IN_COMMANDS)
        sentence = f"{told} (HTTP {status})."
        if status in _ADVICE and not unknown:
            sentence += f" {_ADVICE[status]}"
        elif status >= 500 and not unknown:
            request = answer.headers.get("x-openstack-request-id", "unknown")
            sentence += f" The log of cyborg-api knows more about request {request}."
    return exception.CommandFailed(reason=sentence, unknown=unknown, passing=passing)


def foreign(answer: requests.Response) -> exception.CommandFailed:
    """The sentence for an answer of something that is not this service."""
    return exception.CommandFailed(
        reason=_FOREIGN.format(url=answer.url.partition("?")[0], status=answer.status_code)
    )


def _root(fault: BaseException) -> OSError | None:
    """What the operating system said, the last of its sayings on the way to this fault."""
    found: OSError | None = None
    step: BaseException | None = fault
    while step is not None:
        if isinstance(step, OSError) and step.errno is not None:
            found = step
        step = step.__cause__ or step.__context__
    return found


def _first_line(fault: Exception) -> str:
    return str(fault).strip().partition("\n")[0].rstrip(".")


def _said(answer: requests.Response) -> str:
    """The sentence in an error body, of this service or of Keystone's filter before it."""
    try:
        body: Any = answer.json()
    except ValueError:
        return ""
    if not isinstance(body, dict):
        return ""
    message = body.get("error_message") or body.get("error")
    if isinstance(message, str):
        try:
            message = json.loads(message)
        except ValueError:
            return message
    if isinstance(message, dict):
        return str(message.get("faultstring") or message.get("message") or "")
    return ""


def _number(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    return tuple(int(part) for part in parts) if all(map(str.isdigit, parts)) else ()
