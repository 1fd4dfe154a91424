# SPDX-License-Identifier: Apache-2.0
"""Send the heartbeats of the API: messages to a conductor that this host serves the API."""

import os
from collections.abc import Callable
from typing import Any, Final

from cyborg import version
from cyborg.api.clock import CachedClock
from cyborg.api.framework import WsgiApp
from cyborg.model.process import API, API_INTERVAL
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import ApiHeartbeat
from cyborg.service import PeriodicTask

#: Workers of a host start together; the jitter spreads their heartbeats.
_JITTER: Final = 0.2


class Heartbeat:
    """Wraps an application; each process sends heartbeats from its first request on.

    Each heartbeat also sets ``clock``. Nothing starts before the first request, which comes after
    the server has forked: threads and connections do not survive a fork. Requests do not wait for
    heartbeats.
    """

    def __init__(
        self,
        app: WsgiApp,
        *,
        conductor: ConductorClient,
        clock: CachedClock,
        host: str,
        endpoint: str | None,
    ) -> None:
        self._app = app
        self._clock = clock
        self._conductor = conductor
        self._host = host
        self._version = version.installed()
        self._endpoint = endpoint or f"{API}@{host}"
        # By process id: a fork copies this dictionary, but not the thread. There is no lock: a
        # fork may copy a lock that is held.
        self._periodics: dict[int, PeriodicTask] = {}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """Start the heartbeats of this process if necessary, and pass the request on."""
        if os.getpid() not in self._periodics:
            periodic = PeriodicTask("heartbeat", self._send, interval=API_INTERVAL, jitter=_JITTER)
            if self._periodics.setdefault(os.getpid(), periodic) is periodic:
                periodic.start()
        return self._app(environ, start_response)

    def _send(self) -> None:
        self._clock.set()
        self._conductor.request(
            ApiHeartbeat(self._host, version=self._version, endpoint=self._endpoint)
        )
