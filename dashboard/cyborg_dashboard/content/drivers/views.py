# SPDX-License-Identifier: Apache-2.0
"""The pages of drivers."""

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.urls import reverse, reverse_lazy
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from cyborg_dashboard import api, lists, pages
from cyborg_dashboard.content.drivers.tables import DriversTable

INDEX = reverse_lazy("horizon:admin:accelerator_drivers:index")
OPERATION = "horizon:admin:accelerator_operations:detail"


class Filters(forms.Form):
    """What the list of drivers can be filtered by."""

    host = forms.CharField(label=_("Host"), required=False, max_length=255)
    name = forms.CharField(label=_("Driver"), required=False, max_length=255)


class IndexView(lists.ListView):
    """The drivers of all hosts."""

    table_class = DriversTable
    page_title = _("Drivers")
    path, collection = "/drivers", "drivers"
    filters = Filters


class Options(forms.CharField):
    """Options of a driver: lines of the form NAME=VALUE."""

    widget = forms.Textarea(attrs={"rows": 4, "spellcheck": "false"})

    def clean(self, value: Any) -> dict[str, str]:
        """Return the options by their names."""
        options: dict[str, str] = {}
        for number, line in enumerate(super().clean(value).splitlines(), 1):
            name, equals, text = line.strip().partition("=")
            if not line.strip():
                continue
            if not equals or not name.strip():
                raise ValidationError(
                    _("Line %(number)d does not have the form NAME=VALUE."),
                    params={"number": number},
                )
            options[name.strip()] = text.strip()
        return options


class InstallForm(pages.OperationForm):
    """Load a driver on hosts."""

    heading = _("Install Driver")
    explanation = _(
        "The agents load the driver now, and at each start. The package of the driver must be "
        "installed on the hosts."
    )
    submit = _("Install")
    driver = forms.CharField(
        label=_("Driver"), max_length=255, help_text=_("For example nvidia_gpu_driver.")
    )
    hosts = forms.CharField(
        label=_("Hosts"),
        required=False,
        help_text=_("Names, separated by commas. Leave it empty for all hosts."),
    )
    options = Options(
        label=_("Options"), required=False, help_text=_("One option in each line: NAME=VALUE.")
    )

    def act(self, client: api.Client, data: dict[str, Any]) -> str:
        """See Form."""
        body: dict[str, Any] = {"driver": data["driver"]}
        if data["hosts"]:
            body["hosts"] = pages.names(data["hosts"])
        if data["options"]:
            body["options"] = data["options"]
        operation = client.send("POST", "/drivers", body, key=str(data["request_key"]))
        return str(reverse(OPERATION, args=[operation["uuid"]]))


class UpdateForm(pages.OperationForm):
    """Change the options of a driver, or switch it on or off."""

    heading = _("Update Driver")
    explanation = _("The agent of the host loads the driver again with the new options.")
    submit = _("Update")
    enabled = forms.BooleanField(
        label=_("Enabled"),
        required=False,
        help_text=_("The devices of a driver that is not enabled are out of service."),
    )
    options = Options(
        label=_("Options"),
        required=False,
        help_text=_("One option in each line: NAME=VALUE. Options that are left out are removed."),
    )

    def act(self, client: api.Client, data: dict[str, Any]) -> str | bool:
        """See Form."""
        driver, body = self.initial["driver"], {}
        removed = driver["options"].keys() - data["options"].keys()
        changed = {
            name: text
            for name, text in data["options"].items()
            if driver["options"].get(name) != text
        }
        if removed or changed:
            body["options"] = {**dict.fromkeys(removed), **changed}
        if data["enabled"] != driver["enabled"]:
            body["enabled"] = data["enabled"]
        if not body:
            return True
        key = str(data["request_key"])
        operation = client.send("PATCH", f"/drivers/{driver['uuid']}", body, key=key)
        return str(reverse(OPERATION, args=[operation["uuid"]]))


class UninstallForm(pages.OperationForm):
    """Remove a driver from a host."""

    heading = _("Uninstall Driver")
    explanation = _("The agent unloads the driver, and the devices that it offers are removed.")
    submit = _("Uninstall")
    drain = forms.BooleanField(
        label=_("Wait for servers"),
        required=False,
        help_text=_("Take the devices out of service now, and remove them when no server has one."),
    )

    def act(self, client: api.Client, data: dict[str, Any]) -> str:
        """See Form."""
        query = {"drain": "true"} if data["drain"] else {}
        operation = client.send(
            "DELETE",
            f"/drivers/{self.initial['driver']['uuid']}",
            key=str(data["request_key"]),
            **query,
        )
        return str(reverse(OPERATION, args=[operation["uuid"]]))


class InstallView(pages.FormView):
    """Load a driver on hosts."""

    form_class = InstallForm
    success_url = INDEX


class _ChangeView(pages.FormView):
    """Change the driver in the address."""

    success_url = INDEX
    template_name = "accelerators/drivers/change.html"

    @cached_property
    def driver(self) -> api.Resource:
        """The driver."""
        path = f"/drivers/{self.kwargs['uuid']}"
        driver: api.Resource = pages.shown_or_redirected(self.request, path, INDEX)
        return driver

    def get_initial(self) -> dict[str, Any]:
        """Fill the form with what the driver has."""
        options = "\n".join(f"{name}={text}" for name, text in self.driver["options"].items())
        return {"driver": self.driver, "enabled": self.driver["enabled"], "options": options}

    def get_context_data(self, **values: Any) -> dict[str, Any]:
        """Add the driver."""
        return {**super().get_context_data(**values), "driver": self.driver}


class UpdateView(_ChangeView):
    """Change the options of a driver, or switch it on or off."""

    form_class = UpdateForm


class UninstallView(_ChangeView):
    """Remove a driver from a host."""

    form_class = UninstallForm
