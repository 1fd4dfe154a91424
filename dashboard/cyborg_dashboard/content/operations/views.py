# SPDX-License-Identifier: Apache-2.0
"""The pages of operations."""

from typing import Any

from django import forms
from django.urls import reverse_lazy
from django.utils.translation import gettext_lazy as _

from cyborg_dashboard import lists, pages
from cyborg_dashboard.content.operations.tables import OperationsTable, progress, subject

INDEX = reverse_lazy("horizon:admin:accelerator_operations:index")


class Filters(forms.Form):
    """What the list of operations can be filtered by."""

    verb = forms.CharField(label=_("Operation"), required=False, max_length=255)
    state = forms.ChoiceField(
        label=_("State"),
        required=False,
        choices=lists.choices("running", "succeeded", "failed"),
    )


class IndexView(lists.ListView):
    """The list of operations, newest first."""

    table_class = OperationsTable
    page_title = _("Operations")
    path, collection = "/operations", "operations"
    filters = Filters

    @property
    def fixed(self) -> dict[str, str]:
        """The newest come first."""
        return {"sort_dir": "desc"}


class DetailView(pages.ObjectView):
    """The progress and the results of an operation; the page follows it until it ends."""

    template_name = "accelerators/operations/detail.html"
    path, member = "/operations/{uuid}", "operation"
    index = INDEX

    def add(self, context: dict[str, Any], item: Any) -> None:
        """See ObjectView."""
        context["page_title"] = item["verb"].replace("_", " ").capitalize()
        context["progress"] = progress(item)
        context["subject"] = subject(item)
        context["is_running"] = item["state"] == "running"
