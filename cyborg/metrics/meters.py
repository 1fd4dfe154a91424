# SPDX-License-Identifier: Apache-2.0
"""Measure a daemon and expose what it measured.

A daemon measures the calls that it answers over the bus and its failed requests to services.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter
from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cyborg import exception
from cyborg.metrics import catalogue

LOG = logging.getLogger(__name__)

PATH: Final = "/metrics"
#: The reasons of failed requests to a service: no answer, an account without permission (401, 403),
#: or an answer with an error (5xx).
FAILURES: Final = ("unreachable", "forbidden", "error")


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
        #: True if the metrics are exposed.
        self.enabled = address is not None
        self.registry = CollectorRegistry()
        self.registry.register(BuildInfo(binary, version))
        self._verbs = catalogue.VERB_SECONDS.histogram(self.registry)
        self._peers = catalogue.PEER_FAILURES.counter(self.registry)

    def listener(self, *collectors: Collector) -> "Listener":
        """Return a server for these metrics and those of ``collectors``; it answers from now on.

        Raises ConfigError when the server cannot listen at the address.
        """
        assert self._address is not None  # noqa: S101 - for mypy
        for collector in collectors:
            self.registry.register(collector)
        return Listener(self._address, self.registry)

    def endpoint(self, endpoint: Any) -> "TimedEndpoint":
        """Return the RPC endpoint with its calls timed."""
        return TimedEndpoint(endpoint, self._verbs)

    def adapter(self, peer: str, adapter: Adapter) -> "CountingAdapter":
        """Return the adapter with its failures counted; ``peer`` names the service."""
        for reason in FAILURES:
            # The counter must exist from the start: a missing series is not the same as 0.
            self._peers.labels(peer, reason)
        return CountingAdapter(adapter, peer, self._peers)


class TimedEndpoint:
    """A wrapper of an RPC endpoint that records the duration of each call."""

    def __init__(self, endpoint: Any, durations: Histogram) -> None:
        self._endpoint = endpoint
        self._durations = durations
        self.target = endpoint.target

    def __getattr__(self, verb: str) -> Any:
        """Return a timed method of the endpoint; oslo.messaging looks it up by name."""
        method = getattr(self._endpoint, verb)

        def timed(context: Mapping[str, Any], **arguments: Any) -> Any:
            began = time.monotonic()
            reply = method(context, **arguments)
            outcome = "ok" if "ok" in reply else "error"
            self._durations.labels(verb, outcome).observe(time.monotonic() - began)
            return reply

        return timed


class CountingAdapter(Adapter):
    """A copy of an adapter that counts failed requests by peer and reason."""

    def __init__(self, adapter: Adapter, peer: str, failures: Counter) -> None:
        # The options come from the configuration; the adapter has no method to copy all of them.
        vars(self).update(vars(adapter))
        self._peer = peer
        self._failures = failures

    def request(self, url: str, method: str, **arguments: Any) -> requests.Response:
        """Send the request; count it if it fails."""
        try:
            response = super().request(url, method, **arguments)
        except (ks_exceptions.ClientException, requests.RequestException):
            self._failures.labels(self._peer, "unreachable").inc()
            raise
        if response.status_code in (401, 403):
            self._failures.labels(self._peer, "forbidden").inc()
        elif response.status_code >= 500:
            self._failures.labels(self._peer, "error").inc()
        return response


class Listener:
    """The metrics server of a daemon, prometheus_client's; it binds its port and answers at once.

    ``address`` is ``host:port``, an IPv6 host in brackets. Raises ConfigError when the server
    cannot listen there.
    """

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        host, _, port = address.rpartition(":")
        try:
            self._server, self._thread = start_http_server(int(port), host.strip("[]"), registry)
        except (OSError, OverflowError) as error:
            raise exception.ConfigError(
                reason=f"metrics_listen = {address} cannot be listened on: {error}"
            ) from error

    @property
    def url(self) -> str:
        """Return the URL of the page with the bound port (port 0 selects a free one)."""
        host, port = self._server.server_address[:2]
        return f"http://{f'[{host!s}]' if ':' in str(host) else host!s}:{port}{PATH}"

    def start(self) -> None:
        """Log the URL."""
        LOG.info("Metrics are available at %s", self.url)

    def stop(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def wait(self) -> None:
        """Wait until the server has stopped."""
        self._thread.join()
