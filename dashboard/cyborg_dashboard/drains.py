# SPDX-License-Identifier: Apache-2.0
"""Pages that empty a host or a device of servers, and that end this.

Both have the servers that hold units, and whether another place has room for them.
"""

from typing import Any, ClassVar, Final

from django import forms
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from cyborg_dashboard import api, pages

#: The states of a host or a device that is being emptied, or is empty.
STATES: Final = ("draining", "drained")


class DrainForm(pages.Form):
    """Empty a host or a device; ``reason_member`` is the reason in the body of the request."""

    submit = _("Drain")
    reason_member: ClassVar[str]
    reason = forms.CharField(
        label=_("Reason"),
        max_length=255,
        help_text=_("The history and your colleagues show it."),
    )

    def act(self, client: api.Client, data: dict[str, Any]) -> bool:
        """See Form."""
        body = {"status": "draining", self.reason_member: data["reason"]}
        client.send("PATCH", self.initial["path"], body)
        return True


class ResumeForm(pages.Form):
    """Put a host or a device that was drained back into service."""

    submit = _("Resume")

    def act(self, client: api.Client, data: dict[str, Any]) -> bool:
        """See Form."""
        client.send("PATCH", self.initial["path"], {"status": "enabled"})
        return True


class DrainView(pages.FormView):
    """The page of a drain: the servers that are left, and the form if it has not begun.

    ``object_path`` is the path of the host or device in the service, ``index`` the list of such
    objects, and ``noun`` says which of them it is.
    """

    template_name = "accelerators/drain.html"
    object_path: ClassVar[str]
    index: ClassVar[Any]
    noun: ClassVar[Any]

    @property
    def path(self) -> str:
        """The path of the host or device in the service."""
        return self.object_path.format(**self.kwargs)

    @cached_property
    def drain(self) -> api.Resource:
        """What the drain waits for, or would wait for."""
        answer = pages.shown_or_redirected(self.request, f"{self.path}/drain", self.index)
        drain: api.Resource = answer["drain"]
        return drain

    def subject(self) -> str:
        """Return what the page calls the host or device."""
        return str(self.drain["host"])

    def resume_url(self) -> str:
        """Return the address of the page that ends the drain."""
        raise NotImplementedError

    def get_initial(self) -> dict[str, Any]:
        """Tell the form what is drained."""
        return {"path": self.path}

    def get_success_url(self) -> str:
        """The page itself shows how far the drain is."""
        return str(self.request.path)

    def get_context_data(self, **values: Any) -> dict[str, Any]:
        """Add the drain."""
        context: dict[str, Any] = super().get_context_data(**values)
        servers = self.drain["servers"]
        context["drain"] = self.drain
        context["noun"], context["subject"] = self.noun, self.subject()
        context["stuck"] = sum(1 for server in servers if server["movable"] is False)
        context["has_begun"] = self.drain["status"] in STATES
        context["resume_url"] = self.resume_url()
        context["cancel_url"] = self.index
        return context


class ResumeView(DrainView):
    """The page that ends a drain."""

    def get_success_url(self) -> str:
        """The list shows the host or device in service."""
        return str(self.index)

    def get_context_data(self, **values: Any) -> dict[str, Any]:
        """The form is shown whatever the status is."""
        return {**super().get_context_data(**values), "is_resume": True}
