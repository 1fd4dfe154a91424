# SPDX-License-Identifier: Apache-2.0
"""The REST request of each command: method, path below ``/v2``, query, body and wrapper.

A change of the REST API changes this module only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

PAGING: Final = ("limit", "marker")
#: Minor versions: the original API, the newest one that the existing service shares with this API,
#: and the one with all additions. The existing service may give 2.4 to 2.99 any meaning.
BASE: Final = 0
SHARED: Final = 3
EXTENDED: Final = 100


@dataclass(frozen=True)
class Route:
    """One request; ``path`` has ``{}`` for each key.

    ``query`` and ``body`` are the names that may be sent. ``wrapper`` is the key under which the
    answer holds its content, empty for an answer that is the content. The request
    exists since microversion 2.``since``; ``extended`` names the query parameters and body fields
    of an older request that 2.100 added.
    """

    method: str
    path: str
    query: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    wrapper: str = ""
    since: int = EXTENDED
    extended: tuple[str, ...] = ()

    def url(self, *keys: str) -> str:
        """Return the path with its keys; each key is quoted to be one segment."""
        return self.path.format(*(quote(key, safe="") for key in keys))

    def select(self, names: tuple[str, ...], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of these names, without those that are None."""
        return {name: values[name] for name in names if values.get(name) is not None}

    def minimum_version(self, values: Mapping[str, Any]) -> int:
        """Return the lowest minor version that accepts a request with these values."""
        # None in a body removes a value.
        names = {*self.select(self.query, values), *(name for name in self.body if name in values)}
        return self.since if names.isdisjoint(self.extended) else EXTENDED


