# SPDX-License-Identifier: Apache-2.0
"""The service as commands see it: one adapter, one microversion, answers or a sentence.

Requests go out with microversion 2.5, or with the newest that an older service speaks. A version
that the account's options name is sent as it is, and what needs a later one is refused here.
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import uuid4

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter
from openstack import exceptions as sdk_exceptions
from openstack.config.cloud_region import CloudRegion

from cyborg import exception
from cyborg.cli import faults
from cyborg.cli.routes import ROUTES, Route

SERVICE_TYPE: Final = "accelerator"
#: The newest microversion that the commands use: its minor number.
NEWEST: Final = 5
_HEADER: Final = "OpenStack-API-Version"
_MAXIMUM: Final = "OpenStack-API-Maximum-Version"
_OPERATION: Final = "Idempotency-Key"
_VERSION: Final = re.compile(r"2\.(0|[1-9][0-9]{0,3})")
#: What leaves the choice of the microversion to the commands.
_NO_CHOICE: Final = ("", "2")
_LATEST: Final = "latest"


def chosen_version(region: CloudRegion) -> str:
    """The microversion that options, variables or a cloud's file name; empty for none."""
    words = (
        region.config.get(f"{SERVICE_TYPE}_api_version"),
        region.config.get("api_version"),
        region.get_default_microversion(SERVICE_TYPE),
    )
    return next((str(word) for word in words if word), "")


class Client:
    """Sends the requests of the commands; ``pause`` waits for so many seconds.

    ``connect`` answers an adapter and the microversion that the user chose, empty for none; it is
    called with the first request. Every method raises exception.CommandFailed with a sentence that
    says what to do.
    """

    def __init__(
        self,
        connect: Callable[[], tuple[Adapter, str]],
        *,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._connect = connect
        self._adapter: Adapter | None = None
        self._base = ""
        self._minor: int | None = NEWEST
        self._chosen = False
        self.pause = pause

    def ask(self, name: str, *keys: str, given: Mapping[str, Any] | None = None) -> Any:
        """Do the request of that name; what it was answered, unwrapped; None for no body."""
        route = ROUTES[name]
        return self._content(route, self._send(route, keys, given or {}, {}))

    def begin(
        self, name: str, *keys: str, given: Mapping[str, Any], operation: str | None
    ) -> dict[str, Any]:
        """Begin long work and return its operation.

        The same ``operation`` id begins it once; None takes a new one, which is told if it is not
        known whether the work was begun.
        """
        route, chosen = ROUTES[name], operation or str(uuid4())
        try:
            answer = self._send(route, keys, given, {_OPERATION: chosen})
        except exception.CommandFailed as fault:
            if not fault.fields.get("unknown"):
                raise
            raise exception.CommandFailed(
                reason=f"{fault} Whether the work was begun is not known; with "
                f"--operation-id {chosen} the same command begins it at most once."
            ) from fault
        found = self._content(route, answer)
        if not isinstance(found, dict) or not {"uuid", "state"} <= found.keys():
            raise faults.foreign(answer)
        return found

    def _send(
        self,
        route: Route,
        keys: tuple[str, ...],
        given: Mapping[str, Any],
        headers: Mapping[str, str],
    ) -> requests.Response:
        base, needed = self._reached(), route.needs(given)
        self._check(needed)
        url = base + route.url(*keys)
        answer = self._request(route, url, given, headers)
        if answer.status_code == 406 and not self._chosen:
            # Nothing was done: the version is refused before anything else is looked at.
            maximum = _VERSION.fullmatch(answer.headers.get(_MAXIMUM, ""))
            if maximum and needed <= int(maximum[1]) < NEWEST:
                self._minor = int(maximum[1])
                answer = self._request(route, url, given, headers)
        if answer.status_code >= 300:
            raise faults.refused(answer, self._minor if self._chosen else needed)
        return answer

    def _request(
        self,
        route: Route,
        url: str,
        given: Mapping[str, Any],
        headers: Mapping[str, str],
    ) -> requests.Response:
        arguments: dict[str, Any] = {"params": route.chosen(route.query, given)}
        if route.body:
            arguments["json"] = _body(route, given)
        version = _LATEST if self._minor is None else f"2.{self._minor}"
        try:
            return self._made().request(
                url,
                route.method,
                headers={_HEADER: f"{SERVICE_TYPE} {version}", **headers},
                raise_exc=False,
                **arguments,
            )
        except (ks_exceptions.ClientException, requests.RequestException) as fault:
            raise faults.unsent(fault, self._base) from fault

    def _check(self, needed: int) -> None:
        """Raise CommandFailed when the user chose a version that is too old for the command."""
        if self._minor is not None and self._chosen and self._minor < needed:
            raise exception.CommandFailed(
                reason=f"The command needs microversion 2.{needed}, and "
                f"--os-accelerator-api-version is 2.{self._minor}: give 2.{needed} or later, or "
                "leave the option out."
            )

    def _content(self, route: Route, answer: requests.Response) -> Any:
        if not answer.content:
            return None
        try:
            body = answer.json()
            return body[route.wrapper] if route.wrapper else body
        except (ValueError, KeyError, TypeError) as fault:
            raise faults.foreign(answer) from fault

    def _made(self) -> Adapter:
        if self._adapter is None:
            try:
                self._adapter, word = self._connect()
            except (
                ks_exceptions.ClientException,
                sdk_exceptions.SDKException,
                TypeError,
            ) as fault:
                raise faults.no_account(fault) from fault
            if word not in _NO_CHOICE:
                self._minor, self._chosen = _minor(word), True
        return self._adapter

    def _reached(self) -> str:
        """The URL that ends in ``/v2``; catalogues have it with and without that."""
        if not self._base:
            adapter = self._made()
            plugin = adapter.auth or adapter.session.auth
            auth_url = getattr(plugin, "auth_url", None) or "its URL"
            try:
                if plugin is not None:
                    adapter.get_token()
                found = adapter.get_endpoint()
            except (ks_exceptions.ClientException, requests.RequestException) as fault:
                raise faults.unsent(fault, auth_url, identity=True) from fault
            if not found:
                raise faults.unsent(ks_exceptions.EndpointNotFound("none is listed"), "")
            url = found.rstrip("/")
            self._base = url if url.endswith("/v2") else f"{url}/v2"
        return self._base


def _minor(word: str) -> int | None:
    """The minor number of a microversion; None for the latest; raises CommandFailed."""
    version = _VERSION.fullmatch(word)
    if word != _LATEST and not version:
        raise exception.CommandFailed(
            reason=f"{word} is not a microversion of the accelerator service "
            "(--os-accelerator-api-version): give one from 2.0 on, for example 2.5, or 2 for the "
            f"newest that the command and the service have in common, or {_LATEST}."
        )
    return int(version[1]) if version else None


def _body(route: Route, given: Mapping[str, Any]) -> Any:
    # A value that is to be taken away is given as None on purpose.
    body = {name: given[name] for name in route.body if name in given}
    # A profile is sent as a list of one.
    return [body] if route.path == "/device_profiles" and route.method == "POST" else body
