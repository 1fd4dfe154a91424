# SPDX-License-Identifier: Apache-2.0
"""Measure the calls that a daemon answers over the bus, and its failed requests to services."""

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
    """Collects ``cyborg_build_info``: the process and its version."""

    def __init__(self, binary: str, version: str) -> None:
        self._labels = (binary, version)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See Collector."""
        family = catalogue.BUILD_INFO.family()
        family.add_metric(self._labels, 1)
        return [family]


class BusListening(Collector):
    """Collects ``cyborg_bus_listening``: whether this process receives requests over the bus.

    ``bus_error`` returns why it does not, and is empty while it does.
    """

    def __init__(self, bus_error: Callable[[], str]) -> None:
        self._bus_error = bus_error

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See Collector."""
        family = catalogue.BUS_LISTENING.family()
        family.add_metric((), 0 if self._bus_error() else 1)
        return [family]


class Meters:
    """The metrics of one daemon; ``address`` is where to expose them (``host:port``) or None."""

    def __init__(self, binary: str, version: str, *, address: str | None = None) -> None:
        self._address = address
        self.registry = CollectorRegistry()
        self.registry.register(BuildInfo(binary, version))
        self._verbs = catalogue.VERB_SECONDS.histogram(self.registry)
        self._peers = catalogue.PEER_FAILURES.counter(self.registry)

    @property
    def enabled(self) -> bool:
        """Return whether the metrics are exposed."""
        return self._address is not None

    def listener(self, *collectors: Collector) -> Listener:
        """Return a server for these metrics and those of ``collectors``; it binds its port here.

        Raises ConfigError when the server cannot listen at the address.
        """
        assert self._address is not None
        for collector in collectors:
            self.registry.register(collector)
        return Listener(self._address, self.registry)

    def endpoint(self, endpoint: Any) -> "TimedEndpoint":
        """Return the RPC endpoint with its calls timed."""
        return TimedEndpoint(endpoint, self)

    def adapter(self, peer: str, adapter: Adapter) -> "CountingAdapter":
        """Return the adapter with its failures counted; ``peer`` names the service."""
        for reason in FAILURES:
            # The counter must exist from the start: a missing series is not the same as 0.
            self._peers.labels(peer, reason)
        return CountingAdapter(adapter, peer, self)

    def record_call(self, verb: str, outcome: str, seconds: float) -> None:
        """Record a call that was answered over the bus."""
        self._verbs.labels(verb, outcome).observe(seconds)

    def count_failure(self, peer: str, reason: str) -> None:
        """Count a failed request to a peer; ``reason`` is one of FAILURES."""
        self._peers.labels(peer, reason).inc()


#: No answer, an account without permission (401, 403), or an answer with an error (5xx).
FAILURES = ("unreachable", "forbidden", "error")


class TimedEndpoint:
    """A wrapper of an RPC endpoint that records the duration of each call."""

    def __init__(self, endpoint: Any, meters: Meters) -> None:
        self._endpoint = endpoint
        self._meters = meters
        self.target = endpoint.target

    def __getattr__(self, verb: str) -> Any:
        """Return a timed method of the endpoint; oslo.messaging looks it up by name."""
        method = getattr(self._endpoint, verb)

        def timed(context: Mapping[str, Any], **arguments: Any) -> Any:
            began = time.monotonic()
            reply = method(context, **arguments)
            outcome = "ok" if "ok" in reply else "error"
            self._meters.record_call(verb, outcome, time.monotonic() - began)
            return reply

        return timed


class CountingAdapter(Adapter):
    """A copy of an adapter that counts failed requests."""

    def __init__(self, adapter: Adapter, peer: str, meters: Meters) -> None:
        # The options come from the configuration; the adapter has no method to copy all of them.
        vars(self).update(vars(adapter))
        self._peer = peer
        self._meters = meters

    def request(self, url: str, method: str, **arguments: Any) -> requests.Response:
        """Send the request; count it if it fails."""
        try:
            response = super().request(url, method, **arguments)
        except (ks_exceptions.ClientException, requests.RequestException):
            self._meters.count_failure(self._peer, "unreachable")
            raise
        if response.status_code in (401, 403):
            self._meters.count_failure(self._peer, "forbidden")
        elif response.status_code >= 500:
            self._meters.count_failure(self._peer, "error")
        return response
