# SPDX-License-Identifier: Apache-2.0
"""Send one request to a peer; every failure becomes Unavailable and names the failed service."""

from typing import Any, Final

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter

from cyborg import exception

#: The name of the identity service in errors.
KEYSTONE: Final = "Keystone"
_REFUSALS = frozenset({401, 403})


def ask(peer: str, adapter: Adapter, method: str, path: str, **arguments: Any) -> requests.Response:
    """Send one request and return the answer, whatever its status below 500.

    Raises exception.Unavailable, which names ``peer``, if there is no connection, no endpoint, no
    permission (401, 403), or a status from 500; the field ``http`` holds the status, if any. The
    error names Keystone if Keystone issues no token.
    """
    fetch_token(adapter)
    try:
        answer = adapter.request(path, method, raise_exc=False, **arguments)
    except ks_exceptions.HttpError as fault:
        # An error answer of the peer is returned; Keystone's is raised, as when a token expired.
        raise _without_token(adapter, fault) from fault
    except (ks_exceptions.ClientException, requests.RequestException) as fault:
        raise exception.Unavailable(peer=peer, reason=_reason(fault), http=None) from fault
    if answer.status_code in _REFUSALS or answer.status_code >= 500:
        raise exception.Unavailable(
            peer=peer,
            reason=f"{method} {path.partition('?')[0]} was answered {answer.status_code}",
            http=answer.status_code,
        )
    return answer


def fetch_token(adapter: Adapter) -> None:
    """Fetch the token of an account, unless a valid one is cached.

    Raises exception.Unavailable, which names Keystone, its URL and the reason.
    """
    if (adapter.auth or adapter.session.auth) is None:
        return
    try:
        adapter.get_token()
    except (ks_exceptions.ClientException, requests.RequestException) as fault:
        raise _without_token(adapter, fault) from fault


def _without_token(adapter: Adapter, fault: Exception) -> exception.Unavailable:
    url = getattr(adapter.auth or adapter.session.auth, "auth_url", None) or "the identity service"
    status = getattr(fault, "http_status", None)
    words = _reason(fault)
    refused = status in _REFUSALS
    reason = f"{url} refuses the account: {words}" if refused else f"no token from {url}: {words}"
    return exception.Unavailable(
        peer=KEYSTONE,
        reason=reason,
        http=status,
        public="The identity service (Keystone) is not available.",
    )


def document(peer: str, answer: requests.Response) -> Any:
    """Return the JSON body of an answer; raise exception.Unavailable if it is not JSON."""
    try:
        return answer.json()
    except ValueError as fault:
        raise exception.Unavailable(
            peer=peer, reason="the answer is not JSON", http=answer.status_code
        ) from fault


def _reason(fault: BaseException) -> str:
    """Return the first line of an error; of a failed connection, the operating system's error."""
    words = str(fault).strip().partition("\n")[0]
    step: BaseException | None = fault
    while step is not None:
        if isinstance(step, OSError) and step.errno is not None:
            # requests adds the names of its own classes and of urllib3's.
            place = words.partition(": HTTP")[0]
            return f"{place}: {step.strerror or step}"
        step = step.__cause__ or step.__context__
    return words
