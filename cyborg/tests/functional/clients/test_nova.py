# SPDX-License-Identifier: Apache-2.0
"""Tests of events and questions to Nova, against the simulated one."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from keystoneauth1.adapter import Adapter

from cyborg import exception
from cyborg.clients.nova import BindEvent, EventVerdict, Nova, ServerInfo
from cyborg.tests.fixtures.nova import SimulatedNova


def event(succeeded: bool = True) -> BindEvent:
    return BindEvent(str(uuid.uuid4()), str(uuid.uuid4()), succeeded)


def test_info_of_a_missing_server_is_none(nova: SimulatedNova):
    instance, client = str(uuid.uuid4()), Nova(nova.adapter())
    assert client.server_info(instance) is None
    guest = nova.own(instance, "blue")
    guest.name = "web-1"
    assert client.server_info(instance) == ServerInfo("web-1", "ACTIVE", moving=False)
    guest.status, guest.task, guest._looks = "SHUTOFF", "powering-on", 1
    assert client.server_info(instance) == ServerInfo("web-1", "SHUTOFF", moving=True)
    guest.status, guest.task = "BUILD", None
    assert client.server_info(instance) == ServerInfo("web-1", "BUILD", moving=True)
    assert nova.shows.asked == (instance,) * 4


def test_reboot_takes_effect_when_its_task_ends(nova: SimulatedNova):
    """It takes what is listed when it ends, not when it begins."""
    instance, client = str(uuid.uuid4()), Nova(nova.adapter())
    assert client.reboot(instance) is False
    guest = nova.own(instance, "blue", "node-1.example.org", "gpu")
    assert client.reboot(instance) is True
    nova.guests.listed = lambda _instance: ["one"]

    def look() -> tuple[str, str | None]:
        server = client.server(instance)
        assert server is not None
        return server.status, server.task

    assert look() == ("HARD_REBOOT", "rebooting_hard")
    assert guest.has == []
    assert look() == ("ACTIVE", None)
    assert guest.has == ["one"]
    guest.status = "SHELVED_OFFLOADED"
    assert client.reboot(instance) is False
    guest.status, guest.fails = "ACTIVE", 1
    assert client.reboot(instance) is True
    assert [look(), look()] == [("HARD_REBOOT", "rebooting_hard"), ("ERROR", None)]
    # Nova fails a reboot when nothing is listed for a flavor that names a profile.
    nova.guests.listed = lambda _instance: []
    assert client.reboot(instance) is True
    assert [look(), look()] == [("ERROR", "rebooting_hard"), ("ERROR", None)]


def test_one_request_carries_all_events_and_each_has_its_verdict(nova: SimulatedNova):
    sent = [event(), event(succeeded=False), event(), event()]
    for one, code in zip(sent, (200, 404, 422, 400), strict=True):
        nova.answer_instance(one.instance_uuid, code)
    assert Nova(nova.adapter()).send_events(sent) == [
        EventVerdict.DELIVERED,
        EventVerdict.INSTANCE_GONE,
        EventVerdict.NO_HOST_YET,
        EventVerdict.REFUSED,
    ]
    (call,) = nova.wait_for_calls(1)
    assert call.microversion == "compute 2.82"
    assert [(one.server_uuid, one.tag, one.status) for one in call.events] == [
        (one.instance_uuid, one.arq_uuid, "completed" if one.succeeded else "failed")
        for one in sent
    ]


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (404, EventVerdict.INSTANCE_GONE),
        *((status, EventVerdict.REFUSED) for status in (400, 406)),
        *((status, None) for status in (401, 403, 429, 500, 503)),
    ],
)
def test_answer_to_the_request_is_the_verdict_of_all_events(
    nova: SimulatedNova, status: int, verdict: EventVerdict | None
):
    """None: Nova is busy, and the events may be sent again."""
    client, events = Nova(nova.adapter()), [event(), event()]
    nova.answer_calls(status)
    if verdict is None:
        with pytest.raises(exception.Unavailable, match="Nova"):
            client.send_events(events)
    else:
        assert client.send_events(events) == [verdict, verdict]
    assert client.send_events(events) == [EventVerdict.DELIVERED] * 2


def test_silent_or_stopped_nova_is_unavailable(nova: SimulatedNova):
    nova.hold()
    with pytest.raises(exception.Unavailable):
        Nova(nova.adapter(timeout=0.2)).send_events([event()])
    nova.release()
    assert Nova(nova.adapter()).send_events([event()]) == [EventVerdict.DELIVERED]
    stopped = SimulatedNova()
    stopped.stop()
    with pytest.raises(exception.Unavailable):
        Nova(stopped.adapter()).send_events([event()])


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 503])
def test_info_is_unavailable_when_nova_fails(nova: SimulatedNova, status: int):
    instance, client = str(uuid.uuid4()), Nova(nova.adapter())
    nova.own(instance, "blue").away = True  # its cell is down
    with pytest.raises(exception.Unavailable, match=f"name and status of server {instance}"):
        client.server_info(instance)
    nova.shows.fail(status)
    with pytest.raises(exception.Unavailable, match=str(status)):
        client.server_info(instance)


class Changed(Adapter):
    """Changes what Nova answers."""

    def __init__(self, nova: SimulatedNova, change: Callable[[bytes], bytes]) -> None:
        super().__init__(nova.adapter().session, service_type="compute")
        self._change = change

    def request(self, url: str, method: str, **arguments: Any) -> Any:
        answer = super().request(url, method, **arguments)
        answer._content = self._change(answer.content)
        return answer


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"null", b'{"server": 7}', b"{}"])
def test_invalid_response_is_reported_as_unavailable(nova: SimulatedNova, body: bytes):
    instance = str(uuid.uuid4())
    nova.own(instance, "blue")
    with pytest.raises(exception.Unavailable, match="Nova"):
        Nova(Changed(nova, lambda _answer: body)).server_info(instance)


def test_server_has_its_project_host_and_flavor(nova: SimulatedNova):
    instance, client = str(uuid.uuid4()), Nova(nova.adapter())
    assert (client.server(instance), client.server_project(instance)) == (None, None)
    nova.own(instance, "blue", "node-1.example.org", "gpu")
    assert client.server_project(instance) == "blue"
    server = client.server(instance)
    assert server is not None
    assert (server.project_id, server.status, server.task) == ("blue", "ACTIVE", None)
    assert (server.node, server.profile) == ("node-1.example.org", "gpu")

    def without_host(answer: bytes) -> bytes:
        shown = json.loads(answer)
        del shown["server"]["OS-EXT-SRV-ATTR:hypervisor_hostname"]
        return json.dumps(shown).encode()

    # The account may not see hosts of servers.
    with pytest.raises(exception.Unavailable, match="hypervisor_hostname"):
        Nova(Changed(nova, without_host)).server(instance)
    nova.own(instance, "blue")
    server = client.server(instance)
    assert server is not None
    assert (server.node, server.profile) == (None, None)
