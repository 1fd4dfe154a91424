# SPDX-License-Identifier: Apache-2.0
"""The table of the processes of the service on all hosts."""

from collections.abc import Sequence
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from horizon import tables

from cyborg_dashboard import api, drains, lists, shown

AGENT = "cyborg-agent"


def problem(process: api.Resource) -> str:
    """Return what is wrong with a process, and what to do."""
    texts = [process.get("cause"), process.get("remedy")]
    return " ".join(text for text in texts if text) or "-"


class _Change(tables.LinkAction):
    """A page that takes a host out of service, or puts it back."""

    statuses: ClassVar[Sequence[str]]
    policy_rules = (("accelerator", "cyborg:service:update"),)

    def get_link_url(self, datum: api.Resource | None = None) -> str:
        """Return the page for the host of the row."""
        view = "horizon:admin:accelerator_hosts:change"
        return reverse(view, args=[datum["uuid"], self.name]) if datum else ""

    def allowed(self, _request: Any, datum: api.Resource | None) -> bool:
        """Only hosts with an agent have a service to take out."""
        return datum is not None and datum["binary"] == AGENT and datum["status"] in self.statuses


class Disable(_Change):
    """Take a host out of service."""

    name, verbose_name, statuses = "disable", _("Disable"), ("enabled",)


class Enable(_Change):
    """Put a host into service."""

    name, verbose_name, statuses = "enable", _("Enable"), ("disabled",)


class _Drain(_Change):
    """A page of the drain of a host."""

    def get_link_url(self, datum: api.Resource | None = None) -> str:
        """Return the page for the host of the row."""
        view = f"horizon:admin:accelerator_hosts:{self.name}"
        return reverse(view, args=[datum["uuid"]]) if datum else ""


class Drain(_Drain):
    """Empty a host of servers with accelerators."""

    name, verbose_name, statuses = "drain", _("Drain"), ("enabled", "disabled")


class Resume(_Drain):
    """End the drain of a host."""

    name, verbose_name, statuses = "resume", _("Resume"), drains.STATES


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


def service(process: api.Resource) -> Any:
    """Show whether a host is in service; a drain is a link to its page."""
    text = shown.word(process["status"])
    if process["status"] not in drains.STATES:
        return text
    url = reverse("horizon:admin:accelerator_hosts:drain", args=[process["uuid"]])
    return format_html('<a href="{}">{}</a>', url, text)


class HostsTable(lists.PagedTable):
    """One row for each process."""

    host = tables.Column("host", verbose_name=_("Host"), link=devices_link)
    binary = tables.Column("binary", verbose_name=_("Process"))
    state = tables.Column(shown.worded("state"), verbose_name=_("State"))
    status = tables.Column(service, verbose_name=_("Service"))
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
        row_actions = (Disable, Enable, Drain, Resume)
        row_actions_dropdown_template = lists.ROW_ACTIONS
