# SPDX-License-Identifier: Apache-2.0
"""The forms of device profiles."""

from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from horizon import messages

from cyborg_dashboard import api, pages, shown

DETAIL = "horizon:admin:accelerator_profiles:detail"
#: How many devices are read for the traits that the form offers.
_DEVICES: Final = 200


def parse_groups(text: str) -> list[dict[str, str]]:
    """Return the groups in a text: one in each line, of KEY=VALUE separated by commas.

    Raises ValidationError, which names the line. The service checks keys and values.
    """
    groups: list[dict[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        group: dict[str, str] = {}
        for pair in filter(None, (part.strip() for part in line.split(","))):
            key, equals, value = (part.strip() for part in pair.partition("="))
            if not equals or not key:
                raise ValidationError(
                    _("Line %(number)d: %(pair)s does not have the form KEY=VALUE."),
                    params={"number": number, "pair": pair},
                )
            if key in group:
                raise ValidationError(
                    _("Line %(number)d has the key %(key)s twice."),
                    params={"number": number, "key": key},
                )
            group[key] = value
        if group:
            groups.append(group)
    return groups


def offers(client: api.Client) -> dict[str, list[str]]:
    """Return the resource classes of the cloud, and the traits of its devices.

    The traits are those of the first devices of the list; users can type others.
    """
    usage = client.get("/usage")["usage"]
    devices = client.page("/devices", "devices", {"limit": _DEVICES}).items
    return {
        "classes": sorted({row["resource_class"] for row in usage}),
        "traits": sorted({trait for device in devices for trait in device.get("traits") or ()}),
    }


class ProfileForm(pages.Form):
    """The members of a device profile."""

    name = forms.CharField(label=_("Name"), max_length=255)
    description = forms.CharField(
        label=_("Description"), required=False, widget=forms.Textarea(attrs={"rows": 2})
    )
    groups = forms.CharField(
        label=_("Groups"),
        widget=forms.Textarea(attrs={"rows": 4, "spellcheck": "false"}),
        help_text=_(
            "One group in each line, for example resources:FPGA=1, trait:CUSTOM_FPGA_INTEL=required"
        ),
    )
    projects = forms.CharField(
        label=_("Projects"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 2, "spellcheck": "false"}),
        help_text=_(
            "IDs of the projects that may use the profile, separated by commas. Leave it empty for "
            "all projects."
        ),
    )

    def clean_groups(self) -> list[dict[str, str]]:
        """Read the groups."""
        return parse_groups(self.cleaned_data["groups"])

    def members(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the members of the profile that the form describes."""
        return {
            "name": data["name"],
            "description": data["description"] or None,
            "groups": data["groups"],
            "projects": pages.names(data["projects"]) or None,
        }

    def stored(self, profile: api.Resource) -> str:
        """Show the warnings of the service, and return the page of the profile."""
        for warning in profile.get("warnings") or ():
            messages.warning(self.request, warning)
        return str(reverse(DETAIL, args=[profile["uuid"]]))


class CreateForm(ProfileForm):
    """A new device profile."""

    heading = _("Create Device Profile")
    explanation = _(
        "A flavor names the profile in its extra spec accel:device_profile; servers of the flavor "
        "get what the groups request."
    )
    submit = _("Create")

    def act(self, client: api.Client, data: dict[str, Any]) -> str:
        """See Form."""
        members = {name: value for name, value in self.members(data).items() if value is not None}
        return self.stored(client.send("POST", "/device_profiles", [members]))


class UpdateForm(ProfileForm):
    """Changes of a device profile."""

    heading = _("Edit Device Profile")
    explanation = _("Requests that exist do not change.")
    submit = _("Save")

    def act(self, client: api.Client, data: dict[str, Any]) -> Any:
        """See Form."""
        profile = self.initial["profile"]
        changes = {
            name: value for name, value in self.members(data).items() if value != profile[name]
        }
        if not changes:
            return True
        return self.stored(client.send("PATCH", f"/device_profiles/{profile['uuid']}", changes))


def initial(profile: api.Resource) -> dict[str, Any]:
    """Return the fields of the form for a profile that exists."""
    return {
        "profile": profile,
        "name": profile["name"],
        "description": profile["description"] or "",
        "groups": "\n".join(shown.group(group) for group in profile["groups"]),
        "projects": ", ".join(profile["projects"] or ()),
    }
