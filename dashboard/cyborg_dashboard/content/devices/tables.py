# SPDX-License-Identifier: Apache-2.0
"""The table of devices."""

from typing import Any
from urllib.parse import urlencode

from django import shortcuts
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from horizon import tables

from cyborg_dashboard import api, lists, shown


def title(device: api.Resource) -> str:
    """Return what a device is called: vendor and model, or its type."""
    vendor, model = device.get("vendor") or "", device.get("model") or ""
    words = [model] if model.startswith(vendor) else [vendor, model]
    return " ".join(part for part in words if part) or str(device["type"])


class _Change(tables.Action):
    """An action on selected devices: a page asks what is needed, and lists them."""

    requires_input = True

    def handle(self, _table: Any, _request: Any, uuids: list[str]) -> Any:
        """Go to the page of the action."""
        url = reverse("horizon:admin:accelerator_devices:change", args=[self.name])
        query = urlencode([("device", uuid) for uuid in uuids])
        return shortcuts.redirect(f"{url}?{query}")


class Enable(_Change):
    """Put devices into service."""

    name = "enable"
    verbose_name = _("Enable")
    verbose_name_plural = _("Enable")
    policy_rules = (("accelerator", "cyborg:device:update"),)


class Disable(_Change):
    """Take devices out of service."""

    name = "disable"
    verbose_name = _("Disable")
    verbose_name_plural = _("Disable")
    policy_rules = (("accelerator", "cyborg:device:update"),)


class Label(_Change):
    """Set or remove a label of devices."""

    name = "label"
    verbose_name = _("Label")
    verbose_name_plural = _("Label")
    policy_rules = (("accelerator", "cyborg:device:update"),)


class DevicesTable(lists.SelectableTable):
    """One row for each device."""

    name = tables.Column(
        title, verbose_name=_("Device"), link="horizon:admin:accelerator_devices:detail"
    )
    host = tables.Column(lambda device: device["hostname"], verbose_name=_("Host"))
    address = tables.Column(lambda device: device.get("address") or "-", verbose_name=_("Address"))
    type = tables.Column("type", verbose_name=_("Type"))
    driver = tables.Column(lambda device: device.get("driver") or "-", verbose_name=_("Driver"))
    state = tables.Column(shown.worded("status"), verbose_name=_("Status"))
    health = tables.Column(shown.worded("health"), verbose_name=_("Health"))
    units = tables.Column(shown.units_in_short, verbose_name=_("Units"))
    servers = tables.Column(shown.servers, verbose_name=_("Servers"))
    labels = tables.Column(shown.labels, verbose_name=_("Labels"))

    class Meta:
        """See Horizon."""

        name = "devices"
        verbose_name = _("Devices")
        multi_select = False
        table_actions = (Enable, Disable, Label)

    def get_object_display(self, datum: api.Resource) -> str:
        """Return the title of the device, and where it is."""
        place = datum.get("address") or datum["uuid"]
        return f"{title(datum)} {datum['hostname']} {place}"
