# SPDX-License-Identifier: Apache-2.0
"""The table of the processes of the service on all hosts."""

from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from horizon import tables

from cyborg_dashboard import api, lists, shown

AGENT = "cyborg-agent"


def problem(process: api.Resource) -> str:
    """Return what is wrong with a process, and what to do."""
    texts = [process.get("cause"), process.get("remedy")]
    return " ".join(text for text in texts if text) or "-"


class _Change(tables.LinkAction):
    """A page that takes a host out of service, or puts it back."""

    status: str
    policy_rules = (("accelerator", "cyborg:service:update"),)

    def get_link_url(self, datum: api.Resource | None = None) -> str:
        """Return the page for the host of the row."""
        view = "horizon:admin:accelerator_hosts:change"
        return reverse(view, args=[datum["uuid"], self.name]) if datum else ""

    def allowed(self, _request: Any, datum: api.Resource | None) -> bool:
        """Only hosts with an agent have a service to take out."""
        return datum is not None and datum["binary"] == AGENT and datum["status"] == self.status


class Disable(_Change):
    """Take a host out of service."""

    name, verbose_name, status = "disable", _("Disable"), "enabled"


class Enable(_Change):
    """Put a host into service."""

    name, verbose_name, status = "enable", _("Enable"), "disabled"


class Discover(tables.LinkAction):
    """Read the hardware of hosts now."""

    name, verbose_name = "discover", _("Discover Hardware")
    url = "horizon:admin:accelerator_hosts:discover"
    policy_rules = (("accelerator", "cyborg:service:discover"),)


def devices_link(process: api.Resource) -> str | None:
    """Return the page with the devices of a host, None for a host without an agent."""
    if process["binary"] != AGENT:
        return None
    query = urlencode({"hostname": process["host"]})
    return f"{reverse('horizon:admin:accelerator_devices:index')}?{query}"


class HostsTable(lists.PagedTable):
    """One row for each process."""

    host = tables.Column("host", verbose_name=_("Host"), link=devices_link)
    binary = tables.Column("binary", verbose_name=_("Process"))
    state = tables.Column(shown.worded("state"), verbose_name=_("State"))
    status = tables.Column(shown.worded("status"), verbose_name=_("Service"))
    reason = tables.Column(
        lambda process: process["disabled_reason"] or "-", verbose_name=_("Reason")
    )
    seen = tables.Column(shown.moment_of("last_seen_at"), verbose_name=_("Last Heard"))
    version = tables.Column(lambda process: process["version"] or "-", verbose_name=_("Version"))
    problem = tables.Column(problem, verbose_name=_("What to Do"))

    class Meta:
        """See Horizon."""

        name = "hosts"
        verbose_name = _("Hosts")
        multi_select = False
        table_actions = (Discover,)
        row_actions = (Disable, Enable)
        row_actions_dropdown_template = lists.ROW_ACTIONS
