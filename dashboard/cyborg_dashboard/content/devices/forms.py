# SPDX-License-Identifier: Apache-2.0
"""The filters of devices, and what to change on selected ones."""

from typing import Any, ClassVar

from django import forms
from django.utils.translation import gettext_lazy as _
from horizon import forms as horizon_forms
from horizon import messages

from cyborg_dashboard import api, lists
from cyborg_dashboard.content.devices.tables import title

STATES = (
    "inactive",
    "installing",
    "enabled",
    "maintaining",
    "draining",
    "drained",
    "failed",
    "lost",
)
HEALTH = ("ok", "degraded", "drain", "dead", "probation", "parked", "ignored", "unknown")
TYPES = ("GPU", "FPGA", "AICHIP", "QAT", "NIC", "SSD")


class Filters(forms.Form):
    """What the list of devices can be filtered by."""

    hostname = forms.CharField(label=_("Host"), required=False, max_length=255)
    type = forms.ChoiceField(label=_("Type"), required=False, choices=lists.choices(*TYPES))
    driver = forms.CharField(label=_("Driver"), required=False, max_length=255)
    status = forms.ChoiceField(label=_("Status"), required=False, choices=lists.choices(*STATES))
    health = forms.ChoiceField(label=_("Health"), required=False, choices=lists.choices(*HEALTH))
    labels = forms.CharField(
        label=_("Label"),
        required=False,
        max_length=512,
        widget=forms.TextInput(attrs={"placeholder": "rack=7"}),
    )


class ChangeForm(horizon_forms.SelfHandlingForm):
    """Change each of some devices; subclasses say how."""

    heading: ClassVar[Any]
    explanation: ClassVar[Any]
    submit: ClassVar[Any]
    done: ClassVar[Any]

    def body(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the members of the device that change."""
        raise NotImplementedError

    def handle(self, request: Any, data: dict[str, Any]) -> bool:
        """Change the devices one after the other, and say which could not be changed."""
        client, changed = api.client(request), []
        for device in self.initial["devices"]:
            try:
                client.send("PATCH", f"/devices/{device['uuid']}", self.body(data))
            except api.Fault as fault:
                messages.error(
                    request,
                    _("%(device)s on %(host)s: %(reason)s")
                    % {"device": title(device), "host": device["hostname"], "reason": fault},
                )
            else:
                changed.append(device)
        if changed:
            messages.success(request, self.done % {"count": len(changed)})
        return True


class EnableForm(ChangeForm):
    """Put devices into service."""

    heading = _("Enable Devices")
    explanation = _(
        "The host sets up a device that needs it. Then Placement offers the units of the device, "
        "and servers can get them."
    )
    submit = _("Enable")
    done = _("Devices that are put into service: %(count)d")

    def body(self, data: dict[str, Any]) -> dict[str, Any]:
        """See ChangeForm."""
        return {"status": "enabled"}


class DisableForm(ChangeForm):
    """Take devices out of service."""

    heading = _("Disable Devices")
    explanation = _(
        "No server gets a unit of these devices any more. Servers keep the units that they have."
    )
    submit = _("Disable")
    done = _("Devices that are taken out of service: %(count)d")
    reason = forms.CharField(
        label=_("Reason"),
        max_length=255,
        help_text=_("The history of the devices and your colleagues show it."),
    )

    def body(self, data: dict[str, Any]) -> dict[str, Any]:
        """See ChangeForm."""
        return {"status": "maintaining", "status_reason": data["reason"]}


class LabelForm(ChangeForm):
    """Set or remove a label."""

    heading = _("Label Devices")
    explanation = _("Labels are for people and filters. They change nothing else.")
    submit = _("Label")
    done = _("Devices whose labels are changed: %(count)d")
    label = forms.CharField(label=_("Label"), max_length=255, help_text=_("For example rack."))
    value = forms.CharField(
        label=_("Value"),
        max_length=255,
        required=False,
        help_text=_("Leave it empty to remove the label."),
    )

    def body(self, data: dict[str, Any]) -> dict[str, Any]:
        """See ChangeForm."""
        return {"labels": {data["label"]: data["value"] or None}}


FORMS = {"enable": EnableForm, "disable": DisableForm, "label": LabelForm}
