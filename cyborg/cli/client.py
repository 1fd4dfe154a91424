# SPDX-License-Identifier: Apache-2.0
"""The service as commands see it: one adapter, one microversion, answers or a sentence."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import uuid4

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter
from openstack import exceptions as sdk_exceptions

from cyborg import exception
from cyborg.cli import faults
from cyborg.cli.routes import ROUTES, Route

SERVICE_TYPE: Final = "accelerator"
_HEADERS: Final = {"OpenStack-API-Version": f"{SERVICE_TYPE} {faults.MICROVERSION}"}
_OPERATION: Final = "Idempotency-Key"


class Client:
    """Sends the requests of the commands; ``pause`` waits for so many seconds.

    The adapter is made with the first request. Every method raises exception.CommandFailed with a
    sentence that says what to do.
    """

    def __init__(
        self, connect: Callable[[], Adapter], *, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._connect = connect
        self._adapter: Adapter | None = None
        self._base = ""
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
        base = self._reached()
        arguments: dict[str, Any] = {"params": route.chosen(route.query, given)}
        if route.body:
            arguments["json"] = _body(route, given)
        try:
            answer = self._made().request(
                base + route.url(*keys),
                route.method,
                headers={**_HEADERS, **headers},
                raise_exc=False,
                **arguments,
            )
        except (ks_exceptions.ClientException, requests.RequestException) as fault:
            raise faults.unsent(fault, base) from fault
        if answer.status_code >= 300:
            raise faults.refused(answer)
        return answer

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
                self._adapter = self._connect()
            except (
                ks_exceptions.ClientException,
                sdk_exceptions.SDKException,
                TypeError,
            ) as fault:
                raise faults.no_account(fault) from fault
        return self._adapter

    def _reached(self) -> str:
        """The URL that ends in ``/v2``; catalogues have it with and without that."""
        if not self._base:
            try:
                found = self._made().get_endpoint()
            except (ks_exceptions.ClientException, requests.RequestException) as fault:
                raise faults.unsent(fault, "Keystone") from fault
            if not found:
                raise faults.unsent(ks_exceptions.EndpointNotFound("none is listed"), "")
            url = found.rstrip("/")
            self._base = url if url.endswith("/v2") else f"{url}/v2"
        return self._base


def _body(route: Route, given: Mapping[str, Any]) -> Any:
    # A value that is to be taken away is given as None on purpose.
    body = {name: given[name] for name in route.body if name in given}
    # A profile is sent as a list of one.
    return [body] if route.path == "/device_profiles" and route.method == "POST" else body
