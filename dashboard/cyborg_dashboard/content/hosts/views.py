# SPDX-License-Identifier: Apache-2.0
"""The pages of hosts."""

from typing import Any

from django import forms, http
from django.urls import reverse, reverse_lazy
from django.utils.translation import gettext_lazy as _

from cyborg_dashboard import api, drains, lists, pages
from cyborg_dashboard.content.hosts.tables import HostsTable

INDEX = reverse_lazy("horizon:admin:accelerator_hosts:index")
OPERATION = "horizon:admin:accelerator_operations:detail"


class Filters(forms.Form):
    """What the list of hosts can be filtered by."""

    host = forms.CharField(label=_("Host"), required=False, max_length=255)


class IndexView(lists.ListView):
    """The processes of the service."""

    table_class = HostsTable
    page_title = _("Hosts")
    path, collection = "/services", "services"
    filters = Filters

    @property
    def fixed(self) -> dict[str, str]:
        """Services on backends are not listed."""
        return {"kind": "process"}


class DisableForm(pages.Form):
    """Take a host out of service."""

    heading = _("Disable Host")
    explanation = _(
        "No server gets an accelerator of this host any more. Servers keep those that they have."
    )
    submit = _("Disable")
    reason = forms.CharField(
        label=_("Reason"),
        max_length=255,
        help_text=_("The list of hosts shows it to your colleagues."),
    )

    def act(self, client: api.Client, data: dict[str, Any]) -> bool:
        """See Form."""
        body = {"status": "disabled", "disabled_reason": data["reason"]}
        client.send("PATCH", f"/services/{self.initial['uuid']}", body)
        return True


class EnableForm(pages.Form):
    """Put a host into service."""

    heading = _("Enable Host")
    explanation = _("Placement offers the accelerators of this host again.")
    submit = _("Enable")

    def act(self, client: api.Client, data: dict[str, Any]) -> bool:
        """See Form."""
        client.send("PATCH", f"/services/{self.initial['uuid']}", {"status": "enabled"})
        return True


FORMS = {"disable": DisableForm, "enable": EnableForm}


class ChangeView(pages.FormView):
    """Take a host out of service, or put it back."""

    success_url = INDEX
    template_name = "accelerators/hosts/change.html"

    def get_form_class(self) -> Any:
        """Return the form of the verb in the address."""
        try:
            return FORMS[self.kwargs["verb"]]
        except KeyError:
            raise http.Http404 from None

    def get_initial(self) -> dict[str, Any]:
        """Tell the form which process it is."""
        return {"uuid": self.kwargs["uuid"]}

    def get_context_data(self, **values: Any) -> dict[str, Any]:
        """Add the process."""
        path = f"/services/{self.kwargs['uuid']}"
        process = pages.shown_or_redirected(self.request, path, INDEX)
        return {**super().get_context_data(**values), "process": process}


class DrainForm(drains.DrainForm):
    """Empty a host."""

    heading = _("Drain Host")
    explanation = _(
        "No server gets an accelerator of this host any more. Servers keep those that they have "
        "until you move or delete them. The host is drained when no server has one."
    )
    reason_member = "disabled_reason"


class ResumeForm(drains.ResumeForm):
    """Put a drained host back into service."""

    heading = _("Resume Host")
    explanation = _("The drain ends, and Placement offers the accelerators of this host again.")


class DrainView(drains.DrainView):
    """Empty a host, and follow it."""

    form_class: Any = DrainForm
    object_path, index, noun = "/services/{uuid}", INDEX, _("Host")

    def resume_url(self) -> str:
        """See DrainView of drains."""
        return str(reverse("horizon:admin:accelerator_hosts:resume", args=[self.kwargs["uuid"]]))


class ResumeView(drains.ResumeView, DrainView):
    """End the drain of a host."""

    form_class = ResumeForm


class DiscoverForm(pages.OperationForm):
    """Read the hardware of hosts now."""

    heading = _("Discover Hardware")
    explanation = _("Agents read the hardware of their hosts now, not with their next scan.")
    submit = _("Discover")
    hosts = forms.CharField(
        label=_("Hosts"),
        required=False,
        help_text=_("Names, separated by commas. Leave it empty for all hosts."),
    )

    def act(self, client: api.Client, data: dict[str, Any]) -> str:
        """See Form."""
        body = {"hosts": pages.names(data["hosts"])} if data["hosts"] else {}
        operation = client.send("POST", "/services/discover", body, key=str(data["request_key"]))
        return str(reverse(OPERATION, args=[operation["uuid"]]))


class DiscoverView(pages.FormView):
    """Read the hardware of hosts now."""

    form_class = DiscoverForm
    success_url = INDEX
