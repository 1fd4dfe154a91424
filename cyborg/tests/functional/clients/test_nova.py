# SPDX-License-Identifier: Apache-2.0
"""Tests of events and questions to Nova, against the simulated one."""

import json
import uuid
from typing import Any

import pytest
from keystoneauth1.adapter import Adapter

from cyborg import exception
from cyborg.clients.nova import BindEvent, EventVerdict, Nova, ServerInfo
from cyborg.tests.fixtures.nova import SimulatedNova

TIMEOUT = 10.0


def event(succeeded: bool = True) -> BindEvent:
    return BindEvent(str(uuid.uuid4()), str(uuid.uuid4()), succeeded)


def test_one_request_carries_all_events(nova: SimulatedNova):
    done, failed = event(), event(succeeded=False)
    verdicts = Nova(nova.adapter()).send_events([done, failed])
    assert verdicts == [EventVerdict.DELIVERED, EventVerdict.DELIVERED]
    (call,) = nova.wait_for_calls(1, TIMEOUT)
    assert call.microversion == "compute 2.82"
    assert [(one.server_uuid, one.tag, one.status) for one in call.events] == [
        (done.instance_uuid, done.arq_uuid, "completed"),
        (failed.instance_uuid, failed.arq_uuid, "failed"),
    ]
    told = nova.wait_for_events([done.arq_uuid, failed.arq_uuid], TIMEOUT)
    assert told == {done.arq_uuid: "completed", failed.arq_uuid: "failed"}


def test_each_event_has_the_verdict_of_its_own_code(nova: SimulatedNova):
    sent = [event() for _ in range(4)]
    for one, code in zip(sent, (200, 404, 422, 400), strict=True):
        nova.answer_instance(one.instance_uuid, code)
    assert Nova(nova.adapter()).send_events(sent) == [
        EventVerdict.DELIVERED,
        EventVerdict.INSTANCE_GONE,
        EventVerdict.NO_HOST_YET,
        EventVerdict.REFUSED,
    ]
    with pytest.raises(TimeoutError):
        nova.wait_for_events([sent[2].arq_uuid], timeout=0)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(404, EventVerdict.INSTANCE_GONE), (400, EventVerdict.REFUSED), (406, EventVerdict.REFUSED)],
)
def test_refused_request_gives_each_event_the_same_verdict(
    nova: SimulatedNova, status: int, verdict: EventVerdict
):
    nova.answer_calls(status)
    assert Nova(nova.adapter()).send_events([event(), event()]) == [verdict, verdict]


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_busy_nova_is_reported_as_unavailable(nova: SimulatedNova, status: int):
    client, one = Nova(nova.adapter()), event()
    nova.answer_calls(status)
    with pytest.raises(exception.Unavailable, match="Nova"):
        client.send_events([one])
    assert client.send_events([one]) == [EventVerdict.DELIVERED]


def test_silent_nova_times_out(nova: SimulatedNova):
    client = Nova(nova.adapter(timeout=0.2))
    nova.hold()
    with pytest.raises(exception.Unavailable):
        client.send_events([event()])
    nova.release()
    assert client.send_events([event()]) == [EventVerdict.DELIVERED]


def test_unreachable_nova_is_reported_as_unavailable():
    nova = SimulatedNova()
    client = Nova(nova.adapter())
    nova.stop()
    with pytest.raises(exception.Unavailable):
        client.send_events([event()])


def test_project_of_a_missing_server_is_none(nova: SimulatedNova):
    instance, client = str(uuid.uuid4()), Nova(nova.adapter())
    assert client.server_project(instance) is None
    nova.own(instance, "blue")
    assert client.server_project(instance) == "blue"


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


def test_info_of_a_server_in_a_lost_cell_is_unavailable(nova: SimulatedNova):
    instance = str(uuid.uuid4())
    nova.own(instance, "blue").away = True
    with pytest.raises(exception.Unavailable, match=f"name and status of server {instance}"):
        Nova(nova.adapter()).server_info(instance)


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 503])
def test_info_is_unavailable_when_nova_fails(nova: SimulatedNova, status: int):
    instance = str(uuid.uuid4())
    nova.own(instance, "blue")
    nova.shows.fail(status)
    with pytest.raises(exception.Unavailable, match=str(status)):
        Nova(nova.adapter()).server_info(instance)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"null", b'{"server": 7}', b"{}"])
def test_invalid_response_is_reported_as_unavailable(nova: SimulatedNova, body: bytes):
    class Garbled(Adapter):
        def request(self, url: str, method: str, **arguments: Any) -> Any:
            answer = super().request(url, method, **arguments)
            answer._content = body
            return answer

    instance = str(uuid.uuid4())
    nova.own(instance, "blue")
    garbled = Garbled(nova.adapter().session, service_type="compute")
    with pytest.raises(exception.Unavailable, match="Nova"):
        Nova(garbled).server_info(instance)


def test_server_has_its_host_and_flavor(nova: SimulatedNova):
    instance, client = str(uuid.uuid4()), Nova(nova.adapter())
    assert client.server(instance) is None
    nova.own(instance, "blue", "node-1.example.org", "gpu")
    server = client.server(instance)
    assert server is not None
    assert (server.project_id, server.status, server.task) == ("blue", "ACTIVE", None)
    assert (server.node, server.profile) == ("node-1.example.org", "gpu")
    nova.own(instance, "blue")
    server = client.server(instance)
    assert server is not None
    assert (server.node, server.profile) == (None, None)


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


def test_error_names_the_right_to_see_hosts_of_servers(nova: SimulatedNova):
    class Poor(Adapter):
        def request(self, url: str, method: str, **arguments: Any) -> Any:
            answer = super().request(url, method, **arguments)
            shown = answer.json()
            del shown["server"]["OS-EXT-SRV-ATTR:hypervisor_hostname"]
            answer._content = json.dumps(shown).encode()
            return answer

    instance = str(uuid.uuid4())
    nova.own(instance, "blue", "node-1.example.org", "gpu")
    poor = Poor(nova.adapter().session, service_type="compute")
    with pytest.raises(exception.Unavailable, match="hypervisor_hostname"):
        Nova(poor).server(instance)


def test_simulated_nova_refuses_what_nova_refuses(nova: SimulatedNova):
    good = {
        "name": "accelerator-request-bound",
        "server_uuid": str(uuid.uuid4()),
        "tag": str(uuid.uuid4()),
        "status": "completed",
    }
    adapter = nova.adapter()

    def post(microversion: str, *events: dict[str, str]) -> int:
        return adapter.post(
            "/os-server-external-events",
            json={"events": list(events)},
            microversion=microversion,
            raise_exc=False,
        ).status_code

    assert post("2.82", good) == 200
    assert post("2.81", good) == 400
    for change in ({"extra": "x"}, {"tag": ""}, {"server_uuid": "x"}, {"status": "done"}):
        assert post("2.82", good | change) == 400
    assert post("2.82") == 400
    assert len(nova.calls) == 1
