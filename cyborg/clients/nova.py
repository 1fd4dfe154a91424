# SPDX-License-Identifier: Apache-2.0
"""Nova's REST API, as far as accelerators need it.

It sends external events, looks up servers, and reboots a server.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, urlencode

import requests
from keystoneauth1.adapter import Adapter

from cyborg import exception
from cyborg.clients import http

#: The first one that knows the event ``accelerator-request-bound``.
MICROVERSION = "2.82"
_PEER = "Nova"
#: A server that has not been up yet.
_BUILDING = "BUILD"


@dataclass(frozen=True)
class BindEvent:
    """How the bind of one accelerator request of an instance ended."""

    instance_uuid: str
    arq_uuid: str
    succeeded: bool


@dataclass(frozen=True)
class Server:
    """A server as Nova shows it to an administrator.

    ``node`` is the hypervisor's hostname, the name of its provider in Placement; None while the
    server has no host. ``task`` is what Nova is doing with it. ``extra_specs`` are its flavor's.
    """

    uuid: str
    project_id: str
    status: str
    task: str | None
    node: str | None
    extra_specs: dict[str, str]

    @property
    def profile(self) -> str | None:
        """The device profile that its flavor names."""
        return self.extra_specs.get("accel:device_profile")


@dataclass(frozen=True)
class ServerInfo:
    """What people know a server by: its name, and how it is in Nova's words.

    ``moving`` tells that Nova is doing something with it, so that this will not last.
    """

    name: str
    status: str
    moving: bool


class EventVerdict(StrEnum):
    """What Nova made of an event; all of them are final, sending it again changes nothing.

    NO_HOST_YET is no fault: the bind was faster than the claim, compute will read the requests.
    """

    DELIVERED = "delivered"
    INSTANCE_GONE = "instance gone"
    NO_HOST_YET = "no host yet"
    REFUSED = "refused"


_VERDICTS = {
    200: EventVerdict.DELIVERED,
    404: EventVerdict.INSTANCE_GONE,
    422: EventVerdict.NO_HOST_YET,
}


class Nova:
    """Calls over a keystoneauth adapter for the service type ``compute``.

    The account needs the role ``service``.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def send_events(self, events: Sequence[BindEvent]) -> list[EventVerdict]:
        """Send events in one request; the verdicts are in the order of ``events``.

        A refusal of the whole request is one of each event. Raises exception.Unavailable when
        Nova cannot be reached, does not let us in or is busy: nobody was told then, or nobody
        knows, and sending all again does no harm.
        """
        body = {"events": [_event(event) for event in events]}
        answer = http.ask(
            _PEER,
            self._adapter,
            "POST",
            "/os-server-external-events",
            json=body,
            microversion=MICROVERSION,
        )
        if answer.status_code == 429:
            raise exception.Unavailable(peer=_PEER, reason="it asks for patience", http=429)
        if answer.status_code != 207:
            return [_verdict(answer.status_code)] * len(events)
        codes: dict[tuple[str, str], int] = {
            (event["server_uuid"], event["tag"]): event["code"]
            for event in http.document(_PEER, answer)["events"]
        }
        return [_verdict(codes.get((event.instance_uuid, event.arq_uuid))) for event in events]

    def server(self, instance_uuid: str) -> Server | None:
        """A server as it is now, None when there is none.

        Raises exception.Unavailable when Nova does not say, or does not show all of it.
        """
        answer = self._get(instance_uuid)
        if answer is None:
            return None
        shown = http.document(_PEER, answer)["server"]
        try:
            return Server(
                uuid=instance_uuid,
                project_id=str(shown["tenant_id"]),
                status=str(shown["status"]),
                task=shown["OS-EXT-STS:task_state"],
                node=shown["OS-EXT-SRV-ATTR:hypervisor_hostname"],
                extra_specs=dict(shown["flavor"]["extra_specs"]),
            )
        except KeyError as missing:
            raise exception.Unavailable(
                peer=_PEER, reason=f"it does not show {missing} of servers to this account"
            ) from None

    def server_info(self, instance_uuid: str) -> ServerInfo | None:
        """What a server is called and how it is, None when there is none.

        Raises exception.Unavailable when Nova does not say: while the server's cell is away it
        shows neither name nor task.
        """
        answer = self._get(instance_uuid)
        if answer is None:
            return None
        try:
            shown = http.document(_PEER, answer)["server"]
            status, task = str(shown["status"]), shown["OS-EXT-STS:task_state"]
            moving = task is not None or status == _BUILDING
            return ServerInfo(name=str(shown["name"]), status=status, moving=moving)
        except (KeyError, TypeError):
            raise exception.Unavailable(
                peer=_PEER, reason=f"it does not show name and status of server {instance_uuid}"
            ) from None

    def reboot(self, instance_uuid: str) -> bool:
        """Have Nova begin a hard reboot, which hands the guest what is listed for it then.

        False when the server is gone, or in a state that forbids it just now. Raises
        exception.Unavailable; whether it has begun is unknown then.
        """
        path = f"/servers/{quote(instance_uuid, safe='')}/action"
        body = {"reboot": {"type": "HARD"}}
        answer = http.ask(_PEER, self._adapter, "POST", path, json=body, microversion=MICROVERSION)
        if answer.status_code not in (202, 404, 409):
            raise exception.Unavailable(
                peer=_PEER, reason=f"POST {path} was answered {answer.status_code}"
            )
        return answer.status_code == 202

    def server_project(self, instance_uuid: str) -> str | None:
        """The project that owns a server, None when there is no such server.

        Raises exception.Unavailable when Nova does not say.
        """
        answer = self._get(instance_uuid)
        if answer is None:
            return None
        return str(http.document(_PEER, answer)["server"]["tenant_id"])

    def _get(self, instance_uuid: str) -> requests.Response | None:
        """Nova's answer about a server, None when there is none; raises Unavailable."""
        path = f"/servers/{quote(instance_uuid, safe='')}"
        answer = http.ask(_PEER, self._adapter, "GET", path, microversion=MICROVERSION)
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            raise exception.Unavailable(
                peer=_PEER, reason=f"GET {path} was answered {answer.status_code}"
            )
        return answer


