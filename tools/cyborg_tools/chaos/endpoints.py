# SPDX-License-Identifier: Apache-2.0
"""The REST API as a client behind a load balancer sees it: several endpoints that may fail."""

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import requests

from cyborg_tools.chaos.client_log import NOTHING, ClientLog

#: Seconds after which a client gives an answer up: more than the service ever needs for "unknown".
_PATIENCE = 30.0
#: Seconds for which a request is repeated, and between two tries.
_LONGEST = 120.0
_PAUSE = 0.3


@dataclass(frozen=True)
class Answer:
    """The last response; ``unsure`` counts earlier attempts that may have been executed."""

    status: int
    body: Any
    unsure: int


class Endpoints:
    """Send the requests of one client, and repeat them until there is a final response."""

    def __init__(
        self, urls: Sequence[str], *, client: str, client_log: ClientLog, ended: threading.Event
    ) -> None:
        self._urls = itertools.cycle(urls)
        self._client = client
        self._client_log = client_log
        self._ended = ended
        self._session = requests.Session()
        self._url = next(self._urls)
        #: The request in progress, for the report of a client that is stuck.
        self.asking = ""

    def ask(self, verb: str, method: str, path: str, body: Any = None) -> Answer | None:
        """Ask until the answer is neither 503 nor none; None when that takes too long.

        A status that no client may see is written down as a violation.
        """
        unsure = 0
        end = time.monotonic() + _LONGEST
        self.asking = f"{method} {path}"
        while time.monotonic() < end and not self._ended.is_set():
            answer = self._once(verb, method, path, body)
            if answer is not None and answer.status_code != 503:
                self.asking = ""
                if answer.status_code >= 500:
                    self._never(f"answered {answer.status_code}", method, path)
                elif unsure:
                    self._client_log.settled(self._client)
                return Answer(answer.status_code, _parsed(answer), unsure)
            unsure += 1
            self._ended.wait(_PAUSE)
        if not self._ended.is_set():
            self._never(f"not answered for {_LONGEST:.0f} s", method, path)
        return None

    def _once(self, verb: str, method: str, path: str, body: Any) -> requests.Response | None:
        began = time.monotonic()
        try:
            answer = self._session.request(
                method, f"{self._url}/v2{path}", json=body, timeout=_PATIENCE
            )
        except requests.RequestException:
            self._url = next(self._urls)
            self._client_log.answer(self._client, verb, NOTHING, time.monotonic() - began)
            return None
        taken = time.monotonic() - began
        self._client_log.answer(self._client, verb, str(answer.status_code), taken)
        return answer

    def _never(self, what: str, method: str, path: str) -> None:
        self._client_log.violation(f"{self._client}: {method} {path} was {what}")


def _parsed(answer: requests.Response) -> Any:
    try:
        return answer.json() if answer.content else None
    except ValueError:
        return answer.text
