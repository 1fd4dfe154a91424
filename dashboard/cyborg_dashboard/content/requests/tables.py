# SPDX-License-Identifier: Apache-2.0
"""The table of accelerator requests."""

from typing import Any

from django.utils.translation import gettext_lazy as _
from horizon import tables

from cyborg_dashboard import api, lists, shown


def server(request: api.Resource) -> Any:
    """Show the server of a request."""
    uuid = request["instance_uuid"]
    return shown.server_link(uuid, None) if uuid else "-"


class RequestsTable(lists.PagedTable):
    """One row for each request."""

    uuid = tables.Column(
        "uuid", verbose_name=_("Request"), link="horizon:admin:accelerator_requests:detail"
    )
    state = tables.Column(shown.worded("state"), verbose_name=_("State"))
    health = tables.Column(shown.worded("health"), verbose_name=_("Health"))
    profile = tables.Column("device_profile_name", verbose_name=_("Device Profile"))
    server = tables.Column(server, verbose_name=_("Server"))
    host = tables.Column(lambda request: request["hostname"] or "-", verbose_name=_("Host"))
    project = tables.Column(
        lambda request: request.get("project_id") or "-", verbose_name=_("Project")
    )
    created = tables.Column(shown.moment_of("created_at"), verbose_name=_("Created"))

    class Meta:
        """See Horizon."""

        name = "requests"
        verbose_name = _("Requests")
