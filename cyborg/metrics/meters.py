# SPDX-License-Identifier: Apache-2.0
"""What a daemon counts: its calls over the bus, and the requests of its own that failed."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cyborg.metrics import catalogue
from cyborg.metrics.listener import Listener


class BuildInfo(Collector):
    """Which process this is, as a metric."""

    def __init__(self, binary: str, version: str) -> None:
        self._labels = (binary, version)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See Collector."""
        family = catalogue.BUILD_INFO.family()
        family.add_metric(self._labels, 1)
        return [family]


class BusListening(Collector):
    """Whether this process receives requests over the bus, as a metric.

    ``bus_error`` says why it does not; it is empty while it does.
    """

    def __init__(self, bus_error: Callable[[], str]) -> None:
        self._bus_error = bus_error

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See Collector."""
        family = catalogue.BUS_LISTENING.family()
        family.add_metric((), 0 if self._bus_error() else 1)
        return [family]


class Meters:
    """One daemon's; ``address`` is where they are shown (``host:port``), None: nowhere."""

    def __init__(self, binary: str, version: str, *, address: str | None = None) -> None:
        self._address = address
        self.registry = CollectorRegistry()
        self.registry.register(BuildInfo(binary, version))
        self._verbs = catalogue.VERB_SECONDS.histogram(self.registry)
        self._peers = catalogue.PEER_FAILURES.counter(self.registry)

    @property
    def enabled(self) -> bool:
        """Whether anybody can look."""
        return self._address is not None

    def listener(self, *more: Collector) -> Listener:
        """What shows them and ``more``; takes its port at once.

        Raises ConfigError when it cannot.
        """
        assert self._address is not None
        for one in more:
            self.registry.register(one)
        return Listener(self._address, self.registry)

    def endpoint(self, endpoint: Any) -> "TimedEndpoint":
        """The same RPC endpoint, its calls timed."""
        return TimedEndpoint(endpoint, self)

    def adapter(self, peer: str, adapter: Adapter) -> "WatchedAdapter":
        """The same adapter, its failures counted; ``peer`` is the service behind it."""
        for reason in FAILURES:
            # A counter that is 0 can be told from one that is not there.
            self._peers.labels(peer, reason)
        return WatchedAdapter(adapter, peer, self)

    def note_verb(self, verb: str, outcome: str, seconds: float) -> None:
        """A call over the bus was answered."""
        self._verbs.labels(verb, outcome).observe(seconds)

    def note_failure(self, peer: str, reason: str) -> None:
        """A request to a peer failed; ``reason`` is one of FAILURES."""
        self._peers.labels(peer, reason).inc()


#: Nobody answered, the account was not let in (401, 403), or the answer was an error (5xx).
FAILURES = ("unreachable", "forbidden", "error")


class TimedEndpoint:
    """Stands before an RPC endpoint and tells how long each call took."""

    def __init__(self, endpoint: Any, meters: Meters) -> None:
        self._endpoint = endpoint
        self._meters = meters
        self.target = endpoint.target

    def __getattr__(self, verb: str) -> Any:
        """The verb of the endpoint behind; oslo.messaging looks it up by name."""
        method = getattr(self._endpoint, verb)

        def timed(context: Mapping[str, Any], **arguments: Any) -> Any:
            began = time.monotonic()
            reply = method(context, **arguments)
            outcome = "ok" if "ok" in reply else "error"
            self._meters.note_verb(verb, outcome, time.monotonic() - began)
            return reply

        return timed


class WatchedAdapter(Adapter):
    """An adapter like another, whose failed requests are counted."""

    def __init__(self, adapter: Adapter, peer: str, meters: Meters) -> None:
        # Its options came from the configuration; there is no other way to have all of them.
        vars(self).update(vars(adapter))
        self._peer = peer
        self._meters = meters

    def request(self, url: str, method: str, **arguments: Any) -> requests.Response:
        """Send it; count what keeps it from being answered."""
        try:
            answer = super().request(url, method, **arguments)
        except (ks_exceptions.ClientException, requests.RequestException):
            self._meters.note_failure(self._peer, "unreachable")
            raise
        if answer.status_code in (401, 403):
            self._meters.note_failure(self._peer, "forbidden")
        elif answer.status_code >= 500:
            self._meters.note_failure(self._peer, "error")
        return answer
