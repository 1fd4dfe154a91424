# SPDX-License-Identifier: Apache-2.0
"""Nova's REST API, as far as accelerators need it: telling how a bind ended, asking who owns."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

from keystoneauth1.adapter import Adapter

from cyborg import exception
from cyborg.clients import http

#: The first one that knows the event ``accelerator-request-bound``.
MICROVERSION = "2.82"
_PEER = "Nova"


@dataclass(frozen=True)
class BindEvent:
    """How the bind of one accelerator request of an instance ended."""

    instance_uuid: str
    arq_uuid: str
    succeeded: bool


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
        body = {"events": [_event(one) for one in events]}
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
            (one["server_uuid"], one["tag"]): one["code"]
            for one in http.document(_PEER, answer)["events"]
        }
        return [_verdict(codes.get((one.instance_uuid, one.arq_uuid))) for one in events]

    def server_project(self, instance_uuid: str) -> str | None:
        """The project that owns a server, None when there is no such server.

        Raises exception.Unavailable when Nova does not say.
        """
        path = f"/servers/{quote(instance_uuid, safe='')}"
        answer = http.ask(_PEER, self._adapter, "GET", path, microversion=MICROVERSION)
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            raise exception.Unavailable(
                peer=_PEER, reason=f"GET {path} was answered {answer.status_code}"
            )
        return str(http.document(_PEER, answer)["server"]["tenant_id"])


def _event(event: BindEvent) -> dict[str, str]:
    return {
        "name": "accelerator-request-bound",
        "server_uuid": event.instance_uuid,
        "tag": event.arq_uuid,
        "status": "completed" if event.succeeded else "failed",
    }


def _verdict(code: int | None) -> EventVerdict:
    return EventVerdict.REFUSED if code is None else _VERDICTS.get(code, EventVerdict.REFUSED)
