# SPDX-License-Identifier: Apache-2.0
"""Tests of the replay of Nova's part: which requests it sends, in which order, over the wire."""

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs

import pytest

from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.tests.fixtures.accelerators import AcceleratorClient, Exchange, NovaFault
from cyborg.tests.fixtures.compute import ComputeWalk
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.functional.clients.trees import card, tree

DP, POST, PATCH, GETI, DELI, DELA = "DP", "POST", "PATCH", "GETi", "DELi", "DELa"


class Accelerators:
    """The least that answers Nova: profiles as given, binds that succeed unless told otherwise."""

    def __init__(self, trait: str) -> None:
        groups = [{"resources:FPGA": "1", f"trait:{trait}": "required"}]
        self.profiles = {"one": groups, "pair": groups * 2}
        self.arqs: dict[str, dict[str, Any]] = {}
        self.info = {"domain": "0000", "bus": "5e", "device": "00", "physical_network": "net"}
        self.state = "Bound"
        self.refuse_binds = False

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        assert "HTTP_OPENSTACK_API_VERSION" not in environ
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = json.loads(environ["wsgi.input"].read(length)) if length else None
        query = {key: one for key, (one,) in parse_qs(environ["QUERY_STRING"]).items()}
        handler = getattr(self, environ["REQUEST_METHOD"].lower())
        status, answer = handler(environ["PATH_INFO"], query, body)
        start_response(f"{status} Told", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()] if answer is not None else [b""]

    def get(self, path: str, query: dict[str, str], _body: Any) -> tuple[int, Any]:
        if path == "/v2/device_profiles":
            named = self.profiles.get(query["name"])
            return 200, {"device_profiles": [{"groups": named}] if named else []}
        return 200, {"arqs": self._of(query["instance"])}

    def post(self, _path: str, _query: dict[str, str], body: Any) -> tuple[int, Any]:
        made: list[dict[str, Any]] = [
            {"uuid": str(uuid.uuid4()), "device_profile_group_id": index, "instance_uuid": None}
            for index, _ in enumerate(self.profiles[body["device_profile_name"]])
        ]
        self.arqs |= {one["uuid"]: one for one in made}
        return 201, {"arqs": made}

    def patch(self, _path: str, _query: dict[str, str], body: Any) -> tuple[int, Any]:
        if self.refuse_binds:
            return 409, {"error_message": "no"}
        for function, (arq, operations) in enumerate(body.items()):
            values = {one["path"].removeprefix("/"): one["value"] for one in operations}
            assert {one["op"] for one in operations} == {"add"}
            self.arqs[arq] |= values | {
                "state": self.state,
                "attach_handle_type": "PCI",
                "attach_handle_info": {**self.info, "function": str(function)},
            }
        return 202, None

    def delete(self, _path: str, query: dict[str, str], _body: Any) -> tuple[int, Any]:
        gone = (
            [one["uuid"] for one in self._of(query["instance"])]
            if "instance" in query
            else query["arqs"].split(",")
        )
        missing = [one for one in gone if self.arqs.pop(one, None) is None]
        return (404, {"error_message": "gone"}) if missing else (204, None)

    def _of(self, instance: str) -> list[dict[str, Any]]:
        return [one for one in self.arqs.values() if one["instance_uuid"] == instance]


class Cloud:
    """Two computes with two cards each, Nova, the API, and the exchanges between the two."""

    def __init__(self, placement: PlacementService, nova: SimulatedNova, wait: float) -> None:
        self.trait = f"CUSTOM_{uuid.uuid4().hex.upper()}"
        self.hosts = sorted(fresh_host() for _ in range(2))
        publisher = Publisher(Placement(placement.adapter()))
        for host in self.hosts:
            placement.make_compute(host)
            cards = [card(host, one, traits=frozenset({self.trait})) for one in range(2)]
            assert publisher.publish(tree(host, *cards)).problems == {}
        self.api = Accelerators(self.trait)
        self.exchanges: list[Exchange] = []
        self.loopback = Loopback(self.api)
        client = AcceleratorClient(
            f"{self.loopback.url}/v2", "user", "service", self.exchanges.append
        )
        self.walk = ComputeWalk(client, placement, nova, wait=wait)

    def take(self) -> list[str]:
        """The requests since the last time, in the words of Nova's life-cycle table."""
        taken = [_word(one) for one in self.exchanges]
        self.exchanges.clear()
        return taken


def _word(exchange: Exchange) -> str:
    if exchange.method in {"POST", "PATCH"}:
        return exchange.method
    if exchange.method == "GET":
        return DP if exchange.path.startswith("/device_profiles?name=") else GETI
    return DELI if "?instance=" in exchange.path else DELA