def _event(event: BindEvent) -> dict[str, str]:
    return {
        "name": "accelerator-request-bound",
        "server_uuid": event.instance_uuid,
        "tag": event.arq_uuid,
        "status": "completed" if event.succeeded else "failed",
    }


def _verdict(code: int | None) -> EventVerdict:
    return EventVerdict.REFUSED if code is None else _VERDICTS.get(code, EventVerdict.REFUSED)


#: Nova's own ``[api] max_limit`` by default; it cuts larger pages silently.
_PAGE = 1000


class Servers:
    """Calls over a keystoneauth adapter for the service type ``compute``.

    The account must see the servers of all projects, as the role ``admin`` does.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._nova = Nova(adapter)

    def vanished(self, uuids: Collection[str]) -> frozenset[str]:
        """Those of ``uuids`` that are no server, of no project and in no state.

        To an account that sees only its own project, everybody else's server would seem to be
        gone. So the list of all projects' servers is read first, page by page until all of
        ``uuids`` are found; Nova refuses it to such an account. What is not in the list (it
        leaves out what is soft-deleted, or in a cell that is away) is asked for one by one.

        Raises exception.Unavailable when Nova does not say.
        """
        missing = set(uuids)
        marker = None
        while True:
            page = self._page(marker, _PAGE if uuids else 1)
            missing.difference_update(page)
            if not missing or not page:
                break
            marker = page[-1]
        return frozenset(uuid for uuid in missing if self._nova.server_project(uuid) is None)

    def _page(self, marker: str | None, limit: int) -> list[str]:
        query = {"all_tenants": "True", "limit": str(limit)}
        if marker is not None:
            query["marker"] = marker
        path = f"/servers?{urlencode(query)}"
        answer = http.ask(_PEER, self._adapter, "GET", path, microversion=MICROVERSION)
        if answer.status_code != 200:
            raise exception.Unavailable(
                peer=_PEER, reason=f"GET /servers was answered {answer.status_code}"
            )
        return [str(server["id"]) for server in http.document(_PEER, answer)["servers"]]
