# SPDX-License-Identifier: Apache-2.0
"""The page of the device profiles that a project may use."""

from typing import Any, Final

from django.utils.translation import gettext_lazy as _
from horizon import tables

from cyborg_dashboard import api, lists, shown

#: What it means for a user whether a profile can be met.
_SENTENCES: Final = {
    "now": _("A server can get it now."),
    "when free": _("A server can get it when others are deleted."),
    "never": _("No host of the cloud has it: ask an administrator."),
}


def prospect(profile: api.Resource) -> Any:
    """Return the sentence for a profile."""
    return _SENTENCES.get(profile.get("satisfiable") or "", "-")


class ProfilesTable(lists.PagedTable):
    """One row for each device profile."""

    name = tables.Column("name", verbose_name=_("Name"))
    groups = tables.Column(shown.groups, verbose_name=_("Requests"))
    satisfiable = tables.Column(shown.worded("satisfiable"), verbose_name=_("Can Be Met"))
    prospect = tables.Column(prospect, verbose_name=_("What It Means"))
    description = tables.Column(
        lambda profile: profile["description"] or "-", verbose_name=_("Description")
    )

    class Meta:
        """See Horizon."""

        name = "profiles"
        verbose_name = _("Device Profiles")


class IndexView(lists.ListView):
    """The device profiles that a project may use."""

    table_class = ProfilesTable
    page_title = _("Device Profiles")
    path, collection = "/device_profiles", "device_profiles"
    older = True
