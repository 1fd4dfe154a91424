# SPDX-License-Identifier: Apache-2.0
"""Requests to the accelerator service, with the token of the user and microversion 2.100.

To a service without microversion 2.100, requests of pages that it can answer are sent with 2.3.
Every other request to it raises ``TooOld``.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import requests
from django.conf import settings
from django.utils.translation import gettext_lazy as _
from keystoneauth1 import exceptions as auth_exceptions
from keystoneauth1 import session, token_endpoint
from openstack import connection
from openstack import exceptions as sdk_exceptions
from openstack_dashboard.api import base

LOG = logging.getLogger(__name__)

SERVICE_TYPE: Final = "accelerator"
MICROVERSION: Final = "2.100"
#: The microversion of the existing service whose answers the panels can show as well.
OLDER: Final = "2.3"
#: Seconds that a page waits for the service to answer one request.
TIMEOUT: Final = 60.0
#: Longest message of the service that a page shows, in characters.
_LONGEST: Final = 2_000

#: An object as the service answers it.
Resource = dict[str, Any]


class Fault(Exception):
    """The service refused a request, or did not answer; the message is for the user.

    ``status`` is the status of HTTP, or None without an answer.
    """

    def __init__(self, message: Any, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class NotFound(Fault):
    """The service does not have the object, or does not show it to the user."""


class TooOld(Fault):
    """The service has no microversion 2.100."""

    def __init__(self) -> None:
        super().__init__(
            _(
                "The accelerator service of this cloud does not support microversion 2.100, which "
                "this page needs."
            )
        )


@dataclass(frozen=True)
class Page:
    """Some objects of a list, in the order of the list.

    ``more`` says whether objects follow them, and ``older`` whether some precede them.
    """

    items: Sequence[Resource]
    more: bool = False
    older: bool = False


class Client:
    """Sends the requests of one page; every method raises ``Fault``."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._connected: Any = None
        self._is_extended = False

    @property
    def is_extended(self) -> bool:
        """Whether the service has microversion 2.100."""
        self._proxy()
        return self._is_extended

    def get(self, path: str, query: Mapping[str, Any] | None = None, *, older: bool = False) -> Any:
        """Return the content of an answer; ``older`` if the answer of microversion 2.3 will do."""
        return self._send("GET", path, older=older, params=_given(query or {}))

    def page(
        self, path: str, collection: str, query: Mapping[str, Any], *, older: bool = False
    ) -> Page:
        """Return a page of a list.

        ``query`` has the filters, ``limit``, and ``marker`` for the objects after one of them or
        ``before`` for the objects before it. Microversion 2.3 has no pages: it answers all objects.
        """
        values = dict(query)
        before = values.pop("before", None)
        if before:
            values |= {"marker": before, "sort_dir": _reverse(values.get("sort_dir"))}
        if not self.is_extended:
            values = {name: values[name] for name in values if name in _OLDER_FILTERS}
        answer = self.get(path, values, older=older)
        items = list(answer.get(collection) or ())
        follows = any(link.get("rel") == "next" for link in answer.get(f"{collection}_links") or ())
        if before:
            return Page(items[::-1], more=True, older=follows)
        return Page(items, more=follows, older=bool(values.get("marker")))

    def send(self, method: str, path: str, body: Any = None, *, key: str = "", **query: Any) -> Any:
        """Send a change, and return the content of the answer, None for no content.

        ``key`` is the key of a request that starts an operation: it starts at most once.
        """
        more: dict[str, Any] = {"params": _given(query)}
        if body is not None:
            more["json"] = body
        if key:
            more["headers"] = {"Idempotency-Key": key}
        return self._send(method, path, older=False, **more)

    def _send(self, method: str, path: str, *, older: bool, **more: Any) -> Any:
        proxy = self._proxy()
        if not (self._is_extended or older):
            raise TooOld
        try:
            answer = proxy.request(
                path,
                method,
                microversion=MICROVERSION if self._is_extended else OLDER,
                raise_exc=False,
                timeout=TIMEOUT,
                **more,
            )
        except _UNANSWERED as error:
            raise _unanswered(error) from error
        if answer.status_code >= 400:
            raise _fault(answer)
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise Fault(_("The accelerator service sent an answer that is not JSON.")) from error

    def _proxy(self) -> Any:
        """Return the proxy of openstacksdk; its discovery says which microversions there are."""
        if self._connected is None:
            try:
                proxy = self._connect()
                data = proxy.get_endpoint_data()
            except _UNANSWERED as error:
                raise _unanswered(error) from error
            newest = (data.max_microversion if data else None) or (2, 0)
            self._is_extended = tuple(newest) >= (2, 100)
            self._connected = proxy
        return self._connected

    def _connect(self) -> Any:
        user = self._request.user
        url = base.url_for(self._request, SERVICE_TYPE).rstrip("/")
        if not url.endswith("/v2"):
            url += "/v2"
        verify: Any = settings.OPENSTACK_SSL_CACERT or True
        if settings.OPENSTACK_SSL_NO_VERIFY:
            verify = False
        own = session.Session(
            auth=token_endpoint.Token(url, user.token.id), verify=verify, timeout=TIMEOUT
        )
        return connection.Connection(
            session=own,
            app_name="cyborg-dashboard",
            region_name=user.services_region,
            # With the slash it is the address that the service names, and found at once.
            accelerator_endpoint_override=f"{url}/",
            accelerator_api_version="2",
        ).accelerator


def client(request: Any) -> Client:
    """Return the client of a request to Horizon; all parts of a page share it."""
    own = getattr(request, "accelerator_client", None)
    if own is None:
        own = request.accelerator_client = Client(request)
    return own


_UNANSWERED: Final = (
    auth_exceptions.ClientException,
    requests.RequestException,
    sdk_exceptions.SDKException,
)
#: What the existing service filters by; other parts of a query are 2.100.
_OLDER_FILTERS: Final = frozenset({"type", "vendor", "hostname", "name", "state", "instance"})


def _given(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value not in (None, "")}


def _reverse(direction: Any) -> str:
    return "asc" if direction == "desc" else "desc"


def _unanswered(error: Exception) -> Fault:
    LOG.warning("The accelerator service does not answer: %s", error)
    return Fault(
        _("The accelerator service does not answer. Try again; the log of Horizon has the reason.")
    )


def _fault(answer: Any) -> Fault:
    """Return the error of an answer, with the sentence of the service."""
    try:
        document = answer.json()
    except ValueError:
        document = None
    message = _message(document)
    if not message:
        message = _("The accelerator service answered with status %(status)s.") % {
            "status": answer.status_code
        }
    kind = NotFound if answer.status_code == 404 else Fault
    return kind(message, answer.status_code)


def _message(document: Any) -> str:
    """Return what an error of the service says; empty if it is not in the form of the service."""
    text = document.get("error_message") if isinstance(document, dict) else None
    if isinstance(text, str):
        try:
            text = json.loads(text)
        except ValueError:
            return text[:_LONGEST]
    said = text.get("faultstring") if isinstance(text, dict) else None
    return said[:_LONGEST] if isinstance(said, str) else ""
