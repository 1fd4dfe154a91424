# SPDX-License-Identifier: Apache-2.0
"""The table of device profiles."""

from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy
from horizon import exceptions, tables

from cyborg_dashboard import api, lists, shown


def projects(profile: api.Resource) -> Any:
    """Return who may use a profile."""
    private = profile.get("projects")
    if private is None:
        return _("all projects")
    return ngettext("%d project", "%d projects", len(private)) % len(private)


class Create(tables.LinkAction):
    """Make a device profile."""

    name, verbose_name = "create", _("Create Device Profile")
    url = "horizon:admin:accelerator_profiles:create"
    policy_rules = (("accelerator", "cyborg:device_profile:create"),)


class Update(tables.LinkAction):
    """Change a device profile."""

    name, verbose_name = "update", _("Edit")
    url = "horizon:admin:accelerator_profiles:update"
    policy_rules = (("accelerator", "cyborg:device_profile:update"),)


class Delete(tables.DeleteAction):
    """Delete device profiles."""

    policy_rules = (("accelerator", "cyborg:device_profile:delete"),)

    @staticmethod
    def action_present(count: int) -> Any:
        """Return the words of the button."""
        # The row says what is deleted, and the table has little room.
        return ngettext_lazy("Delete", "Delete Device Profiles", count)

    @staticmethod
    def action_past(count: int) -> Any:
        """Return the words of the result."""
        return ngettext_lazy("Deleted Device Profile", "Deleted Device Profiles", count)

    def delete(self, request: Any, obj_id: str) -> None:
        """Delete one; the service says why it keeps a profile that is in use."""
        try:
            api.client(request).send("DELETE", f"/device_profiles/{obj_id}")
        except api.Fault as fault:
            exceptions.handle(request, str(fault), escalate=True)


class ProfilesTable(lists.SelectableTable):
    """One row for each device profile."""

    name = tables.Column(
        "name", verbose_name=_("Name"), link="horizon:admin:accelerator_profiles:detail"
    )
    groups = tables.Column(shown.groups, verbose_name=_("Requests"))
    satisfiable = tables.Column(shown.worded("satisfiable"), verbose_name=_("Can Be Met"))
    further = tables.Column(
        lambda profile: "-" if profile.get("further") is None else profile["further"],
        verbose_name=_("Further Servers"),
    )
    projects = tables.Column(projects, verbose_name=_("For"))
    description = tables.Column(
        lambda profile: profile["description"] or "-", verbose_name=_("Description")
    )

    class Meta:
        """See Horizon."""

        name = "profiles"
        verbose_name = _("Device Profiles")
        multi_select = False
        table_actions = (Create, Delete)
        row_actions = (Update, Delete)
        row_actions_dropdown_template = lists.ROW_ACTIONS
