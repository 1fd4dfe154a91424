# SPDX-License-Identifier: Apache-2.0
"""Client of Nova's REST API: send external events, look up servers, reboot a server."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote, urlencode

import requests
from keystoneauth1.adapter import Adapter

from cyborg import exception
from cyborg.clients import http

#: The first microversion with the event ``accelerator-request-bound``.
MICROVERSION = "2.82"
_PEER = "Nova"
#: The status of a server that has not been started yet.
_BUILDING = "BUILD"
#: The length of a page of servers: the default of Nova's ``[api] max_limit``. Nova silently cuts
#: longer pages.
_PAGE = 1000


@dataclass(frozen=True)
class BindEvent:
    """The result of the bind of one accelerator request (ARQ) of an instance."""

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
    def settled(self) -> bool:
        """Return whether Nova has started the server, and does nothing with it."""
        return self.task is None and self.status != _BUILDING

    @property
    def profile(self) -> str | None:
        """Return the name of the device profile in its flavor; None without one."""
        return self.extra_specs.get("accel:device_profile")

    @property
    def requested(self) -> dict[str, int]:
        """Return the units that its flavor requests itself, without a profile, by resource class.

        Keys are ``resources:CLASS``, and ``resources`` with a suffix for a group of its own.
        """
        units: dict[str, int] = {}
        for key, value in self.extra_specs.items():
            group, _, name = key.partition(":")
            if group.startswith("resources") and value.isdecimal():
                units[name] = units.get(name, 0) + int(value)
        return units


@dataclass(frozen=True)
class Flavor:
    """A flavor as Nova shows it to an administrator; amounts are MiB of memory and GiB of disk."""

    name: str
    vcpus: int
    memory: int
    disk: int
    extra_specs: dict[str, str]

    @property
    def resources(self) -> dict[str, int]:
        """Return what a server takes of its host: amount by resource class.

        As ``nova.scheduler.utils.ResourceRequest`` of Nova 34: a ``resources:CLASS`` of the flavor
        replaces an amount, and 0 removes it; dedicated processors are PCPU.
        """
        dedicated = self.extra_specs.get("hw:cpu_policy") == "dedicated"
        amounts = {
            "PCPU" if dedicated else "VCPU": self.vcpus,
            "MEMORY_MB": self.memory,
            "DISK_GB": self.disk,
        }
        for key, value in self.extra_specs.items():
            group, _, name = key.partition(":")
            if group == "resources" and value.isdecimal():
                amounts[name] = int(value)
        return {name: amount for name, amount in amounts.items() if amount}


@dataclass(frozen=True)
class ServerInfo:
    """The name of a server, and its status in Nova's words.

    ``moving`` is True while Nova works on the server, so that the status will change.
    """

    name: str
    status: str
    moving: bool


class EventVerdict(StrEnum):
    """Nova's answer to an event. Every verdict is final: sending the event again changes nothing.

    NO_HOST_YET is not an error: the bind was faster than the claim, and nova-compute will read the
    accelerator requests later.
    """

    DELIVERED = "delivered"
    INSTANCE_GONE = "instance gone"
    NO_HOST_YET = "no host yet"
    REFUSED = "refused"


#: The verdict of each status code; any other code is a refusal.
_VERDICTS = {
    200: EventVerdict.DELIVERED,
    404: EventVerdict.INSTANCE_GONE,
    422: EventVerdict.NO_HOST_YET,
}


class Nova:
    """Call Nova through a keystoneauth adapter for the service type ``compute``.

    The account needs the role ``service``.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def send_events(self, events: Sequence[BindEvent]) -> list[EventVerdict]:
        """Send events in one request; return their verdicts in the order of ``events``.

        If Nova refuses the whole request, every event has that verdict. Raises
        exception.Unavailable if Nova cannot be reached, refuses the account or is busy: the events
        were not delivered, or that is unknown, and all of them can safely be sent again.
        """
        body = {
            "events": [
                {
                    "name": "accelerator-request-bound",
                    "server_uuid": event.instance_uuid,
                    "tag": event.arq_uuid,
                    "status": "completed" if event.succeeded else "failed",
                }
                for event in events
            ]
        }
        answer = self._ask("POST", "/os-server-external-events", json=body)
        if answer.status_code == 429:
            raise exception.Unavailable(peer=_PEER, reason="it is busy (429)", http=429)
        if answer.status_code != 207:
            verdict = _VERDICTS.get(answer.status_code, EventVerdict.REFUSED)
            return [verdict] * len(events)
        verdicts = {
            (event["server_uuid"], event["tag"]): _VERDICTS.get(event["code"], EventVerdict.REFUSED)
            for event in http.document(_PEER, answer)["events"]
        }
        return [
            verdicts.get((event.instance_uuid, event.arq_uuid), EventVerdict.REFUSED)
            for event in events
        ]

    def server(self, instance_uuid: str) -> Server | None:
        """Return a server as it is now; None if it does not exist.

        Raises exception.Unavailable if Nova does not answer, or does not show all fields.
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
        """Return name and status of a server; None if it does not exist.

        Raises exception.Unavailable if Nova does not answer or does not show them: while the
        server's cell is down, Nova shows neither name nor task.
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
        """Start a hard reboot, after which the guest has the devices that are bound to it then.

        Return False if the server does not exist, or its state does not allow a reboot now. Raises
        exception.Unavailable; it is then unknown whether the reboot has started.
        """
        path = f"/servers/{quote(instance_uuid, safe='')}/action"
        body = {"reboot": {"type": "HARD"}}
        answer = self._ask("POST", path, json=body)
        if answer.status_code not in (202, 404, 409):
            raise exception.Unavailable(
                peer=_PEER, reason=f"POST {path} was answered {answer.status_code}"
            )
        return answer.status_code == 202

    def server_project(self, instance_uuid: str) -> str | None:
        """Return the id of the project that owns a server; None if the server does not exist.

        Raises exception.Unavailable if Nova does not answer.
        """
        answer = self._get(instance_uuid)
        if answer is None:
            return None
        return str(http.document(_PEER, answer)["server"]["tenant_id"])

    def _get(self, instance_uuid: str) -> requests.Response | None:
        """Return Nova's response for a server; None if it does not exist."""
        path = f"/servers/{quote(instance_uuid, safe='')}"
        answer = self._ask("GET", path)
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            raise exception.Unavailable(
                peer=_PEER, reason=f"GET {path} was answered {answer.status_code}"
            )
        return answer

    def _ask(self, method: str, path: str, **arguments: object) -> requests.Response:
        return http.ask(_PEER, self._adapter, method, path, microversion=MICROVERSION, **arguments)


