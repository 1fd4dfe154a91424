# SPDX-License-Identifier: Apache-2.0
"""What operators list, from a driver on a host to the answer of the API; and who may."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cyborg.drivers.base import EMPTY_CONTEXT, DriverContext
from cyborg.drivers.loader import LoadResult
from cyborg.model.device import Backend, BackendService, Hardware
from cyborg.tests.fixtures.compute_host import compute_host
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.cards import CARD, IDLE, OTHER, CardDriver, Rack, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import bind, create, ended, eventually, eventually_offered

Racks = Callable[..., RackedCompute]


class EngineDriver(CardDriver):
    """Cards that run engines, and one that has to be set up first."""

    name = "engine_driver"
    device_type = "CRYPTO"

    def hardware(self, context: DriverContext = EMPTY_CONTEXT) -> list[Hardware]:
        return [*(Hardware.of(one) for one in self.discover(context)), IDLE]

    def backends(self) -> Sequence[Backend]:
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


def test_hardware_and_backends_are_filtered_by_capability_from_2_5(
    host: Rack, operator: Client
) -> None:
    newer = replace(operator, version="2.5")
    (engine,) = newer.get("/backends", host=host.compute, capability="num")["backends"]
    assert engine["name"] == "engine-0"
    assert newer.get("/backends", host=host.compute, capability="fp16") == {"backends": []}
    capable = newer.get("/hardware", host=host.compute, capability="ipsec")["hardware"]
    assert [entry["key"] for entry in capable] == [IDLE.key]
    of_host = newer.get("/hardware", host=host.compute, driver="engine_driver")["hardware"]
    by_remote = [
        entry
        for remote in ("true", "false")
        for entry in newer.get(
            "/hardware", host=host.compute, driver="engine_driver", remote=remote
        )["hardware"]
    ]
    assert {entry["uuid"] for entry in by_remote} == {entry["uuid"] for entry in of_host}
    (remote,) = newer.get("/hardware", host=host.compute, remote="true")["hardware"]
    assert remote["acc_specs"]["remote"] == 1
    assert newer.answer("GET", "/hardware?capability=a'b") == 400
    for query in ("capability=num", "remote=true"):
        assert operator.answer("GET", f"/hardware?{query}") == 400


def test_drivers_are_listed_and_shown(host: Rack, operator: Client) -> None:
    listed = operator.get("/drivers", host=host.compute)["drivers"]
    by_name = {one["name"]: one for one in listed}
    mine = by_name["engine_driver"]
    assert operator.get(f"/drivers/{mine['uuid']}") == mine
    assert mine.pop("discovered_at").endswith("+00:00")
    mine.pop("uuid")
    assert mine == {
        "host": host.compute,
        "name": "engine_driver",
        "state": "READY",
        "version": "1.2",
        "type": "CRYPTO",
        "endpoint": "engines:EngineDriver",
        "enabled": True,
        "options": {},
        "devices": {"found": 1, "offered": 1, "in_use": 0},
        "error": None,
    }
    idle = by_name["card_driver"]
    assert (idle["state"], idle["enabled"], idle["devices"]["found"]) == ("STOPPED", False, 0)
    names = [one["name"] for one in operator.get("/drivers", state="READY")["drivers"]]
    assert names == ["engine_driver"]
    assert operator.get("/drivers", host="nowhere") == {"drivers": []}
    assert operator.answer("GET", f"/drivers/{uuid4()}") == 404


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


def test_backends_are_listed_with_their_services(host: Rack, operator: Client) -> None:
    first, second = operator.get("/backends", sort_key="name")["backends"]
    assert operator.get(f"/backends/{first['uuid']}") == first
    assert {key: first[key] for key in ("host", "driver", "name", "state", "capabilities")} == {
        "host": host.compute,
        "driver": "engine_driver",
        "name": "engine-0",
        "state": "READY",
        "capabilities": {"num": 2},
    }
    assert first["services"] == [
        {"name": "compression", "state": "READY"},
        {"name": "ipsec", "state": "FAILED"},
    ]
    assert (second["name"], second["capabilities"]) == ("engine-1", {})
    found = operator.get("/services", kind="backend", driver="engine_driver")["services"]
    assert [(one["backend"], one["name"], one["state"]) for one in found] == [
        ("engine-0", "compression", "READY"),
        ("engine-0", "ipsec", "FAILED"),
        ("engine-1", "compression", "READY"),
    ]
    assert found[0]["last_discovered_at"].endswith("+00:00")
    assert operator.get(f"/services/{found[1]['uuid']}") == found[1]
    only = operator.get("/services", backend="engine-1", host=host.compute)["services"]
    assert [one["uuid"] for one in only] == [found[2]["uuid"]]


def test_hardware_is_listed_and_shown(host: Rack, operator: Client, admin: Client) -> None:
    (device,) = admin.get("/devices")["devices"]
    (waiting,) = operator.get("/hardware", setup_required="true")["hardware"]
    assert operator.get(f"/hardware/{waiting['uuid']}") == waiting
    waiting.pop("uuid")
    assert waiting == {
        "hostname": host.compute,
        "driver": "engine_driver",
        "key": IDLE.key,
        "acc_specs": {
            "device_type": "CRYPTO",
            "num": 4,
            "remote": 1,
            "acc_capability": {"num": 2, "ipsec": {"aes": {"3des": 50, "num": 1}}},
        },
        "acc_status": {
            "setup_required": True,
            "reboot_required": False,
            "reason": "its firmware is missing",
        },
        "offered": False,
    }
    found = operator.get("/hardware", type="FPGA", driver="engine_driver")["hardware"]
    assert [(one["uuid"], one["offered"]) for one in found] == [(device["uuid"], True)]
    (idle,) = operator.get("/hardware", driver="card_driver", host=host.compute)["hardware"]
    assert (idle["offered"], idle["acc_status"]["reason"]) == (False, "card_driver is not enabled")
    assert operator.answer("GET", "/hardware?setup_required=maybe") == 400


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


def test_usage_counts_units_by_project(
    host: Rack,
    operator: Client,
    member: Client,
    nova: Client,
    profile: Callable[..., str],
    *,
    resource_class: str,
) -> None:
    arqs = create(nova, profile({f"resources:{resource_class}": "1"}))
    bind(nova, arqs, host.provider(), host=host.compute)

    def row(project: str | None, **counts: int) -> dict[str, Any]:
        none = {"offered": 0, "bound": 0, "reserved": 0, "lost": 0}
        return {"type": "FPGA", "host": host.compute, "project_id": project, **none, **counts}

    def usage(who: Client, asked: str = "") -> list[dict[str, Any]]:
        found = replace(who, version="2.4").get(f"/usage{asked}")["usage"]
        return sorted(found, key=lambda one: one["project_id"] or "")

    assert usage(operator) == [row(None, offered=2), row(member.project, bound=1)]
    assert usage(operator, f"?project_id={member.project}") == [row(member.project, bound=1)]
    assert usage(operator, "?host=nowhere") == usage(operator, "?type=GPU") == []
    assert usage(member) == [row(member.project, bound=1) | {"host": None}]
    assert usage(replace(member, project="another")) == []
    assert replace(member, version="2.4").answer("GET", f"/usage?host={host.compute}") == 403
    admin = replace(operator, role="admin")
    (device,) = admin.get("/devices")["devices"]
    admin.post(f"/devices/{device['uuid']}/disable", status=204)
    assert usage(operator) == [row(None, reserved=2), row(member.project, bound=1)]
    host.pull(CARD)
    eventually(lambda: usage(operator)[0] == row(None, lost=2))
