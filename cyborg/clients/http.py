# SPDX-License-Identifier: Apache-2.0
"""One request to a peer: whatever keeps it from being answered becomes exception.Unavailable."""

from typing import Any

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter

from cyborg import exception


def ask(peer: str, adapter: Adapter, method: str, path: str, **arguments: Any) -> requests.Response:
    """Send one request and return the answer, whatever its status below 500.

    Raises exception.Unavailable, naming ``peer``, when there is no connection, no endpoint, no
    token, no right to be there (401, 403) or a 5xx; its field ``http`` holds the status then.
    """
    try:
        answer = adapter.request(path, method, raise_exc=False, **arguments)
    except (ks_exceptions.ClientException, requests.RequestException) as fault:
        raise exception.Unavailable(peer=peer, reason=_first_line(str(fault)), http=None) from fault
    if answer.status_code in (401, 403) or answer.status_code >= 500:
        raise exception.Unavailable(
            peer=peer,
            reason=f"{method} {path.partition('?')[0]} was answered {answer.status_code}",
            http=answer.status_code,
        )
    return answer


def document(peer: str, answer: requests.Response) -> Any:
    """The JSON body of an answer; one that is no JSON comes from something else than ``peer``."""
    try:
        return answer.json()
    except ValueError as fault:
        raise exception.Unavailable(
            peer=peer, reason="the answer is not JSON", http=answer.status_code
        ) from fault


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
