# SPDX-License-Identifier: Apache-2.0
"""What pages of one object, and forms, have in common."""

from typing import Any, ClassVar
from uuid import uuid4

from django import forms as django_forms
from django import http
from django.utils.translation import gettext_lazy as _
from horizon import exceptions, forms, messages, views

from cyborg_dashboard import api


class ObjectView(views.HorizonTemplateView):
    """The page of one object, whose uuid is in the address.

    ``path`` is that of the object in the service, and ``member`` its name in the template. Users
    are sent to ``index`` if the service does not show the object.
    """

    path: ClassVar[str]
    member: ClassVar[str]
    index: ClassVar[Any]
    older: ClassVar[bool] = False

    def get_context_data(self, **values: Any) -> dict[str, Any]:
        """Add the object."""
        path = self.path.format(**self.kwargs)
        item = self.unwrapped(shown_or_redirected(self.request, path, self.index, older=self.older))
        context: dict[str, Any] = super().get_context_data(**values)
        context[self.member] = item
        self.add(context, item)
        return context

    def unwrapped(self, answer: Any) -> Any:
        """Return the object in an answer."""
        return answer

    def add(self, context: dict[str, Any], item: Any) -> None:
        """Add what the template needs besides the object, at least ``page_title``."""
        raise NotImplementedError


def shown_or_redirected(request: Any, path: str, index: Any, *, older: bool = False) -> Any:
    """Return an object; if the service does not show it, send the user to ``index``, which says
    why."""
    try:
        return api.client(request).get(path, older=older)
    except api.Fault as fault:
        messages.error(request, str(fault))
        raise exceptions.Http302(str(index)) from fault


class Form(forms.SelfHandlingForm):
    """A form whose request the service may refuse; then the form shows the sentence of the service.

    Subclasses define ``act``.
    """

    heading: ClassVar[Any]
    explanation: ClassVar[Any] = ""
    submit: ClassVar[Any]

    def act(self, client: api.Client, data: dict[str, Any]) -> Any:
        """Send the requests; return the address to go to, or True for the default one."""
        raise NotImplementedError

    def handle(self, request: Any, data: dict[str, Any]) -> Any:
        """See Horizon."""
        try:
            target = self.act(api.client(request), data)
        except api.Fault as fault:
            self.api_error(fault)
            return False
        return target if target is True else http.HttpResponseRedirect(str(target))


class OperationForm(Form):
    """A form that starts an operation; sending it twice starts the operation once."""

    request_key = django_forms.UUIDField(
        widget=django_forms.HiddenInput, initial=lambda: str(uuid4())
    )


class FormView(forms.ModalFormView):
    """The page of a form."""

    template_name = "accelerators/form.html"
    cancel_label = _("Cancel")

    def get_context_data(self, **values: Any) -> dict[str, Any]:
        """Add the words of the form."""
        context: dict[str, Any] = super().get_context_data(**values)
        form_class = self.get_form_class()
        context["page_title"] = form_class.heading
        context["explanation"] = form_class.explanation
        context["submit_label"] = form_class.submit
        context["submit_url"] = self.request.get_full_path()
        return context


def names(text: str) -> list[str]:
    """Return the names in a text, which are separated by commas or blanks."""
    return text.replace(",", " ").split()
