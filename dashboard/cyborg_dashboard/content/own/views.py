# SPDX-License-Identifier: Apache-2.0
"""The page of a project's accelerators."""

from typing import Any

from django.utils.translation import gettext_lazy as _
from horizon import messages, tables

from cyborg_dashboard import api, lists, shown


class AcceleratorsTable(lists.PagedTable):
    """One row for each accelerator request, by server."""

    server = tables.Column(
        lambda row: (
            shown.server_link(row["instance_uuid"], row.get("server"), admin=False)
            if row["instance_uuid"]
            else "-"
        ),
        verbose_name=_("Server"),
    )
    profile = tables.Column("device_profile_name", verbose_name=_("Device Profile"))
    state = tables.Column(shown.worded("state"), verbose_name=_("State"))
    health = tables.Column(shown.worded("health"), verbose_name=_("Health"))
    kind = tables.Column(
        lambda row: row.get("attach_handle_type") or "-", verbose_name=_("Attached As")
    )
    created = tables.Column(shown.moment_of("created_at"), verbose_name=_("Created"))

    class Meta:
        """See Horizon."""

        name = "accelerators"
        verbose_name = _("Accelerators")


def bars(limits: api.Resource) -> list[dict[str, Any]]:
    """Return the quotas of a project, each with the text and the length of its bar."""
    rows = []
    for name, quota in sorted(limits["quotas"].items()):
        title = _("Accelerators") if name == "accelerator_requests" else name.removeprefix("class:")
        rows.append({"title": title, "used": quota["usage"], "limit": quota["limit"]})
    return rows


class IndexView(lists.ListView):
    """The accelerators of the servers of a project, and its quota."""

    template_name = "accelerators/own.html"
    table_class = AcceleratorsTable
    page_title = _("Accelerators")
    path, collection = "/accelerator_requests", "arqs"
    older = True

    @property
    def fixed(self) -> dict[str, str]:
        """An administrator sees one project here, too."""
        return {"project_id": self.request.user.project_id}

    def rows(self, items: list[api.Resource]) -> list[api.Resource]:
        """Sort the requests by server, and add the names of the servers."""
        client = api.client(self.request)
        names: dict[str, str] = {}
        if client.is_extended and items:
            page = client.page("/devices", "devices", {"in_use": "true", "limit": 100})
            names = {
                server["uuid"]: server["name"]
                for device in page.items
                for server in device.get("instances") or ()
            }
        for item in items:
            item["server"] = names.get(item["instance_uuid"] or "")
        return sorted(items, key=lambda item: item["instance_uuid"] or "")

    def get_context_data(self, **values: Any) -> dict[str, Any]:
        """Add the quota."""
        context: dict[str, Any] = super().get_context_data(**values)
        client = api.client(self.request)
        try:
            if client.is_extended:
                context["quotas"] = bars(client.get("/limits")["limits"])
        except api.Fault as fault:
            messages.error(self.request, str(fault))
        return context