class FirstAsked(list[str]):
    """A collection that holds the first thing that anybody looks for in it."""

    def __contains__(self, one: object) -> bool:
        if not self:
            self.append(str(one))
        return super().__contains__(one)


@pytest.fixture
def cloud(placement: PlacementService, nova: SimulatedNova) -> Iterator[Cloud]:
    built = Cloud(placement, nova, wait=0)
    with built.loopback:
        yield built


def test_each_operation_sends_the_requests_of_nova(cloud: Cloud, placement: PlacementService):
    walk = cloud.walk
    server = walk.boot("pair")
    assert cloud.take() == [DP, POST, PATCH, GETI]
    held = placement.call("GET", f"/allocations/{server.uuid}")["allocations"]
    root = placement.make_compute(server.host)
    assert {one["device_rp_uuid"] for one in server.arqs} == set(held) - {root}
    assert {one["hostname"] for one in server.arqs} == {server.host}
    assert server.hostdevs == ["0000:5e:00.0", "0000:5e:00.1"]
    walk.reboot(server)
    assert cloud.take() == [GETI]
    walk.rebuild(server)
    assert cloud.take() == [GETI, GETI]
    before = [one["uuid"] for one in server.arqs]
    walk.shelve_offload(server)
    assert (cloud.take(), cloud.api.arqs) == ([GETI, DELI], {})
    walk.unshelve(server)
    assert cloud.take() == [DP, POST, PATCH, GETI]
    assert {one["uuid"] for one in server.arqs}.isdisjoint(before)
    source = server.host
    walk.evacuate(server)
    assert cloud.take() == [DP, DELI, POST, PATCH, GETI]
    assert {source, server.host} == set(cloud.hosts)
    assert {one["hostname"] for one in server.arqs} == {server.host}
    walk.delete(server)
    assert (cloud.take(), cloud.api.arqs) == ([DELI], {})
    assert placement.call("GET", f"/allocations/{server.uuid}")["allocations"] == {}
    server = walk.boot("one")
    cloud.take()
    walk.local_delete(server)
    assert cloud.take() == [DELI]


def test_failed_build_is_rescheduled_until_no_host_is_left(cloud: Cloud):
    broken = FirstAsked()
    server = cloud.walk.boot("one", breaks_on=broken)
    assert {server.host, *broken} == set(cloud.hosts)
    once = [POST, PATCH, GETI, DELI, DELA]
    assert cloud.take() == [DP, *once, POST, PATCH, GETI]
    assert [one["hostname"] for one in cloud.api.arqs.values()] == [server.host]
    cloud.walk.delete(server)
    cloud.take()
    with pytest.raises(NovaFault, match="no valid host"):
        cloud.walk.boot("one", breaks_on=cloud.hosts)
    assert (cloud.take(), cloud.api.arqs) == ([DP, *once, *once, DELI], {})


def test_failed_bind_deletes_created_arqs(cloud: Cloud):
    server = cloud.walk.boot("one")
    cloud.walk.shelve_offload(server)
    cloud.take()
    cloud.api.state = "BindStarted"
    with pytest.raises(NovaFault, match="no event"):
        cloud.walk.boot("one")
    assert cloud.take() == [DP, POST, PATCH, GETI, DELI, DELA]
    with pytest.raises(NovaFault, match="not all"):
        cloud.walk.unshelve(server)
    cloud.take()
    cloud.api.arqs.clear()
    cloud.api.refuse_binds = True
    with pytest.raises(NovaFault) as caught:
        cloud.walk.boot("pair")
    assert caught.value.status == 409
    assert (cloud.take(), cloud.api.arqs) == ([DP, POST, PATCH, DELA], {})


def test_accelerator_port_carries_its_device(cloud: Cloud):
    port = str(uuid.uuid4())
    server = cloud.walk.boot("one", ports={port: "one"})
    assert cloud.take() == [DP, DP, POST, POST, PATCH, GETI]
    profile = server.binding_profiles[port]
    assert (profile["physical_network"], profile["pci_slot"]) == ("net", "0000:5e:00.1")
    assert server.hostdevs == ["0000:5e:00.0"]
    cloud.walk.delete(server)
    assert (cloud.take(), cloud.api.arqs) == ([DELA, DELI], {})
    with pytest.raises(NovaFault, match="more than one"):
        cloud.walk.boot(None, ports={port: "pair"})
    with pytest.raises(NovaFault, match="not exactly one"):
        cloud.walk.boot("none")
    assert cloud.take() == [DP, DP]
