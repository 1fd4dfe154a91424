# SPDX-License-Identifier: Apache-2.0
"""What operators list, from a driver on a host to the answer of the API; and who may."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cyborg.drivers.loader import LoadResult
from cyborg.drivers.scan import Scan
from cyborg.model.device import Backend, BackendService, Hardware
from cyborg.tests.fixtures.compute_host import compute_host
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.cards import CARD, IDLE, OTHER, CardDriver, Rack, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import bind, create, ended, eventually_offered

Racks = Callable[..., RackedCompute]


class EngineDriver(CardDriver):
    """Cards that run engines, and one that has to be set up first."""

    name = "engine_driver"
    device_type = "CRYPTO"

    def hardware(self, scan: Scan) -> list[Hardware]:
        return [*(Hardware.of(one) for one in self.discover(scan)), IDLE]

    def backends(self, scan: Scan) -> Sequence[Backend]:
        engines = (BackendService("compression", "READY"), BackendService("ipsec", "FAILED"))
        return [
            Backend("engine-0", "READY", engines, {"num": 2}),
            Backend("engine-1", "READY", engines[:1]),
        ]


@pytest.fixture
def host(
    beside: Callable[..., Stack],
    placement: PlacementService,
    resource_class: str,
    tmp_path: Path,
) -> Rack:
    """A compute with two cards of three units, by a driver with engines; another driver is idle."""
    own = beside(agent_heartbeat=0.2, scan=0.2)
    host = compute_host(own, tmp_path)
    rack = Rack.build(host.compute, Traits(resource_class), {CARD: 3})
    host.machine = rack.machine
    driver = EngineDriver(rack.machine, rack.compute, Traits(resource_class))
    spare = CardDriver(rack.machine, rack.compute, Traits(resource_class))
    host.start(
        LoadResult(driver.name, driver, endpoint="engines:EngineDriver", version="1.2"),
        LoadResult(spare.name, spare, enabled=False),
    )
    eventually_offered(placement, rack.provider(), 3)
    return rack


#: List, query, what tells its entries apart, and which they are; the samples have the rest.
FILTERED: list[tuple[str, dict[str, Any], str, list[Any]]] = [
    ("drivers", {}, "name", ["engine_driver", "card_driver"]),
    ("drivers", {"state": "READY"}, "name", ["engine_driver"]),
    ("drivers", {"state": "STOPPED"}, "enabled", [False]),
    ("drivers", {"name": "engine_driver"}, "version", ["1.2"]),
    ("backends", {"sort_key": "name"}, "name", ["engine-0", "engine-1"]),
    ("backends", {"capability": "num"}, "name", ["engine-0"]),
    ("backends", {"capability": "fp16"}, "name", []),
    ("services", {"kind": "backend"}, "name", ["compression", "ipsec", "compression"]),
    ("services", {"backend": "engine-0"}, "state", ["READY", "FAILED"]),
    ("services", {"backend": "engine-1", "driver": "engine_driver"}, "name", ["compression"]),
    ("hardware", {"driver": "engine_driver"}, "key", [CARD, IDLE.key]),
    ("hardware", {"type": "FPGA", "driver": "engine_driver"}, "offered", [True]),
    ("hardware", {"setup_required": "true"}, "key", [IDLE.key]),
    ("hardware", {"capability": "ipsec"}, "key", [IDLE.key]),
    ("hardware", {"remote": "true"}, "key", [IDLE.key]),
    ("hardware", {"remote": "false", "driver": "engine_driver"}, "key", [CARD]),
]


def test_inventory_is_listed_filtered_and_shown(
    host: Rack, operator: Client, admin: Client
) -> None:
    for noun, query, field, expected in FILTERED:
        entries = operator.get(f"/{noun}", host=host.compute, **query)[noun]
        assert [one[field] for one in entries] == expected, (noun, query)
        for one in entries:
            assert operator.get(f"/{noun}/{one['uuid']}") == one
        assert operator.get(f"/{noun}", host="nowhere", **query) == {noun: []}
    (device,) = admin.get("/devices")["devices"]
    offered, waiting = operator.get("/hardware", driver="engine_driver")["hardware"]
    assert offered["uuid"] == device["uuid"]
    assert waiting["acc_status"]["reason"] == "its firmware is missing"
    (idle,) = operator.get("/hardware", driver="card_driver", host=host.compute)["hardware"]
    assert (idle["offered"], idle["acc_status"]["reason"]) == (False, "card_driver is not enabled")
    for odd in ("capability=a'b", "setup_required=maybe"):
        assert operator.answer("GET", f"/hardware?{odd}") == 400


def test_driver_shows_number_of_its_devices(
    host: Rack,
    operator: Client,
    nova: Client,
    profile: Callable[..., str],
    *,
    resource_class: str,
) -> None:
    arqs = create(nova, profile({f"resources:{resource_class}": "1"}))
    bind(nova, arqs, host.provider(), host=host.compute)
    host.plug(OTHER, 1)

    def counts() -> Any:
        (one,) = operator.get("/drivers", name="engine_driver")["drivers"]
        return one["devices"]

    eventually(lambda: counts() == {"found": 2, "offered": 2, "in_use": 1})
    host.pull(CARD)
    eventually(lambda: counts() == {"found": 1, "offered": 1, "in_use": 1})


def test_discovery_includes_disabled_drivers(host: Rack, operator: Client) -> None:
    host.plug(OTHER, 1)

    def idle() -> int:
        found = operator.get("/hardware", driver="card_driver", host=host.compute)
        return len(found["hardware"])

    eventually(lambda: len(operator.get("/devices")["devices"]) == 2)
    assert idle() == 1
    begun = operator.post("/services/discover", {"hosts": [host.compute]}, status=202)
    assert ended(operator, begun)["state"] == "succeeded"
    assert idle() == 2


def test_service_pages_cover_processes_and_backends(host: Rack, operator: Client) -> None:
    for order in ("", "&sort_dir=desc", "&sort_key=driver", "&sort_key=host&sort_dir=desc"):
        everything = [one["uuid"] for one in operator.get(f"/services?{order}")["services"]]
        walked: list[str] = []
        marker = ""
        while page := operator.get(f"/services?limit=2{order}{marker}")["services"]:
            walked += [one["uuid"] for one in page]
            marker = f"&marker={walked[-1]}"
        assert walked == everything
        assert len(set(walked)) == len(walked) > 3
    for odd in (f"marker={uuid4()}", "sort_key=version", "sort_dir=up", "limit=-1", "color=red"):
        assert operator.answer("GET", f"/services?{odd}") == 400
