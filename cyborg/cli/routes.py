# SPDX-License-Identifier: Apache-2.0
"""Which request each command sends: method, path below ``/v2``, query, body, and what answers it.

The one place to look at when the REST API changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

PAGING: Final = ("limit", "marker")
#: Minor versions: what was always there, the operators' resources, and what operators see.
_BASE: Final = 0
_OPERATORS: Final = 4
_VIEWS: Final = 5


@dataclass(frozen=True)
class Route:
    """One request; ``path`` has ``{}`` for each key.

    ``query`` and ``body`` are the names that may be sent. ``wrapper`` is the key of the answer
    under which its content is, empty for a bare answer. A ``long`` one is answered by an
    operation. The request exists since microversion 2.``since``; ``later`` names the query
    parameters and body fields that came after that, each with its first minor version.
    """

    method: str
    path: str
    query: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    wrapper: str = ""
    long: bool = False
    since: int = _OPERATORS
    later: Mapping[str, int] = field(default_factory=dict)

    def url(self, *keys: str) -> str:
        """The path with its keys, each of them one segment whatever is in it."""
        return self.path.format(*(quote(key, safe="") for key in keys))

    def chosen(self, names: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the names that were given a value."""
        return {name: given[name] for name in names if given.get(name) is not None}

    def needs(self, given: Mapping[str, Any]) -> int:
        """The least minor version for a request with these values."""
        sent = self.chosen((*self.query, *self.body), given)
        return max([self.since, *(minor for name, minor in self.later.items() if name in sent)])


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
    "service-delete": Route("DELETE", "/services/{}", long=True),
    "backend-list": Route(
        "GET",
        "/backends",
        query=("host", "driver", "name", "capability", *PAGING),
        wrapper="backends",
        later={"capability": _VIEWS},
    ),
    "backend-show": Route("GET", "/backends/{}"),
    "driver-list": Route(
        "GET", "/drivers", query=("host", "name", "state", *PAGING), wrapper="drivers"
    ),
    "driver-show": Route("GET", "/drivers/{}"),
    "install-driver": Route(
        "POST", "/drivers", query=("wait",), body=("driver", "hosts", "options"), long=True
    ),
    "uninstall-driver": Route("DELETE", "/drivers/{}", query=("wait", "drain"), long=True),
    "update-driver": Route(
        "PATCH", "/drivers/{}", query=("wait",), body=("options", "enabled"), long=True
    ),
    "discover-services": Route(
        "POST",
        "/services/discover",
        query=("wait",),
        body=("hosts", "driver", "setup"),
        long=True,
        later={"setup": _VIEWS},
    ),
    "hardware-list": Route(
        "GET",
        "/hardware",
        query=("host", "driver", "type", "setup_required", "remote", "capability", *PAGING),
        wrapper="hardware",
        later={"remote": _VIEWS, "capability": _VIEWS},
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
        since=_BASE,
        later={"health": _VIEWS},
    ),
    "accelerator-show": Route("GET", "/devices/{}", since=_BASE),
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
        long=True,
    ),
    "accelerator-update": Route(
        "PATCH",
        "/devices/{}",
        body=("status", "status_reason", "labels", "model", "traits"),
        later={"status_reason": _VIEWS},
    ),
    "accelerator-delete": Route("DELETE", "/devices/{}"),
    "profile-list": Route(
        "GET",
        "/device_profiles",
        query=("name", *PAGING),
        wrapper="device_profiles",
        since=_BASE,
    ),
    "profile-show": Route("GET", "/device_profiles/{}", wrapper="device_profile", since=_BASE),
    "profile-create": Route(
        "POST", "/device_profiles", body=("name", "groups", "description"), since=_BASE
    ),
    "profile-update": Route("PATCH", "/device_profiles/{}", body=("name", "groups", "description")),
    "profile-delete": Route("DELETE", "/device_profiles/{}", since=_BASE),
    "arq-list": Route(
        "GET",
        "/accelerator_requests",
        query=("instance", "state", "hostname", "device_profile_name", "project_id", *PAGING),
        wrapper="arqs",
        since=_BASE,
    ),
    "arq-show": Route("GET", "/accelerator_requests/{}", since=_BASE),
    "operation-list": Route(
        "GET",
        "/operations",
        query=("verb", "state", "sort_key", "sort_dir", *PAGING),
        wrapper="operations",
    ),
    "operation-show": Route("GET", "/operations/{}"),
    "attach-instance": Route(
        "POST", "/instances/{}/accelerators", body=("device_profile",), long=True
    ),
    "detach-instance": Route("DELETE", "/instances/{}/accelerators", long=True),
    "detach-accelerator": Route("DELETE", "/instances/{}/accelerators/{}", long=True),
    "event-list": Route(
        "GET",
        "/events",
        query=("device", "host", "instance", "arq", "request_id", "since", *PAGING),
        wrapper="events",
        since=_VIEWS,
    ),
    "usage-show": Route(
        "GET",
        "/usage",
        query=("resource_class", "type", "host", "project_id", "group_by"),
        wrapper="usage",
        since=_VIEWS,
    ),
}
