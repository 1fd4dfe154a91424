# SPDX-License-Identifier: Apache-2.0
"""The table of the drivers of all hosts."""

from django.utils.translation import gettext_lazy as _
from horizon import tables

from cyborg_dashboard import api, lists, shown


def devices(driver: api.Resource) -> str:
    """Return the numbers of devices of a driver."""
    return str(_("%(found)d found, %(offered)d offered, %(in_use)d in use") % driver["devices"])


class Install(tables.LinkAction):
    """Load a driver on hosts."""

    name, verbose_name = "install", _("Install Driver")
    url = "horizon:admin:accelerator_drivers:install"
    policy_rules = (("accelerator", "cyborg:driver:install"),)


class Update(tables.LinkAction):
    """Change the options of a driver, or switch it on or off."""

    name, verbose_name = "update", _("Update")
    url = "horizon:admin:accelerator_drivers:update"
    policy_rules = (("accelerator", "cyborg:driver:update"),)


class Uninstall(tables.LinkAction):
    """Remove a driver from a host."""

    name, verbose_name = "uninstall", _("Uninstall")
    url = "horizon:admin:accelerator_drivers:uninstall"
    policy_rules = (("accelerator", "cyborg:driver:uninstall"),)


class DriversTable(lists.PagedTable):
    """One row for each driver of a host."""

    name = tables.Column("name", verbose_name=_("Driver"))
    host = tables.Column("host", verbose_name=_("Host"))
    state = tables.Column(shown.worded("state"), verbose_name=_("State"))
    enabled = tables.Column(
        lambda driver: _("yes") if driver["enabled"] else _("no"), verbose_name=_("Enabled")
    )
    version = tables.Column(lambda driver: driver["version"] or "-", verbose_name=_("Version"))
    devices = tables.Column(devices, verbose_name=_("Devices"))
    options = tables.Column(
        lambda driver: (
            shown.lines(f"{name}={text}" for name, text in driver["options"].items()) or "-"
        ),
        verbose_name=_("Options"),
    )
    error = tables.Column(lambda driver: driver["error"] or "-", verbose_name=_("Error"))

    class Meta:
        """See Horizon."""

        name = "drivers"
        verbose_name = _("Drivers")
        multi_select = False
        table_actions = (Install,)
        row_actions = (Update, Uninstall)
        row_actions_dropdown_template = lists.ROW_ACTIONS