class Servers(Nova):
    """Look up the servers of all projects.

    The account must see all of them, as with the role ``admin``.
    """

    def flavor(self, key: str) -> Flavor | None:
        """Return a flavor by id, or else by name; None if there is none.

        Raises exception.Unavailable if Nova does not answer.
        """
        path = f"/flavors/{quote(key, safe='')}"
        answer = self._ask("GET", path)
        if answer.status_code == 200:
            return _flavor(http.document(_PEER, answer)["flavor"])
        if answer.status_code != 404:
            raise exception.Unavailable(
                peer=_PEER, reason=f"GET {path} was answered {answer.status_code}"
            )
        query, page = {"is_public": "None", "limit": str(_PAGE)}, [{"id": ""}]
        while page:
            answer = self._ask("GET", f"/flavors/detail?{urlencode(query)}")
            if answer.status_code != 200:
                raise exception.Unavailable(
                    peer=_PEER, reason=f"GET /flavors/detail was answered {answer.status_code}"
                )
            page = http.document(_PEER, answer)["flavors"]
            for shown in page:
                if shown["name"] == key:
                    return _flavor(shown)
            query["marker"] = page[-1]["id"] if page else ""
        return None

    def zones(self) -> dict[str, str]:
        """Return the availability zone of each host that an aggregate gives one; in one request.

        Hosts have the names of their nova-compute. Those that are missing are in the default zone,
        of which only Nova's configuration has the name. Raises exception.Unavailable if Nova does
        not answer, or refuses it to the account.
        """
        path = "/os-aggregates"
        answer = self._ask("GET", path)
        if answer.status_code != 200:
            raise exception.Unavailable(
                peer=_PEER, reason=f"GET {path} was answered {answer.status_code}"
            )
        zones: dict[str, str] = {}
        try:
            for aggregate in http.document(_PEER, answer)["aggregates"]:
                zone = aggregate.get("availability_zone")
                if zone is not None:
                    zones |= {str(host): str(zone) for host in aggregate["hosts"]}
        except (AttributeError, KeyError, TypeError):
            raise exception.Unavailable(
                peer=_PEER, reason=f"the answer to GET {path} has no aggregates with hosts"
            ) from None
        return zones

    def vanished(self, uuids: Iterable[str]) -> frozenset[str]:
        """Return those of ``uuids``, in ascending order, that are not a server of any project.

        An account that sees only its own project would report every other server as missing. The
        list of the servers of all projects is therefore read beside ``uuids``, page by page in the
        same order; Nova refuses this list to such an account. Servers outside the list
        (soft-deleted, or in a cell that is down) are requested one at a time. Only one page and the
        missing servers are in memory.

        Raises exception.Unavailable if Nova does not answer.
        """
        missing: set[str] = set()
        requested = iter(uuids)
        uuid = next(requested, None)
        query = {"all_tenants": "True", "sort_key": "uuid", "sort_dir": "asc"}
        query["limit"] = str(1 if uuid is None else _PAGE)
        listed, page = set[str](), [""]
        while page:
            page = self._page(query)
            query["marker"] = page[-1] if page else ""
            # Nova lists servers that are not scheduled yet before all others, so ``listed`` keeps
            # those that are ahead of the page.
            listed = {server for server in listed if uuid is not None and server >= uuid}
            listed.update(page)
            while uuid is not None and (not page or uuid <= page[-1]):
                if uuid not in listed and uuid not in missing and self.server_project(uuid) is None:
                    missing.add(uuid)
                uuid = next(requested, None)
            if uuid is None:
                break
        return frozenset(missing)

    def _page(self, query: Mapping[str, str]) -> list[str]:
        """Return the uuids of a page of servers."""
        answer = self._ask("GET", f"/servers?{urlencode(query)}")
        if answer.status_code != 200:
            raise exception.Unavailable(
                peer=_PEER, reason=f"GET /servers was answered {answer.status_code}"
            )
        return [str(server["id"]) for server in http.document(_PEER, answer)["servers"]]


def _flavor(shown: Mapping[str, Any]) -> Flavor:
    """Return a flavor from Nova's answer; an old one may have an empty text for no swap."""
    swap = -(-int(shown.get("swap") or 0) // 1024)
    disk = int(shown["disk"]) + int(shown.get("OS-FLV-EXT-DATA:ephemeral") or 0) + swap
    return Flavor(
        str(shown["name"]),
        *(int(shown["vcpus"]), int(shown["ram"]), disk),
        dict(shown.get("extra_specs") or {}),
    )
