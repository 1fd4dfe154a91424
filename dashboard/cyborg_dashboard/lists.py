# SPDX-License-Identifier: Apache-2.0
"""Tables of the service's lists: one page at a time, with filters in the address of the page."""

from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from horizon import messages, tables
from horizon.utils import functions

from cyborg_dashboard import api

#: The parts of a page's address that say where in the list the page is.
_PLACE = ("marker", "before")
#: The template of the actions of a row.
ROW_ACTIONS = "accelerators/_row_actions.html"


def choices(*words: str) -> list[tuple[str, Any]]:
    """Return the choices of a filter: no choice, or one of the words of the service."""
    return [("", _("Any")), *((word, word) for word in words)]


class PagedTable(tables.DataTable):
    """A table whose links to other pages keep the filters; rows are objects of the service."""

    def get_object_id(self, datum: api.Resource) -> str:
        """Return the uuid, by which lists are paged."""
        return str(datum["uuid"])

    def get_object_display(self, datum: api.Resource) -> str:
        """Return what messages and labels call the object."""
        return str(datum.get("name") or datum["uuid"])

    def get_pagination_string(self) -> str:
        """Return the query of the next page."""
        return self._query(marker=self.get_object_id(self.data[-1]))

    def get_prev_pagination_string(self) -> str:
        """Return the query of the previous page."""
        return self._query(before=self.get_object_id(self.data[0]))

    def _query(self, **place: str) -> str:
        kept = {name: text for name, text in self.request.GET.items() if name not in _PLACE}
        return urlencode({**kept, **place})


def _selector(item: api.Resource) -> Any:
    return format_html(
        '<input type="checkbox" name="object_ids" value="{}" aria-label="{}" '
        'class="table-row-multi-select">',
        item["uuid"],
        _("Select %s") % (item.get("name") or item.get("address") or item["uuid"]),
    )


class SelectableTable(PagedTable):
    """A table with boxes that the keyboard reaches and that have names, unlike Horizon's own."""

    select = tables.Column(_selector, verbose_name=_("Select"), sortable=False)


class ListView(tables.DataTableView):
    """A page of a list; ``path`` and ``collection`` name the list in the service.

    ``filters`` is a form of the filters that users see. ``older`` says that the page shows the
    answers of microversion 2.3 as well.
    """

    template_name = "accelerators/list.html"
    path: ClassVar[str]
    collection: ClassVar[str]
    filters: ClassVar[type[forms.Form] | None] = None
    older: ClassVar[bool] = False
    page = api.Page(())

    @property
    def fixed(self) -> Mapping[str, Any]:
        """Further parts of the query, which users do not see."""
        return {}

    def get_data(self) -> list[api.Resource]:
        """Return the rows; a message says why there are none if the service refuses."""
        client = api.client(self.request)
        form = self.filter_form()
        if form is not None and not form.is_valid():
            return []
        query: dict[str, Any] = {**self.fixed, **(form.cleaned_data if form is not None else {})}
        query["limit"] = functions.get_page_size(self.request)
        query |= {name: self.request.GET[name] for name in _PLACE if self.request.GET.get(name)}
        try:
            self.page = client.page(self.path, self.collection, query, older=self.older)
            return self.rows(list(self.page.items))
        except api.Fault as fault:
            messages.error(self.request, str(fault))
            return []

    def rows(self, items: list[api.Resource]) -> list[api.Resource]:
        """Return the rows of the table for the objects of the page; may raise ``api.Fault``."""
        return items

    def filter_form(self) -> forms.Form | None:
        """Return the form of the filters with what the address of the page says."""
        if self.filters is None:
            return None
        if not hasattr(self, "_form"):
            self._form = self.filters(self.request.GET, auto_id="filter_%s")
        return self._form

    def has_more_data(self, _table: Any) -> bool:
        """Return whether there is a next page."""
        return self.page.more

    def has_prev_data(self, _table: Any) -> bool:
        """Return whether there is a previous page."""
        return self.page.older

    def get_context_data(self, **values: Any) -> dict[str, Any]:
        """Add the filters, and whether the service is an older one."""
        context: dict[str, Any] = super().get_context_data(**values)
        context["filter_form"] = self.filter_form()
        context["service_is_older"] = _is_older(self.request)
        return context


def _is_older(request: Any) -> bool:
    try:
        return not api.client(request).is_extended
    except api.Fault:
        return False
