# SPDX-License-Identifier: Apache-2.0
"""The pages of devices."""

from typing import Any
from uuid import UUID

from django import http
from django.urls import reverse, reverse_lazy
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from cyborg_dashboard import api, lists, pages
from cyborg_dashboard.content.devices.forms import FORMS, Filters
from cyborg_dashboard.content.devices.tables import DevicesTable, title

INDEX = reverse_lazy("horizon:admin:accelerator_devices:index")
CHANGE = "horizon:admin:accelerator_devices:change"
#: How many devices one form changes: as many requests are sent.
_MOST = 100


class IndexView(lists.ListView):
    """The list of devices."""

    table_class = DevicesTable
    page_title = _("Devices")
    path, collection = "/devices", "devices"
    filters = Filters
    older = True


class ChangeView(pages.FormView):
    """Change selected devices."""

    template_name = "accelerators/devices/change.html"
    success_url = INDEX

    @cached_property
    def devices(self) -> list[api.Resource]:
        """The devices that the address of the page names; the user is sent back if one is gone."""
        uuids = list(dict.fromkeys(self.request.GET.getlist("device")))
        if not uuids or len(uuids) > _MOST:
            raise http.Http404
        try:
            paths = [f"/devices/{UUID(uuid)}" for uuid in uuids]
        except ValueError:
            raise http.Http404 from None
        return [pages.shown_or_redirected(self.request, path, INDEX) for path in paths]

    def get_form_class(self) -> Any:
        """Return the form of the verb in the address."""
        try:
            return FORMS[self.kwargs["verb"]]
        except KeyError:
            raise http.Http404 from None

    def get_initial(self) -> dict[str, Any]:
        """Hand the devices to the form."""
        return {"devices": self.devices}

    def get_context_data(self, **values: Any) -> dict[str, Any]:
        """Add the devices."""
        context: dict[str, Any] = super().get_context_data(**values)
        context["devices"] = [{**device, "title": title(device)} for device in self.devices]
        return context


class DetailView(pages.ObjectView):
    """All that is known of a device."""

    template_name = "accelerators/devices/detail.html"
    path, member, older = "/devices/{uuid}", "device", True
    index = INDEX

    def add(self, context: dict[str, Any], item: Any) -> None:
        """See ObjectView."""
        context["page_title"] = title(item)
        context["verbs"] = [
            (form.submit, f"{reverse(CHANGE, args=[verb])}?device={item['uuid']}")
            for verb, form in FORMS.items()
        ]
