# SPDX-License-Identifier: Apache-2.0
"""Nova's client of the commands that move servers; errors are raised as CommandFailed.

Requests are sent with microversion 2.91, the first in which a shelved server can be unshelved on a
host that is named.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from openstack import exceptions as sdk_exceptions
from openstack.config.cloud_region import CloudRegion

from cyborg_cli import exception, faults
from cyborg_cli.text import escaped

SERVICE_TYPE: Final = "compute"
MICROVERSION: Final = "2.91"
#: Statuses after which the same request may succeed later.
_TRANSIENT: Final = frozenset({429, 502, 503, 504})
_HOST: Final = "OS-EXT-SRV-ATTR:host"
#: The events of Nova that a compute host logs for ``server shelve``.
_SHELVE_EVENTS: Final = ("compute_shelve_instance", "compute_shelve_offload_instance")


@dataclass(frozen=True)
class Server:
    """A server as Nova shows it to an administrator.

    ``task`` is what Nova does with it; None: nothing. ``host`` is None while it is on no host.
    ``profile`` is the device profile of its flavor; None: it has none.
    """

    uuid: str
    name: str
    status: str
    task: str | None
    host: str | None
    flavor: str
    profile: str | None
    #: Why it is in the status ERROR; empty otherwise.
    fault: str = ""

    @property
    def state(self) -> str:
        """Return status and task in words."""
        return f"{self.status}, task {self.task}" if self.task else self.status


class Compute:
    """``connect`` is called with the first request; it returns an adapter of Nova."""

    def __init__(self, connect: Callable[[], Adapter]) -> None:
        self._connect = connect
        self._adapter: Adapter | None = None

    def server(self, key: str) -> Server:
        """Return the server with this ID, or with this name in any project."""
        answer = self._send("GET", f"/servers/{quote(key, safe='')}", accept=(404,))
        if answer.status_code != 404:
            return _server(_document(answer)["server"])
        matches = [each for each in self._named(key) if each["name"] == key]
        if not matches:
            raise exception.CommandFailed(
                reason=f"No server has the ID or the name {escaped(key)}. Run openstack server "
                "list --all-projects to see all."
            )
        if len(matches) > 1:
            uuids = ", ".join(str(each["id"]) for each in matches)
            raise exception.CommandFailed(
                reason=f"Several servers have the name {escaped(key)}. Give the ID of one of them: "
                f"{uuids}."
            )
        return self.server(str(matches[0]["id"]))

    def check_host(self, host: str) -> None:
        """Raise CommandFailed unless Nova can put servers on the host."""
        answer = self._send("GET", f"/os-services?binary=nova-compute&host={quote(host, safe='')}")
        services = _document(answer)["services"]
        if not services:
            raise exception.CommandFailed(
                reason=f"No nova-compute runs on host {escaped(host)}. Run openstack compute "
                "service list to see the hosts."
            )
        service = services[0]
        if service.get("state") != "up":
            raise exception.CommandFailed(
                reason=f"The nova-compute of host {escaped(host)} is {service.get('state')}. Start "
                "it, or choose another host."
            )
        if service.get("status") != "enabled":
            raise exception.CommandFailed(
                reason=f"The nova-compute of host {escaped(host)} is {service.get('status')}. Run "
                "openstack compute service set --enable, or choose another host."
            )

    def act(self, uuid: str, action: str, arguments: Mapping[str, Any] | None = None) -> None:
        """Let Nova begin an action of a server."""
        self._send("POST", f"/servers/{uuid}/action", body={action: arguments})

    def was_unshelved(self, uuid: str) -> bool:
        """Return whether nothing was done with a server since Nova unshelved it, but a stop."""
        names = (action["action"] for action in self._actions(uuid))
        return next((name for name in names if name != "stop"), "") == "unshelve"

    def shelved_on(self, uuid: str) -> str | None:
        """Return the host on which a server was shelved last; None if Nova does not know it."""
        for action in self._actions(uuid):
            if action["action"] != "shelve":
                continue
            path = f"/servers/{uuid}/os-instance-actions/{action['request_id']}"
            shown = _document(self._send("GET", path))
            events = shown["instanceAction"].get("events") or []
            hosts = [event.get("host") for event in events if event["event"] in _SHELVE_EVENTS]
            return next(filter(None, hosts), None)
        return None

    def _actions(self, uuid: str) -> list[dict[str, Any]]:
        """Return what users have done with a server, the newest first."""
        answer = self._send("GET", f"/servers/{uuid}/os-instance-actions")
        listed: list[dict[str, Any]] = _document(answer)["instanceActions"]
        return listed

    def _named(self, name: str) -> list[dict[str, Any]]:
        # Nova takes the name as a regular expression, and each database has its own kind of them.
        path = f"/servers?all_tenants=1&limit=1000&name={quote(name, safe='')}"
        answer = self._send("GET", path)
        listed: list[dict[str, Any]] = _document(answer)["servers"]
        return listed

    def _send(
        self, method: str, path: str, *, body: Any = None, accept: tuple[int, ...] = ()
    ) -> requests.Response:
        if self._adapter is None:
            try:
                self._adapter = self._connect()
            except (ks_exceptions.ClientException, sdk_exceptions.SDKException) as error:
                raise faults.unusable_credentials(error) from error
        try:
            answer = self._adapter.request(
                path,
                method,
                headers={"OpenStack-API-Version": f"{SERVICE_TYPE} {MICROVERSION}"},
                raise_exc=False,
                **({} if body is None else {"json": body}),
            )
        except (ks_exceptions.ClientException, requests.RequestException) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise exception.CommandFailed(
                reason=f"Nova does not answer: {escaped(reason)}. Check that the service catalog "
                f"has an endpoint of the type {SERVICE_TYPE}, and that nova-api runs.",
                transient=isinstance(error, ks_exceptions.ConnectionError),
            ) from error
        if answer.status_code < 300 or answer.status_code in accept:
            return answer
        raise _refusal(answer)


def compute_adapter(session: Session, region: CloudRegion) -> Adapter:
    """Return the adapter of Nova in a region, with the endpoint that the user may have set."""
    return Adapter(
        session,
        service_type=SERVICE_TYPE,
        interface=region.get_interface(SERVICE_TYPE),
        region_name=region.get_region_name(SERVICE_TYPE),
        endpoint_override=region.get_endpoint(SERVICE_TYPE),
        min_version="2.1",
        max_version="2.latest",
    )


def _server(shown: Mapping[str, Any]) -> Server:
    if _HOST not in shown:
        raise exception.CommandFailed(
            reason="Nova does not show you the host of the server: only an administrator can move "
            "servers. Use an account with the role admin."
        )
    flavor = shown["flavor"]
    return Server(
        uuid=str(shown["id"]),
        name=str(shown["name"]),
        status=str(shown["status"]),
        task=shown.get("OS-EXT-STS:task_state"),
        host=shown[_HOST],
        flavor=str(flavor["original_name"]),
        profile=(flavor.get("extra_specs") or {}).get("accel:device_profile"),
        fault=str((shown.get("fault") or {}).get("message") or ""),
    )


def _document(answer: requests.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise _unexpected(answer) from error


def _refusal(answer: requests.Response) -> exception.CommandFailed:
    """Return the error for an answer with an error status."""
    status = answer.status_code
    try:
        (fault,) = answer.json().values()
        message = str(fault["message"]).rstrip(".")
    except (ValueError, TypeError, KeyError, AttributeError):
        return _unexpected(answer)
    if status == 406:
        return exception.CommandFailed(
            reason=f"Nova is too old: unshelving on a host needs the compute microversion "
            f"{MICROVERSION} (release 25, Yoga). Nova says: {escaped(message)}."
        )
    advice = ""
    if status == 403:
        advice = " Only an administrator can move servers: use an account with the role admin."
    return exception.CommandFailed(
        reason=f"Nova refuses: {escaped(message)} (HTTP {status}).{advice}",
        transient=status in _TRANSIENT,
        status=status,
    )


def _unexpected(answer: requests.Response) -> exception.CommandFailed:
    return exception.CommandFailed(
        reason=f"{answer.url.partition('?')[0]} does not answer like Nova (HTTP "
        f"{answer.status_code}). Check the endpoint of the type {SERVICE_TYPE} in the service "
        "catalog.",
        transient=answer.status_code in _TRANSIENT,
    )
