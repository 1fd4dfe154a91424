# SPDX-License-Identifier: Apache-2.0
"""The overview: what is used, what needs attention, and what changed."""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from horizon import messages, views

from cyborg_dashboard import api
from cyborg_dashboard.content.devices.tables import title

#: The health of devices that need attention, worst first; one request is sent for each.
_ATTENTION: Final = ("dead", "drain", "parked", "probation", "degraded")
#: How many profiles, devices of each health, processes and events the page shows.
_PROFILES: Final = 15
_DEVICES: Final = 10
_PROCESSES: Final = 200
_EVENTS: Final = 15
#: Why units are out of service that are not clean, or may not be.
_DIRTY: Final = ("quarantined", "releasing")


class IndexView(views.HorizonTemplateView):
    """The overview. Each part stands for itself: one that cannot be read says why."""

    template_name = "accelerators/overview.html"
    page_title = _("Overview")

    def get_context_data(self, **values: Any) -> dict[str, Any]:
        """Add the parts."""
        context: dict[str, Any] = super().get_context_data(**values)
        client = api.client(self.request)
        parts: dict[str, Callable[[api.Client], Any]] = {
            "usage": usage,
            "capacity": capacity,
            "attention": attention,
            "silent": silent,
            "events": events,
        }
        try:
            if not client.is_extended:
                raise api.TooOld
            for name, part in parts.items():
                context[name] = part(client)
        except api.Fault as fault:
            messages.error(self.request, str(fault))
        return context


def capacity(client: api.Client) -> dict[str, Any]:
    """Return how many further servers get each of the first profiles now, and what limits them."""
    page = client.page("/capacity", "capacity", {"limit": _PROFILES})
    rows = []
    for row in page.items:
        reasons = [f"{count} {reason}" for reason, count in row["reserved"].items()]
        out = sum(row["reserved"].values())
        limits = [f"{name}: {count}" for name, count in row["limits"].items()]
        rows.append({**row, "reasons": ", ".join(reasons), "out": out, "by": ", ".join(limits)})
    return {"rows": rows, "more": page.more}


def usage(client: api.Client) -> list[dict[str, Any]]:
    """Return how many units of each resource class are used, free and out of service."""
    rows = client.get("/usage", {"group_by": "type"})["usage"]
    for row in rows:
        reasons = row["reasons"].items()
        row["reserved"] = ", ".join(f"{count} {reason}" for reason, count in reasons)
        row["dirty"] = sum(count for reason, count in reasons if reason in _DIRTY)
    return list(rows)


def attention(client: api.Client) -> list[dict[str, Any]]:
    """Return devices that need attention, with the reason."""
    devices: list[dict[str, Any]] = []
    index = reverse("horizon:admin:accelerator_devices:index")
    for health in _ATTENTION:
        page = client.page("/devices", "devices", {"health": health, "limit": _DEVICES})
        devices += [{**device, "title": title(device), "all": ""} for device in page.items]
        if page.more:
            devices[-1]["all"] = f"{index}?{urlencode({'health': health})}"
    return devices


def silent(client: api.Client) -> list[api.Resource]:
    """Return the processes that are not heard, or cannot do their work."""
    page = client.page("/services", "services", {"kind": "process", "limit": _PROCESSES})
    return [process for process in page.items if process["state"] != "up" or process["cause"]]


def events(client: api.Client) -> list[api.Resource]:
    """Return the last events."""
    answer = client.get("/events", {"sort_dir": "desc", "limit": _EVENTS})
    return list(answer["events"])
