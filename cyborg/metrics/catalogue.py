# SPDX-License-Identifier: Apache-2.0
"""Every metric of this service, by name, labels and meaning; the documents have the same table.

Labels take values from short lists (states, kinds, verbs, routes), or name hosts, drivers, devices,
device profiles and projects that have units, of which a cloud has as many as it has. None takes
what any client can send.
"""

from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from cyborg.model.report import FIGURES


@dataclass(frozen=True)
class Metric:
    """One metric; ``kind`` is ``gauge``, ``counter`` or ``histogram``."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str

    def family(self) -> GaugeMetricFamily:
        """Return an empty gauge, for a collector to fill."""
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
    "Always 1; the labels give the process and its release.",
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
    "Duration of the requests that the API answered, in seconds.",
)

VERB_SECONDS: Final = Metric(
    "cyborg_rpc_duration_seconds",
    "histogram",
    ("verb", "outcome"),
    "Duration of the message bus calls that this process answered, in seconds.",
)
PEER_FAILURES: Final = Metric(
    "cyborg_peer_failures_total",
    "counter",
    ("peer", "reason"),
    "Failed requests of this process to other services.",
)
DRIVERS: Final = Metric(
    "cyborg_drivers", "gauge", ("driver", "state"), "Hosts by driver and state of the driver."
)

BUS_LISTENING: Final = Metric(
    "cyborg_bus_listening",
    "gauge",
    (),
    "1 while this process receives requests over the message bus, else 0.",
)
PUBLISHING: Final = Metric(
    "cyborg_publishing",
    "gauge",
    (),
    "1 while Placement takes what the agent publishes, else 0.",
)
DATABASE_UP: Final = Metric(
    "cyborg_database_up", "gauge", (), "1 if the database answered for this scrape, else 0."
)
ARQS: Final = Metric("cyborg_arqs", "gauge", ("state",), "Accelerator requests by state.")
HANDLES: Final = Metric(
    "cyborg_attach_handles", "gauge", ("state",), "Attach handles by state; each is one unit."
)
UNITS: Final = Metric(
    "cyborg_units",
    "gauge",
    ("host", "resource_class", "state"),
    "Units by host, resource class and state: used, free, or why they are out of service.",
)
PROJECT_UNITS: Final = Metric(
    "cyborg_project_units",
    "gauge",
    ("project_id", "resource_class"),
    "Units that the accelerator requests of a project have.",
)
PROFILE_CAPACITY: Final = Metric(
    "cyborg_profile_capacity",
    "gauge",
    ("profile",),
    "Further instances of a device profile that fit on the hosts of the cloud now.",
)
INSTANCES_UNATTACHED: Final = Metric(
    "cyborg_instances_unattached",
    "gauge",
    (),
    "Instances that run without an accelerator that is bound to them.",
)
DEVICES: Final = Metric("cyborg_devices", "gauge", ("type", "state"), "Devices by type and state.")
DEVICE_HEALTHY: Final = Metric(
    "cyborg_device_healthy",
    "gauge",
    ("host", "driver", "type", "device"),
    "1 if the health of a device allows its use, 0 if its units are reserved because of it.",
)
WORK: Final = Metric("cyborg_work", "gauge", ("kind",), "Queued work items.")
WORK_OLDEST: Final = Metric(
    "cyborg_work_oldest_seconds",
    "gauge",
    ("kind",),
    "Age of the oldest queued work item, in seconds.",
)
WORK_FAILING: Final = Metric(
    "cyborg_work_failing",
    "gauge",
    ("kind",),
    "Queued work items whose last attempt did not complete.",
)
OPERATIONS: Final = Metric(
    "cyborg_operations", "gauge", ("state",), "Operations in the database by state."
)
NOTIFICATION_LAG: Final = Metric(
    "cyborg_notification_lag_seconds",
    "gauge",
    (),
    "Age of the oldest event that was not sent as a notification yet, in seconds.",
)
BIND_SECONDS: Final = Metric(
    "cyborg_bind_duration_seconds",
    "histogram",
    ("outcome",),
    "Duration of the binds for which a host prepared the device, in seconds.",
)
CLEANINGS: Final = Metric(
    "cyborg_cleanings_total",
    "counter",
    ("result",),
    "Attempts of hosts to clean a unit after its guest, by result.",
)
SERVICES: Final = Metric(
    "cyborg_services", "gauge", ("binary", "state"), "Known services by state, up or down."
)
HEARTBEAT_AGE: Final = Metric(
    "cyborg_service_heartbeat_age_seconds",
    "gauge",
    ("binary", "host"),
    "Age of the last heartbeat of a service, in seconds.",
)

CONDUCTOR_UP: Final = Metric(
    "cyborg_conductor_up", "gauge", (), "1 while a conductor answers this agent, else 0."
)
DRIVER_FAILURES: Final = Metric(
    "cyborg_driver_failures_total",
    "counter",
    ("driver", "verb"),
    "Failed driver calls of this agent.",
)

#: The figures of accelerators, by the names that drivers give them.
DEVICE_STATS: Final = {
    name: Metric(
        f"cyborg_accelerator_{name}", "gauge", ("host", "driver", "type", "device"), meaning
    )
    for name, meaning in FIGURES.items()
}