ROUTES: Final[Mapping[str, Route]] = {
    "service-list": Route(
        "GET",
        "/services",
        query=("kind", "host", "driver", "backend", *PAGING),
        wrapper="services",
    ),
    "service-show": Route("GET", "/services/{}"),
    "service-enable": Route("PATCH", "/services/{}", body=("status",)),
    "service-disable": Route("PATCH", "/services/{}", body=("status", "disabled_reason")),
    # host-drain and accelerator-drain send the request of service-disable or accelerator-update.
    "host-drain": Route("GET", "/services/{}/drain", wrapper="drain"),
    "host-resume": Route("PATCH", "/services/{}", body=("status",)),
    "service-delete": Route("DELETE", "/services/{}", query=("force",)),
    "backend-list": Route(
        "GET",
        "/backends",
        query=("host", "driver", "name", "capability", *PAGING),
        wrapper="backends",
    ),
    "backend-show": Route("GET", "/backends/{}"),
    "driver-list": Route(
        "GET", "/drivers", query=("host", "name", "state", *PAGING), wrapper="drivers"
    ),
    "driver-show": Route("GET", "/drivers/{}"),
    "install-driver": Route(
        "POST",
        "/drivers",
        query=("wait",),
        body=("driver", "hosts", "options"),
    ),
    "uninstall-driver": Route("DELETE", "/drivers/{}", query=("wait", "drain", "force")),
    "update-driver": Route("PATCH", "/drivers/{}", query=("wait",), body=("options", "enabled")),
    "discover-services": Route(
        "POST",
        "/services/discover",
        query=("wait",),
        body=("hosts", "driver", "setup"),
    ),
    "hardware-list": Route(
        "GET",
        "/hardware",
        query=("host", "driver", "type", "setup_required", "remote", "capability", *PAGING),
        wrapper="hardware",
    ),
    "hardware-show": Route("GET", "/hardware/{}"),
    "accelerator-list": Route(
        "GET",
        "/devices",
        query=(
            "hostname",
            "driver",
            "backend",
            "type",
            "vendor",
            "status",
            "health",
            "in_use",
            "instance",
            "labels",
            *PAGING,
        ),
        wrapper="devices",
        since=BASE,
        extended=("driver", "backend", "health", "in_use", "instance", "labels"),
    ),
    "accelerator-show": Route("GET", "/devices/{}", since=BASE),
    "accelerator-create": Route(
        "POST",
        "/devices",
        query=("wait",),
        body=(
            "host",
            "driver",
            "backend",
            "model",
            "type",
            "resource_class",
            "traits",
            "handles",
            "labels",
        ),
    ),
    "accelerator-update": Route(
        "PATCH",
        "/devices/{}",
        body=(
            *("status", "status_reason", "health", "ignore_for", "labels", "model", "traits"),
            "free_unit",
        ),
    ),
    "accelerator-drain": Route("GET", "/devices/{}/drain", wrapper="drain"),
    "accelerator-resume": Route("PATCH", "/devices/{}", body=("status",)),
    "accelerator-delete": Route("DELETE", "/devices/{}", query=("force",)),
    "profile-list": Route(
        "GET",
        "/device_profiles",
        query=("name", *PAGING),
        wrapper="device_profiles",
        since=BASE,
    ),
    "profile-show": Route("GET", "/device_profiles/{}", wrapper="device_profile", since=BASE),
    "profile-explain": Route(
        "GET",
        "/device_profiles/{}/explain",
        query=("flavor", "host", "instance"),
        wrapper="explanation",
    ),
    "instance-move": Route(
        "GET",
        "/device_profiles/{}/explain",
        query=("flavor", "host"),
        wrapper="explanation",
    ),
    "profile-create": Route(
        "POST",
        "/device_profiles",
        body=("name", "groups", "description", "projects"),
        since=BASE,
        extended=("projects",),
    ),
    "profile-update": Route(
        "PATCH",
        "/device_profiles/{}",
        body=("name", "groups", "description", "projects"),
    ),
    "profile-delete": Route("DELETE", "/device_profiles/{}", since=BASE),
    # The first request of each; profile-apply then sends those of the three commands above.
    "profile-apply": Route(
        "GET", "/device_profiles", query=PAGING, wrapper="device_profiles", since=BASE
    ),
    "profile-export": Route(
        "GET",
        "/device_profiles",
        query=("name", *PAGING),
        wrapper="device_profiles",
        since=BASE,
    ),
    "arq-list": Route(
        "GET",
        "/accelerator_requests",
        query=("instance", "state", "hostname", "device_profile_name", "project_id", *PAGING),
        wrapper="arqs",
        since=BASE,
    ),
    "arq-show": Route("GET", "/accelerator_requests/{}", since=BASE),
    "operation-list": Route(
        "GET",
        "/operations",
        query=("verb", "state", "sort_key", "sort_dir", *PAGING),
        wrapper="operations",
    ),
    "operation-show": Route("GET", "/operations/{}"),
    "attach-instance": Route("POST", "/instances/{}/accelerators", body=("device_profile",)),
    "detach-instance": Route("DELETE", "/instances/{}/accelerators"),
    "detach-accelerator": Route("DELETE", "/instances/{}/accelerators/{}"),
    "event-list": Route(
        "GET",
        "/events",
        query=("device", "host", "instance", "arq", "request_id", "since", *PAGING),
        wrapper="events",
    ),
    "watch": Route(
        "GET",
        "/events",
        query=(
            *("device", "host", "instance", "arq", "request_id", "since"),
            *("wait", "marker", "seen"),
        ),
        wrapper="events",
    ),
    "top": Route("GET", "/devices", query=("hostname", "type", *PAGING), wrapper="devices"),
    "capacity": Route(
        "GET", "/capacity", query=("profile", "host", "by", *PAGING), wrapper="capacity"
    ),
    "limits-show": Route("GET", "/limits", wrapper="limits"),
    "usage-show": Route(
        "GET",
        "/usage",
        query=("resource_class", "type", "host", "project_id", "group_by"),
        wrapper="usage",
    ),
    "usage-list": Route(
        "GET",
        "/usage",
        query=(
            *("resource_class", "type", "host", "project_id", "profile", "instance", "group_by"),
            *("start", "end"),
        ),
        wrapper="usage",
    ),
}
