# SPDX-License-Identifier: Apache-2.0
"""The table of operations."""

from django.utils.translation import gettext_lazy as _
from horizon import tables

from cyborg_dashboard import api, lists, shown


def progress(operation: api.Resource) -> str:
    """Return how many hosts have finished, in words."""
    results = operation.get("results") or []
    done = [result for result in results if result["state"] != "running"]
    return str(_("%(done)d of %(all)d") % {"done": len(done), "all": len(results)})


def subject(operation: api.Resource) -> str:
    """Return what an operation is about."""
    members = operation.get("subject") or {}
    return ", ".join(
        " ".join(value) if isinstance(value, list) else str(value) for value in members.values()
    )


class OperationsTable(lists.PagedTable):
    """One row for each operation."""

    verb = tables.Column(
        lambda operation: operation["verb"].replace("_", " "),
        verbose_name=_("Operation"),
        link="horizon:admin:accelerator_operations:detail",
    )
    subject = tables.Column(subject, verbose_name=_("Subject"))
    state = tables.Column(shown.worded("state"), verbose_name=_("State"))
    hosts = tables.Column(progress, verbose_name=_("Hosts Finished"))
    created = tables.Column(shown.moment_of("created_at"), verbose_name=_("Started"))
    finished = tables.Column(shown.moment_of("finished_at"), verbose_name=_("Finished"))
    error = tables.Column(lambda operation: operation["error"] or "-", verbose_name=_("Error"))

    class Meta:
        """See Horizon."""

        name = "operations"
        verbose_name = _("Operations")
