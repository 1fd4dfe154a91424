# SPDX-License-Identifier: Apache-2.0
"""The pages of device profiles."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from django import forms, http
from django.core.exceptions import ValidationError
from django.urls import reverse_lazy
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from django.views import generic
from horizon import messages

from cyborg_dashboard import api, lists, pages
from cyborg_dashboard.content.profiles.forms import (
    CreateForm,
    UpdateForm,
    initial,
    offers,
    parse_groups,
)
from cyborg_dashboard.content.profiles.tables import ProfilesTable, projects

INDEX = reverse_lazy("horizon:admin:accelerator_profiles:index")
CHECK = reverse_lazy("horizon:admin:accelerator_profiles:check")
#: Longest text of groups that is checked while one types, in characters.
_LONGEST = 65_535
#: How many profiles one request about capacity names.
_AT_ONCE = 100


class Filters(forms.Form):
    """What the list of profiles can be filtered by."""

    name = forms.CharField(label=_("Name"), required=False, max_length=255)


class IndexView(lists.ListView):
    """The list of device profiles."""

    table_class = ProfilesTable
    page_title = _("Device Profiles")
    path, collection = "/device_profiles", "device_profiles"
    filters = Filters
    older = True

    def rows(self, items: list[api.Resource]) -> list[api.Resource]:
        """Add how many further servers get each profile now; a message says why it is not known."""
        client = api.client(self.request)
        if not (client.is_extended and items):
            return items
        try:
            further = dict(capacities(client, [item["uuid"] for item in items]))
        except api.Fault as fault:
            messages.error(self.request, str(fault))
            return items
        return [{**item, "further": further.get(item["uuid"])} for item in items]


def capacities(client: api.Client, uuids: Sequence[str]) -> Iterator[tuple[str, int | None]]:
    """Yield each profile with the number of further servers that get it now.

    The number is None for users who do not see hosts. One request is sent for some profiles: their
    uuids are in its address.
    """
    for start in range(0, len(uuids), _AT_ONCE):
        some = uuids[start : start + _AT_ONCE]
        query = {"profile": ",".join(some), "limit": len(some)}
        for row in client.page("/capacity", "capacity", query).items:
            yield row["profile_uuid"], row.get("further")


class DetailView(pages.ObjectView):
    """A device profile, and why the hosts of the cloud can give what it requests, or cannot."""

    template_name = "accelerators/profiles/detail.html"
    path, member, older = "/device_profiles/{uuid}", "profile", True
    index = INDEX

    def unwrapped(self, answer: Any) -> Any:
        """Only this answer of the service has an envelope."""
        return answer["device_profile"]

    def add(self, context: dict[str, Any], item: Any) -> None:
        """See ObjectView."""
        context["page_title"] = item["name"]
        context["projects"] = projects(item)
        context["json"] = readable(item["groups"])
        client = api.client(self.request)
        if not client.is_extended:
            return
        try:
            answer = client.get(f"/device_profiles/{item['uuid']}/explain")
            context["explanation"] = answer["explanation"]
            context["room"] = room(answer["explanation"].get("further"))
        except api.Fault as fault:
            messages.error(self.request, str(fault))


def readable(groups: Any) -> str:
    """Return groups as JSON for people."""
    return json.dumps({"groups": groups}, indent=2, ensure_ascii=False)


class _ProfileView(pages.FormView):
    """The page of a form for a profile."""

    template_name = "accelerators/profiles/form.html"
    success_url = INDEX

    def get_context_data(self, **values: Any) -> dict[str, Any]:
        """Add what the form offers, and where its groups are checked."""
        context: dict[str, Any] = super().get_context_data(**values)
        context["check_url"] = CHECK
        try:
            context["offers"] = offers(api.client(self.request))
        except api.Fault as fault:
            messages.error(self.request, str(fault))
        return context


class CreateView(_ProfileView):
    """Make a device profile."""

    form_class = CreateForm


class UpdateView(_ProfileView):
    """Change a device profile."""

    form_class = UpdateForm

    @cached_property
    def profile(self) -> api.Resource:
        """The profile in the address."""
        path = f"/device_profiles/{self.kwargs['uuid']}"
        profile: api.Resource = pages.shown_or_redirected(self.request, path, INDEX)[
            "device_profile"
        ]
        return profile

    def get_initial(self) -> dict[str, Any]:
        """Fill the form with what the profile has."""
        return initial(self.profile)


class CheckView(generic.View):
    """What the service says of groups that are not stored, for the script of the form."""

    def post(self, request: Any) -> http.JsonResponse:
        """Return the groups as JSON, and a sentence with what it means."""
        text = request.POST.get("groups", "")
        try:
            if len(text) > _LONGEST:
                raise ValidationError(_("The groups are too long."))
            groups = parse_groups(text)
            if not groups:
                return _verdict("", "")
            body = {"groups": groups}
            answer = api.client(request).send("POST", "/device_profiles/explain", body)
        except ValidationError as error:
            return _verdict("invalid", " ".join(error.messages))
        except api.Fault as fault:
            return _verdict("invalid", fault, groups=readable(groups))
        explanation = answer["explanation"]
        return _verdict(
            explanation["satisfiable"],
            explanation["summary"],
            room=room(explanation.get("further")),
            groups=readable(groups),
        )


def room(further: int | None) -> str:
    """Return the sentence that says how many further servers fit now, if that is known."""
    if further is None:
        return ""
    if not further:
        return str(_("No further server fits now."))
    sentence = ngettext("%d further server fits now.", "%d further servers fit now.", further)
    return str(sentence % further)


def _verdict(word: str, sentence: Any, *, room: str = "", groups: str = "") -> http.JsonResponse:
    return http.JsonResponse(
        {"word": word, "sentence": str(sentence), "room": room, "json": groups}
    )
