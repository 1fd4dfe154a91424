# SPDX-License-Identifier: Apache-2.0
"""The pages of devices."""

from typing import Any
from uuid import UUID

from django import http
from django.urls import reverse, reverse_lazy
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from cyborg_dashboard import api, drains, lists, pages
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
        context["drain_verb"] = _drain_verb(item)
        context["verbs"] = [
            (form.submit, f"{reverse(CHANGE, args=[verb])}?device={item['uuid']}")
            for verb, form in FORMS.items()
        ]


def _drain_verb(device: api.Resource) -> tuple[Any, str] | None:
    """Return the name and the address of the page that drains a device, or follows its drain.

    Devices that were never set up have nothing to drain.
    """
    url = reverse("horizon:admin:accelerator_devices:drain", args=[device["uuid"]])
    if device["status"] in drains.STATES:
        return _("Follow Drain"), url
    return (_("Drain"), url) if device["status"] in ("enabled", "maintaining") else None


class DrainForm(drains.DrainForm):
    """Empty a device."""

    heading = _("Drain Device")
    explanation = _(
        "No server gets a unit of this device any more. Servers keep the units that they have "
        "until you move or delete them. The device is drained when no server has a unit."
    )
    reason_member = "status_reason"


class ResumeForm(drains.ResumeForm):
    """Put a drained device back into service."""

    heading = _("Resume Device")
    explanation = _(
        "The drain ends. The host sets up the device if it needs that; then Placement offers its "
        "units again."
    )


class DrainView(drains.DrainView):
    """Empty a device, and follow it."""

    form_class: Any = DrainForm
    object_path, index, noun = "/devices/{uuid}", INDEX, _("Device")

    def subject(self) -> str:
        """See DrainView of drains."""
        device = pages.shown_or_redirected(self.request, self.path, INDEX)
        place = device["address"] or device["uuid"]
        return f"{title(device)}, {device['hostname']} {place}"

    def resume_url(self) -> str:
        """See DrainView of drains."""
        return str(reverse("horizon:admin:accelerator_devices:resume", args=[self.kwargs["uuid"]]))


class ResumeView(drains.ResumeView, DrainView):
    """End the drain of a device."""

    form_class = ResumeForm
