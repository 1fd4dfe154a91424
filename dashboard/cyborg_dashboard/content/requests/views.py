# SPDX-License-Identifier: Apache-2.0
"""The pages of accelerator requests."""

from typing import Any

from django import forms
from django.urls import reverse_lazy
from django.utils.translation import gettext_lazy as _
from horizon import messages

from cyborg_dashboard import api, lists, pages
from cyborg_dashboard.content.requests.tables import RequestsTable

INDEX = reverse_lazy("horizon:admin:accelerator_requests:index")
FAILED = "BindFailed"
#: How many failed requests the first page shows with their faults: one request for each.
_FAILED = 5


class Filters(forms.Form):
    """What the list of requests can be filtered by."""

    state = forms.ChoiceField(
        label=_("State"),
        required=False,
        choices=lists.choices(
            "Initial", "BindStarted", "Bound", FAILED, "Unbound", "UnbindFailed", "Deleting"
        ),
    )
    instance = forms.UUIDField(label=_("Server ID"), required=False)
    hostname = forms.CharField(label=_("Host"), required=False, max_length=255)
    device_profile_name = forms.CharField(label=_("Device Profile"), required=False, max_length=255)


class IndexView(lists.ListView):
    """The list of requests; its first page begins with those that failed, and why."""

    template_name = "accelerators/requests/index.html"
    table_class = RequestsTable
    page_title = _("Requests")
    path, collection = "/accelerator_requests", "arqs"
    filters = Filters
    older = True

    @property
    def fixed(self) -> dict[str, str]:
        """The newest come first."""
        return {"sort_dir": "desc"}

    def get_context_data(self, **values: Any) -> dict[str, Any]:
        """Add the failed requests, if nothing is filtered."""
        context: dict[str, Any] = super().get_context_data(**values)
        if not self.request.GET:
            try:
                context["failed"] = self._failed()
            except api.Fault as fault:
                messages.error(self.request, str(fault))
        return context

    def _failed(self) -> list[api.Resource]:
        client = api.client(self.request)
        if not client.is_extended:
            return []
        query = {"state": FAILED, "limit": _FAILED, "sort_dir": "desc"}
        page = client.page(self.path, self.collection, query)
        return [client.get(f"{self.path}/{item['uuid']}") for item in page.items]


class DetailView(pages.ObjectView):
    """A request with its fault and its history."""

    template_name = "accelerators/requests/detail.html"
    path, member, older = "/accelerator_requests/{uuid}", "arq", True
    index = INDEX

    def add(self, context: dict[str, Any], item: Any) -> None:
        """See ObjectView."""
        context["page_title"] = _("Request for %s") % item["device_profile_name"]
