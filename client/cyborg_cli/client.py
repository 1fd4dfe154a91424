# SPDX-License-Identifier: Apache-2.0
"""The client of the accelerator service: requests with one microversion, waiting for operations.

Errors are raised as CommandFailed.

Requests are sent with microversion 2.100. To a service without it they are sent with its newest
one, but at most 2.3: the client does not know what 2.4 to 2.99 mean. A microversion that the user
selected is sent as it is; a request that needs a later one is refused by the client.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter
from openstack import exceptions as sdk_exceptions
from openstack.config.cloud_region import CloudRegion

from cyborg_cli import exception, faults
from cyborg_cli.compute import Compute
from cyborg_cli.routes import EXTENDED, ROUTES, SHARED, Route

SERVICE_TYPE: Final = "accelerator"
_VERSION_HEADER: Final = "OpenStack-API-Version"
_REQUEST_KEY_HEADER: Final = "Idempotency-Key"
_VERSION: Final = re.compile(r"2\.(0|[1-9][0-9]{0,3})")
#: Values of the option that leave the choice of the microversion to the client.
_NO_SELECTION: Final = ("", "2")
_LATEST: Final = "latest"

#: An object as the service returns it.
Resource = Mapping[str, Any]

RUNNING: Final = "running"
FAILED: Final = "failed"
#: The interval between two polls, in seconds: at first, and at most.
_FIRST_INTERVAL: Final = 0.25
_LONGEST_INTERVAL: Final = 3.0
#: How many polls in a row may fail; a conductor may be restarting.
_MAX_FAILED_POLLS: Final = 10
#: Seconds for which a request waits for events: proxies end requests after 60 seconds.
_WAIT: Final = 50
#: How much longer its answer may take, in seconds.
_ANSWER_TIMEOUT: Final = 30
#: How many requests for events may fail in a row: about five minutes.
_MAX_FAILED_WAITS: Final = 100
#: The longest pause that the service may ask for, in seconds.
_LONGEST_PAUSE: Final = 60


def requested_microversion(region: CloudRegion) -> str:
    """Return the microversion set by option, variable or clouds.yaml; empty for none."""
    settings = (
        region.config.get(f"{SERVICE_TYPE}_api_version"),
        region.config.get("api_version"),
        region.get_default_microversion(SERVICE_TYPE),
    )
    return next((str(setting) for setting in settings if setting), "")


class Client:
    """Sends the requests of the commands.

    ``connect`` is called with the first request; it returns an adapter and the microversion that
    the user selected, empty for none. ``compute`` sends requests to Nova. ``pause`` waits for a
    number of seconds. Every method raises exception.CommandFailed, whose message says what to do
    next.
    """

    def __init__(
        self,
        connect: Callable[[], tuple[Adapter, str]],
        *,
        compute: Compute,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._connect = connect
        self.compute = compute
        self._adapter: Adapter | None = None
        self._base_url = ""
        #: The minor version to send, None for the latest, and whether the user selected it.
        self._minor: int | None = EXTENDED
        self._user_selected = False
        self.pause = pause

    def request(self, name: str, *keys: str, values: Mapping[str, Any] | None = None) -> Any:
        """Send the request of a route; return the content of the answer, None for no body."""
        route = ROUTES[name]
        return self._content(route, self._send(route, keys, values or {}, {}))

    def read_list(
        self, name: str, values: Mapping[str, Any], others: dict[str, Any] | None = None
    ) -> list[Resource]:
        """Return the objects of a list, from all its pages, but at most ``limit`` of ``values``.

        ``others`` gets the other members of the answers.
        """
        route, values = ROUTES[name], dict(values)
        limit: int | None = values.get("limit")
        objects: list[Resource] = []
        while True:
            answer = self._send(route, (), values, {})
            objects += self._content(route, answer)
            if others is not None:
                others |= answer.json()
            following = self._following(route, answer)
            if not following or (limit is not None and len(objects) >= limit):
                return objects
            values["marker"] = following["marker"]
            if limit is not None:
                values["limit"] = limit - len(objects)

    def follow_events(
        self, values: Mapping[str, Any], report: Callable[[str], object]
    ) -> Iterator[list[Resource]]:
        """Yield the events that match the filters, as they happen: each answer of the service.

        An answer without events comes first, unless ``values`` have a time ``since``, and then at
        least once a minute. Each event is in one answer, also if the service is restarted:
        ``report`` is called when it stops to answer, and when it answers again.
        """
        route, place = ROUTES["watch"], {**values, "wait": _WAIT}
        failed, seconds = 0, _FIRST_INTERVAL
        while True:
            try:
                answer = self._send(route, (), place, {}, timeout=_WAIT + _ANSWER_TIMEOUT)
            except exception.CommandFailed as error:
                failed += 1
                transient = error.transient and failed <= _MAX_FAILED_WAITS
                if not transient or "marker" not in place:
                    raise
                if failed == 1:
                    report(f"{error} Trying again, without losing events.")
                self.pause(seconds)
                seconds = min(seconds * 1.5, _LONGEST_INTERVAL)
                continue
            if failed:
                report("The service answers again.")
            failed, seconds = 0, _FIRST_INTERVAL
            events = self._content(route, answer)
            following = self._following(route, answer)
            if "marker" not in following:
                raise faults.unexpected_answer(answer)
            place |= {"seen": None, **following}
            yield events
            pause = answer.headers.get("Retry-After", "")
            if pause.isdecimal():
                self.pause(min(int(pause), _LONGEST_PAUSE))

    def start_operation(
        self, name: str, *keys: str, values: Mapping[str, Any], request_key: str | None
    ) -> dict[str, Any]:
        """Start an operation and return it.

        Requests with the same ``request_key`` start it only once. None creates a new key; the
        error message names it if the outcome is unknown.
        """
        route, request_key = ROUTES[name], request_key or str(uuid4())
        try:
            answer = self._send(route, keys, values, {_REQUEST_KEY_HEADER: request_key})
        except exception.CommandFailed as error:
            if not error.outcome_unknown:
                raise
            raise exception.CommandFailed(
                reason=f"{error} It is not known whether the operation was started. Repeat the "
                f"command with --operation-id {request_key}: the operation starts at most once."
            ) from error
        operation = self._content(route, answer)
        if not isinstance(operation, dict) or not {"uuid", "state"} <= operation.keys():
            raise faults.unexpected_answer(answer)
        return operation

    def _send(
        self,
        route: Route,
        keys: tuple[str, ...],
        values: Mapping[str, Any],
        headers: Mapping[str, str],
        *,
        timeout: float | None = None,
    ) -> requests.Response:
        """Send a request, once more with an older microversion if the service is older."""
        url, needed = self._service_url() + route.url(*keys), route.minimum_version(values)
        if self._minor is not None and self._user_selected and self._minor < needed:
            raise exception.CommandFailed(
                reason=f"The command needs microversion 2.{needed}, and "
                f"--os-accelerator-api-version is 2.{self._minor}. Set it to 2.{needed} or later, "
                "or remove the option."
            )
        answer = self._send_once(route, url, values, headers, timeout=timeout)
        if answer.status_code == 406 and not self._user_selected:
            # The service checks the version before anything else, so nothing was changed.
            maximum = _VERSION.fullmatch(answer.headers.get(faults.MAXIMUM_VERSION_HEADER, ""))
            newest = min(int(maximum[1]), SHARED) if maximum else -1
            if needed <= newest:
                self._minor = newest
                answer = self._send_once(route, url, values, headers, timeout=timeout)
        if answer.status_code >= 300:
            raise faults.error_answer(answer, self._minor if self._user_selected else needed)
        return answer

    def _send_once(
        self,
        route: Route,
        url: str,
        values: Mapping[str, Any],
        headers: Mapping[str, str],
        *,
        timeout: float | None = None,
    ) -> requests.Response:
        arguments: dict[str, Any] = {"params": route.select(route.query, values)}
        if timeout is not None:
            arguments["timeout"] = timeout
        if route.body:
            # None stays in the body: it removes a value.
            body = {name: values[name] for name in route.body if name in values}
            # The API takes a new profile as a list of one.
            create_profile = (route.method, route.path) == ("POST", "/device_profiles")
            arguments["json"] = [body] if create_profile else body
        version = _LATEST if self._minor is None else f"2.{self._minor}"
        try:
            return self._connected_adapter().request(
                url,
                route.method,
                headers={_VERSION_HEADER: f"{SERVICE_TYPE} {version}", **headers},
                raise_exc=False,
                **arguments,
            )
        except (ks_exceptions.ClientException, requests.RequestException) as error:
            raise faults.no_answer(error, self._base_url) from error

    def _following(self, route: Route, answer: requests.Response) -> dict[str, str]:
        """Return the place in a list of the link to its next page; empty if there is none."""
        try:
            links = answer.json().get(f"{route.wrapper}_links", ())
            for link in links:
                if link["rel"] == "next":
                    query = dict(parse_qsl(urlsplit(link["href"]).query))
                    return {"marker": query["marker"]} | {
                        name: query[name] for name in ("seen",) if name in query
                    }
        except (AttributeError, KeyError, TypeError) as error:
            raise faults.unexpected_answer(answer) from error
        return {}

    def _content(self, route: Route, answer: requests.Response) -> Any:
        if not answer.content:
            return None
        try:
            body = answer.json()
            return body[route.wrapper] if route.wrapper else body
        except (ValueError, KeyError, TypeError) as error:
            raise faults.unexpected_answer(answer) from error

    def _connected_adapter(self) -> Adapter:
        if self._adapter is None:
            try:
                self._adapter, version = self._connect()
            except (
                ks_exceptions.ClientException,
                sdk_exceptions.SDKException,
                TypeError,
            ) as error:
                raise faults.unusable_credentials(error) from error
            if version not in _NO_SELECTION:
                minor = _VERSION.fullmatch(version)
                if version != _LATEST and not minor:
                    raise exception.CommandFailed(
                        reason=f"{version!r} is not a microversion of the accelerator service "
                        "(--os-accelerator-api-version). Set a microversion from 2.0, for "
                        "example 2.100; 2 for the newest one that both the command and the service "
                        f"support; or {_LATEST}."
                    )
                self._minor = int(minor[1]) if minor else None
                self._user_selected = True
        return self._adapter

    def _service_url(self) -> str:
        """Return the URL that ends in ``/v2``; catalogs list it with and without that."""
        if not self._base_url:
            adapter = self._connected_adapter()
            plugin = adapter.auth or adapter.session.auth
            auth_url = getattr(plugin, "auth_url", None) or "its URL"
            try:
                if plugin is not None:
                    adapter.get_token()
                endpoint = adapter.get_endpoint()
            except (ks_exceptions.ClientException, requests.RequestException) as error:
                raise faults.no_answer(error, auth_url, to_keystone=True) from error
            if not endpoint:
                raise faults.no_answer(ks_exceptions.EndpointNotFound("none is listed"), "")
            url = endpoint.rstrip("/")
            self._base_url = url if url.endswith("/v2") else f"{url}/v2"
        return self._base_url


def poll(
    fetch: Callable[[], Resource],
    is_finished: Callable[[Resource], bool],
    pause: Callable[[float], object],
) -> Resource:
    """Fetch an object at growing intervals until it is finished, and return it.

    Raises exception.CommandFailed for an error that is not transient, and for a transient one
    after _MAX_FAILED_POLLS of them in a row.
    """
    seconds, failed_polls = _FIRST_INTERVAL, 0
    while True:
        try:
            resource = fetch()
        except exception.CommandFailed as error:
            failed_polls += 1
            if not error.transient or failed_polls > _MAX_FAILED_POLLS:
                raise
        else:
            failed_polls = 0
            if is_finished(resource):
                return resource
        pause(seconds)
        seconds = min(seconds * 1.5, _LONGEST_INTERVAL)


def follow(
    client: Client, operation: Resource, on_result: Callable[[Mapping[str, Any]], object]
) -> Mapping[str, Any]:
    """Poll an operation until it ends, and return it.

    ``on_result`` is called with the result of a host each time it changes. Raises
    exception.CommandFailed, with the UUID of the operation, when the service stops answering.
    """
    results: dict[str, Mapping[str, Any]] = {}
    unread: list[Resource] = [operation]

    def fetch() -> Resource:
        # The answer to the request that started the operation counts as the first poll.
        current: Resource = (
            unread.pop() if unread else client.request("operation-show", operation["uuid"])
        )
        for result in current.get("results") or []:
            if results.get(result["host"]) != result:
                results[result["host"]] = result
                on_result(result)
        return current

    try:
        return poll(fetch, lambda current: current["state"] != RUNNING, client.pause)
    except exception.CommandFailed as error:
        raise exception.CommandFailed(
            reason=f"{error} The operation continues without this command: see operation "
            f"{operation['uuid']}."
        ) from error


def failures(operation: Mapping[str, Any]) -> list[str]:
    """Return a message for the operation and for each host that failed; empty if none did."""
    messages = [
        f"{result.get('host') or 'The service'}: "
        f"{result.get('error') or 'The host reported no reason.'}"
        for result in operation.get("results") or []
        if result.get("state") == FAILED
    ]
    if operation["state"] == FAILED and (operation.get("error") or not messages):
        messages.insert(0, operation.get("error") or "The operation failed without a reason.")
    return messages
