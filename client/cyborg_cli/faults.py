# SPDX-License-Identifier: Apache-2.0
"""The error messages of requests: what failed, and what to do next."""

import json
import re
import socket
from typing import Any, Final

import requests
from keystoneauth1 import exceptions as ks_exceptions

from cyborg_cli import exception
from cyborg_cli.text import escaped

MAXIMUM_VERSION_HEADER: Final = "OpenStack-API-Maximum-Version"

_UNUSABLE_CREDENTIALS = (
    "The credentials cannot be used: {reason}. Select a cloud with --os-cloud, set OS_AUTH_URL and "
    "the other variables OS_*, or use --os-auth-type none --os-endpoint URL for an API without "
    "Keystone."
)
_NO_KEYSTONE = (
    "Keystone at {url} does not answer: {reason}. The command got no token and sent no request to "
    "the accelerator service. Check OS_AUTH_URL (or --os-cloud), and that Keystone runs."
)
_UNAUTHORIZED = (
    "Keystone rejects the credentials: {reason}. Check user, password and project (--os-cloud, or "
    "the variables OS_*)."
)
_NO_ENDPOINT = (
    "The service catalog has no matching accelerator endpoint: {reason}. Register the endpoint in "
    "Keystone, select another one with --os-region-name and --os-interface, or set "
    "--os-endpoint-override URL."
)
_NO_CONNECTION = (
    "No connection to {url}: {reason}. Check that cyborg-api runs there, or set another URL with "
    "--os-endpoint-override URL."
)
_UNEXPECTED = (
    "{url} does not answer like the accelerator service (HTTP {status}). Check the endpoint in the "
    "service catalog, or set --os-endpoint-override URL."
)
_TOO_OLD = (
    "The service supports microversions up to {maximum}, and the command needs {needed}. Upgrade "
    "cyborg-api first."
)
#: The largest version in a header of the service.
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")
#: HTTP statuses of errors that may be gone at the next request.
_TRANSIENT: Final = frozenset({502, 503, 504})
#: Words by which the service says in a message that the outcome is unknown.
_OUTCOME_UNKNOWN: Final = "outcome unknown"
#: What to do after an error, besides the advice in the message of the service.
_ADVICE: Final = {
    401: "Get a new token, or check the credentials (--os-cloud, or the variables OS_*).",
    403: "Use an account with the role admin, or accelerator_operator for operator commands.",
    503: "It is safe to repeat the command later.",
}


def no_answer(error: Exception, url: str, *, to_keystone: bool = False) -> exception.CommandFailed:
    """Return the error for a request without an answer, with the fields of ``error_answer``.

    ``url`` is the address of the service, or with ``to_keystone`` that of Keystone.
    """
    # The last error of the operating system in the chain of causes gives the best reason.
    os_error: OSError | None = None
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            os_error = cause
        cause = cause.__cause__ or cause.__context__
    reason = (os_error.strerror or str(os_error)) if os_error else _first_line(error)
    if isinstance(error, ks_exceptions.Unauthorized):
        message = _UNAUTHORIZED
    elif isinstance(error, ks_exceptions.EndpointNotFound | ks_exceptions.CatalogException):
        message = _NO_ENDPOINT
    elif isinstance(
        error,
        ks_exceptions.AuthPluginException
        | ks_exceptions.AuthorizationFailure
        | ks_exceptions.MissingRequiredOptions,
    ):
        message = _UNUSABLE_CREDENTIALS
    elif to_keystone:
        message = _NO_KEYSTONE
    else:
        message = _NO_CONNECTION
    connection_error = isinstance(error, ks_exceptions.ConnectionError | requests.RequestException)
    return exception.CommandFailed(
        reason=escaped(message.format(reason=reason, url=url)),
        outcome_unknown=connection_error
        and not to_keystone
        and not isinstance(os_error, ConnectionRefusedError | socket.gaierror),
        transient=connection_error,
    )


def unusable_credentials(error: Exception) -> exception.CommandFailed:
    """Return the error for options and files from which no session can be made."""
    return exception.CommandFailed(reason=_UNUSABLE_CREDENTIALS.format(reason=_first_line(error)))


def error_answer(answer: requests.Response, needed: int | None) -> exception.CommandFailed:
    """Return the error for an answer with an HTTP error status.

    ``needed`` is the minor version that the request needs, None for the latest. The field
    ``outcome_unknown`` of the result says that the service may have carried out the request,
    ``transient`` that the same request may succeed later; ``status`` is that of HTTP.
    """
    status, text = answer.status_code, _message_in(answer)
    transient = status in _TRANSIENT
    # The service says in its message that the outcome is unknown. An answer without such a message
    # comes from a proxy, which cannot know the outcome.
    outcome_unknown = transient and (not text or _OUTCOME_UNKNOWN in text)
    maximum = answer.headers.get(MAXIMUM_VERSION_HEADER, "")
    match = _VERSION.fullmatch(maximum)
    supported = (int(match[1]), int(match[2])) if match else ()
    if status == 406 and needed is not None and supported < (2, needed):
        message = _TOO_OLD.format(maximum=maximum or "an older one", needed=f"2.{needed}")
    elif not text:
        message = _UNEXPECTED.format(url=answer.url.partition("?")[0], status=status)
    else:
        message = f"{text.rstrip('.')} (HTTP {status})."
        if status in _ADVICE and not outcome_unknown:
            message += f" {_ADVICE[status]}"
        elif status >= 500 and not outcome_unknown:
            request = answer.headers.get("x-openstack-request-id", "unknown")
            message += f" See the log of cyborg-api for request {request}."
    return exception.CommandFailed(
        reason=escaped(message),
        outcome_unknown=outcome_unknown,
        transient=transient,
        status=status,
    )


def unexpected_answer(answer: requests.Response) -> exception.CommandFailed:
    """Return the error for an answer that the accelerator service does not give."""
    return exception.CommandFailed(
        reason=_UNEXPECTED.format(url=answer.url.partition("?")[0], status=answer.status_code)
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")


def _message_in(answer: requests.Response) -> str:
    """Return the message in an error body of this service or of Keystone's middleware."""
    try:
        body: Any = answer.json()
    except (ValueError, RecursionError):
        return ""
    if not isinstance(body, dict):
        return ""
    message = body.get("error_message") or body.get("error")
    if isinstance(message, str):
        try:
            message = json.loads(message)
        except ValueError:
            return message
        except RecursionError:
            return ""
    if isinstance(message, dict):
        return str(message.get("faultstring") or message.get("message") or "")
    return ""
