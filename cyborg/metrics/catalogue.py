# SPDX-License-Identifier: Apache-2.0
"""All metrics of this service with name, labels and help text; the documents have the same table.

The values of labels come from short lists (states, kinds, verbs, routes), or name hosts, drivers
and devices of the cloud. No label has a value that a client sends.
"""

from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from cyborg.model.reading import FIGURES


@dataclass(frozen=True)
class Metric:
    """One metric; ``kind`` is ``gauge``, ``counter`` or ``histogram``, ``help`` its help text."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str

    def family(self) -> GaugeMetricFamily:
        """Return an empty gauge for a collector to fill."""
        return GaugeMetricFamily(self.name, self.help, labels=self.labels)

    def counter(self, registry: CollectorRegistry) -> Counter:
        """Return a counter of this process."""
        return Counter(self.name, self.help, self.labels, registry=registry)

    def histogram(self, registry: CollectorRegistry) -> Histogram:
        """Return a histogram of durations in this process, in seconds."""
        return Histogram(self.name, self.help, self.labels, registry=registry, buckets=_SECONDS)


_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

BUILD_INFO: Final = Metric(
    "cyborg_build_info",
    "gauge",
    ("binary", "version"),
    "Always 1; the labels name the process and its version.",
)

REQUESTS: Final = Metric(
    "cyborg_http_requests_total",
    "counter",
    ("route", "method", "status"),
    "Requests that the API answered.",
)
REQUEST_SECONDS: Final = Metric(
    "cyborg_http_request_duration_seconds",
    "histogram",
    ("route", "method"),
    "Duration of requests to the API.",
)

VERB_SECONDS: Final = Metric(
    "cyborg_rpc_duration_seconds",
    "histogram",
    ("verb", "outcome"),
    "Duration of calls that this process answered over the message bus.",
)
PEER_FAILURES: Final = Metric(
    "cyborg_peer_failures_total",
    "counter",
    ("peer", "reason"),
    "Failed requests of this process to other services.",
)
DRIVERS: Final = Metric(
    "cyborg_drivers",
    "gauge",
    ("driver", "state"),
    "Number of hosts on which a driver is in a state.",
)

BUS_LISTENING: Final = Metric(
    "cyborg_bus_listening",
    "gauge",
    (),
    "1 while this process receives requests over the message bus, else 0.",
)
DATABASE_UP: Final = Metric(
    "cyborg_database_up", "gauge", (), "1 if the database answered for this scrape, else 0."
)
ARQS: Final = Metric("cyborg_arqs", "gauge", ("state",), "Accelerator requests (ARQs).")
HANDLES: Final = Metric(
    "cyborg_attach_handles", "gauge", ("state",), "Attach handles; each is one unit of a device."
)
UNITS: Final = Metric(
    "cyborg_units",
    "gauge",
    ("host", "resource_class", "state"),
    "Units by host and resource class.",
)
UNITS_LEAKED: Final = Metric(
    "cyborg_units_leaked",
    "gauge",
    (),
    "Units that are held although no accelerator request has them.",
)
DEVICES: Final = Metric("cyborg_devices", "gauge", ("type", "state"), "Devices.")
DEVICE_HEALTHY: Final = Metric(
    "cyborg_device_healthy",
    "gauge",
    ("host", "driver", "type", "device"),
    "1 if a device is healthy, 0 if its units are reserved because it is not.",
)
WORK: Final = Metric("cyborg_work", "gauge", ("kind",), "Work items in the queue.")
WORK_OLDEST: Final = Metric(
    "cyborg_work_oldest_seconds", "gauge", ("kind",), "Age of the oldest work item."
)
WORK_FAILING: Final = Metric(
    "cyborg_work_failing",
    "gauge",
    ("kind",),
    "Work items whose last attempt did not succeed.",
)
OPERATIONS: Final = Metric("cyborg_operations", "gauge", ("state",), "Operations that are stored.")
NOTIFICATION_LAG: Final = Metric(
    "cyborg_notification_lag_seconds",
    "gauge",
    (),
    "Age of the oldest event that has not been sent as a notification.",
)
BIND_SECONDS: Final = Metric(
    "cyborg_bind_duration_seconds",
    "histogram",
    ("outcome",),
    "Duration of binds for which an agent had to prepare the device.",
)
SERVICES: Final = Metric(
    "cyborg_services", "gauge", ("binary", "state"), "Registered services, up or down."
)
HEARTBEAT_AGE: Final = Metric(
    "cyborg_service_heartbeat_age_seconds",
    "gauge",
    ("binary", "host"),
    "Age of the last heartbeat of a service.",
)

CONDUCTOR_UP: Final = Metric(
    "cyborg_conductor_up", "gauge", (), "1 while a conductor answers this agent, else 0."
)
DRIVER_FAILURES: Final = Metric(
    "cyborg_driver_failures_total",
    "counter",
    ("driver", "verb"),
    "Failed calls of this agent to drivers.",
)

#: The statistics of accelerators, by the names that drivers use.
DEVICE_STATS: Final = {
    name: Metric(f"cyborg_accelerator_{name}", "gauge", ("host", "driver", "type", "device"), text)
    for name, text in FIGURES.items()
}

#: The metrics of each process.
API_METRICS: Final = (BUILD_INFO, REQUESTS, REQUEST_SECONDS)
CONDUCTOR_METRICS: Final = (
    BUILD_INFO,
    VERB_SECONDS,
    PEER_FAILURES,
    BUS_LISTENING,
    DATABASE_UP,
    ARQS,
    HANDLES,
    UNITS,
    UNITS_LEAKED,
    DEVICES,
    DEVICE_HEALTHY,
    WORK,
    WORK_OLDEST,
    WORK_FAILING,
    OPERATIONS,
    NOTIFICATION_LAG,
    BIND_SECONDS,
    SERVICES,
    HEARTBEAT_AGE,
    DRIVERS,
    *DEVICE_STATS.values(),
)
AGENT_METRICS: Final = (
    BUILD_INFO,
    VERB_SECONDS,
    PEER_FAILURES,
    BUS_LISTENING,
    CONDUCTOR_UP,
    DRIVERS,
    DRIVER_FAILURES,
)
