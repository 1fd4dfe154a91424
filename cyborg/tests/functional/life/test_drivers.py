# SPDX-License-Identifier: Apache-2.0
"""Drivers that come and go while the system runs, and those of installed packages."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import exception
from cyborg.clients.placement import Placement
from cyborg.db.engine import Database
from cyborg.db.models import Device, Driver, Event, Service
from cyborg.drivers import loader
from cyborg.drivers.loader import LoadResult
from cyborg.testing import servers
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.cards import CARD, Rack, Traits
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    bind,
    create,
    ended,
    eventually_offered,
    orphan,
    work_left,
)
from cyborg.tests.unit import test_packaging

DRIVERS = "/drivers"
NAME = "card_driver"
OURS = sorted(test_packaging.DRIVERS)
#: What a host that is new to it needs in no file of its own.
OPTIONS = {
    "backends": "nets, demo",
    "generic_driver:nets.pci_ids": "8086:*",
    "generic_driver:nets.services": "aes, gzip",
    "generic_driver:demo.pci_ids": "10de:20b5, 10de:20f1",
    "generic_driver:demo.attach_type": "TEST_PCI",
    "generic_driver:demo.units": "3",
}
NUMBERS = ("found", "added", "changed", "lost", "failed")


@dataclass(kw_only=True)
class Bay(Rack, ComputeHost):
    """A host whose agent can load the driver of its cards, and does so when it is told.

    ``packages`` are what is installed there; ``given`` the options that the driver was loaded
    with, each time.
    """

    packages: set[str] = field(default_factory=lambda: {NAME})
    given: list[Mapping[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.load = self.installed

    def installed(self, name: str, options: Mapping[str, str]) -> LoadResult:
        """As the agent's loader would."""
        if name not in self.packages:
            return LoadResult(name, error="no driver of this name is installed")
        if "speed" in options and not options["speed"].isdigit():
            return LoadResult(name, error=f"option speed = {options['speed']}: a number is needed")
        self.given.append(options)
        return LoadResult(name, self.driver)


@pytest.fixture
def bays(
    beside: Callable[..., Stack], placement: PlacementService, resource_class: str, tmp_path: Path
) -> Callable[[], Bay]:
    """Start hosts with a card that no driver looks for yet."""
    own = beside(agent_heartbeat=0.2, scan=3600)

    def start() -> Bay:
        name = fresh_host("bay")
        placement.make_compute(name)
        rack = Rack.build(name, Traits(resource_class), {CARD: 2})
        bay = Bay(**vars(rack), stack=own, state_path=tmp_path / name)
        bay.start()
        return bay

    return start


@pytest.fixture
def bay(bays: Callable[[], Bay], database: Database) -> Bay:
    made = bays()
    eventually(lambda: is_up(database, made))
    return made


def is_up(database: Database, bay: Bay) -> bool:
    """Whether the agent has sent a heartbeat and reported."""
    with database.reader() as tx:
        seen = sa.select(Service.id).where(Service.host == bay.compute, Service.last_seen_ms > 0)
        return tx.execute(seen).first() is not None


def do(operator: Client, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """Ask for a long verb, and wait for its end."""
    return ended(operator, operator.send(method, path, body, 202))


def install(operator: Client, *bays: Bay, **body: Any) -> dict[str, Any]:
    hosts = [one.compute for one in bays]
    return do(operator, "POST", DRIVERS, {"driver": NAME, "hosts": hosts, **body})


def rows(database: Database, *terms: Any) -> list[Any]:
    with database.reader() as tx:
        wanted = (Driver.name, Driver.uuid, Driver.state, Driver.requested, Driver.options)
        return list(tx.execute(sa.select(*wanted).where(*terms).order_by(Driver.id)))


def devices(database: Database) -> list[Any]:
    with database.reader() as tx:
        return list(tx.execute(sa.select(Device.hostname, Device.status, Device.lost_ms)))


def is_in_placement(placement: PlacementService, bay: Bay) -> bool:
    try:
        Placement(placement.adapter()).inventories(bay.provider())
    except exception.NotFound:
        return False
    return True


def test_driver_is_installed_where_it_is_wanted_and_there(
    operator: Client, bays: Callable[[], Bay], database: Database, placement: PlacementService
) -> None:
    chosen, other = bays(), bays()
    eventually(lambda: is_up(database, chosen) and is_up(database, other))
    over = install(operator, chosen, options={"speed": "3"})
    assert (over["verb"], over["state"]) == ("install_driver", "succeeded")
    ((found,),) = [one["result"]["drivers"] for one in over["results"]]
    assert (found["name"], found["state"], found["found"]) == (NAME, "READY", 1)
    eventually_offered(placement, chosen.provider(), 2)
    assert [one.hostname for one in devices(database)] == [chosen.compute]
    assert chosen.given == [{"speed": "3"}]
    assert other.given == []
    with database.reader() as tx:
        (said,) = tx.execute(sa.select(Event).where(Event.noun == "driver"))
    assert (said.action, said.hostname, said.reason) == ("install_driver", chosen.compute, NAME)
    assert said.operation_id == over["uuid"]
    other.packages.clear()
    over = install(operator, chosen, other)
    results = {one["host"]: one for one in over["results"]}
    assert (over["state"], over["error"]) == ("failed", "1 of 2 host(s) failed")
    assert results[chosen.compute]["state"] == "succeeded"
    assert results[other.compute]["error"] == f"{NAME}: no driver of this name is installed"
    ((name, _, state, wanted, _),) = rows(database)
    assert (name, state, wanted) == (NAME, "READY", True)


def test_installed_driver_survives_restart_without_conductor(
    operator: Client, bay: Bay, database: Database, placement: PlacementService
) -> None:
    install(operator, bay, options={"speed": "3"})
    bay.kill(database)
    scans = bay.driver.scans
    bay.start()
    # From the cache, before any conductor has answered.
    assert bay.given == [{"speed": "3"}] * 2
    eventually(lambda: bay.driver.scans > scans)
    for file in bay.state_path.iterdir():
        # The agent writes its state to a file that it then renames.
        file.unlink(missing_ok=True)
    bay.kill(database)
    bay.start()
    eventually(lambda: len(bay.given) == 3)
    assert bay.given[2] == {"speed": "3"}
    eventually_offered(placement, bay.provider(), 2)
    assert [one.lost_ms for one in devices(database)] == [None]


def test_refused_options_leave_old_options_in_force(
    operator: Client, bay: Bay, database: Database
) -> None:
    assert install(operator, bay, options={"speed": "fast"})["state"] == "failed"
    assert rows(database) == []
    install(operator, bay, options={"speed": "3", "colour": "red"})
    over = do(operator, "PATCH", f"{DRIVERS}/{NAME}", {"options": {"speed": "fast"}})
    assert over["state"] == "failed"
    assert over["results"][0]["error"] == (f"{NAME}: option speed = fast: a number is needed")
    (found,) = over["results"][0]["result"]["drivers"]
    assert (found["state"], found["found"], found["accepted"]) == ("READY", 1, False)
    ((_, uuid, state, _, options),) = rows(database)
    assert (state, options) == ("READY", {"speed": "3", "colour": "red"})
    changed = {"options": {"speed": "4", "colour": None}}
    assert do(operator, "PATCH", f"{DRIVERS}/{uuid}", changed)["state"] == "succeeded"
    assert rows(database)[0].options == {"speed": "4"}
    assert bay.given == [{"speed": "3", "colour": "red"}, {"speed": "4"}]


def test_driver_is_disabled_and_enabled_again(
    operator: Client, bay: Bay, database: Database, placement: PlacementService
) -> None:
    install(operator, bay)
    eventually_offered(placement, bay.provider(), 2)
    (before,) = devices(database)
    over = do(operator, "PATCH", f"{DRIVERS}/{NAME}", {"enabled": False})
    assert over["state"] == "succeeded"
    eventually_offered(placement, bay.provider(), 0)
    assert rows(database)[0].state == "STOPPED"
    assert do(operator, "PATCH", f"{DRIVERS}/{NAME}", {"enabled": True})["state"] == "succeeded"
    eventually_offered(placement, bay.provider(), 2)
    assert devices(database) == [before]


def test_driver_in_use_is_not_removed(
    operator: Client,
    bay: Bay,
    nova: Client,
    profile: Any,
    *,
    resource_class: str,
    placement: PlacementService,
    database: Database,
) -> None:
    install(operator, bay)
    eventually_offered(placement, bay.provider(), 2)
    arqs = create(nova, profile({f"resources:{resource_class}": "1"}))
    instance = bind(nova, arqs, bay.provider())
    for method, body in (("DELETE", None), ("PATCH", {"enabled": False})):
        refused = operator.send(method, f"{DRIVERS}/{NAME}", body, 409)
        assert arqs[0]["uuid"] in refused["error_message"]
        assert "Delete their instances or detach them" in refused["error_message"]
        assert ("drained" in refused["error_message"]) == (method == "DELETE")
    assert [one.status for one in devices(database)] == ["enabled"]

    begun = operator.send("DELETE", f"{DRIVERS}/{NAME}?drain=true", None, 202)
    path = f"/operations/{begun['uuid']}"
    eventually_offered(placement, bay.provider(), 0)
    waits = "it waits for 1 accelerator request(s) that use it"
    eventually(lambda: operator.get(path)["results"][0]["error"] == waits)
    more = create(nova, profile({f"resources:{resource_class}": "1"}))
    bind(nova, more, bay.provider(), status=409)
    # It is on its way out, and nobody else's order comes in between.
    operator.send("DELETE", f"{DRIVERS}/{NAME}", None, 409)
    operator.post(DRIVERS, {"driver": NAME}, status=409)
    # Whoever waits for it has died; another conductor goes on with the next phase.
    orphan(database)
    nova.delete(f"/accelerator_requests?instance={instance}")
    over = ended(operator, begun)
    assert over["state"] == "succeeded"
    assert [one["name"] for one in over["steps"]] == ["begun", "free", "succeeded"]
    assert devices(database) == []


def test_uninstall_removes_devices_from_placement_and_database(
    operator: Client, bay: Bay, database: Database, placement: PlacementService
) -> None:
    install(operator, bay)
    eventually_offered(placement, bay.provider(), 2)
    over = do(operator, "DELETE", f"{DRIVERS}/{NAME}")
    assert (over["verb"], over["state"]) == ("uninstall_driver", "succeeded")
    assert [one["enabled"] for one in operator.get(DRIVERS, name=NAME)["drivers"]] == [False]
    assert devices(database) == []
    assert not is_in_placement(placement, bay)
    ((_, _, state, wanted, _),) = rows(database)
    assert (state, wanted) == ("STOPPED", False)
    assert work_left(database) == []
    operator.send("DELETE", f"{DRIVERS}/{NAME}", None, 409)
    loads = len(bay.given)
    bay.kill(database)
    bay.start()
    eventually(lambda: is_up(database, bay))
    assert (devices(database), len(bay.given)) == ([], loads)
    install(operator, bay)
    eventually_offered(placement, bay.provider(), 2)


def test_requested_drivers_take_precedence_over_configuration(
    operator: Client, racked: Callable[..., Any], database: Database
) -> None:
    host = racked()
    over = do(operator, "DELETE", f"{DRIVERS}/{NAME}")
    assert (over["state"], devices(database)) == ("succeeded", [])
    host.stop()
    scans = host.driver.scans
    host.start()
    # It is asked once what hardware it knows, and offers nothing of it.
    eventually(lambda: host.driver.scans > scans)
    host.stop()
    assert (host.driver.scans, devices(database)) == (scans + 1, [])
    ((_, _, state, wanted, _),) = rows(database)
    assert (state, wanted) == ("STOPPED", False)


def test_driver_update_restarts_the_agent(operator: Client, bay: Bay, database: Database) -> None:
    install(operator, bay, options={"speed": "3"})
    begun = operator.patch(f"{DRIVERS}/{NAME}", {}, status=202)
    assert bay.agent is not None
    eventually(lambda: bay.agent is not None and bay.agent.restarting)
    path = f"/operations/{begun['uuid']}"
    assert operator.get(path)["state"] == "running"
    # What the process does by itself when it runs as one.
    bay.stop()
    bay.start()
    over = ended(operator, begun)
    assert over["state"] == "succeeded"
    assert [one["name"] for one in over["steps"]] == ["begun", "reloaded", "succeeded"]
    assert bay.given == [{"speed": "3"}] * 2
    assert bay.agent.restarting is False


@pytest.fixture
def site(
    beside: Callable[..., Stack], conf: cfg.ConfigOpts, tmp_path: Path, machine_name: str
) -> Iterator[Callable[..., ComputeHost]]:
    """Start a compute whose configuration enables these drivers; it looks only when asked."""
    own = beside(agent_heartbeat=0.2, scan=3600)

    def start(*enabled: str) -> ComputeHost:
        host = compute_host(own, tmp_path, servers.server())
        conf.set_override("host", host.compute)
        host.start(*installed(host, conf, *enabled))
        return host

    yield start
    conf.clear_override("host")


def installed(host: ComputeHost, conf: cfg.ConfigOpts, *enabled: str) -> list[loader.LoadResult]:
    """The drivers that are really installed here, of which these are enabled."""
    loaded = loader.load(enabled, host.machine, conf)
    return loaded + loader.load_disabled([one.name for one in loaded], host.machine, conf)


def drivers(operator: Client) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in operator.get(DRIVERS)["drivers"]}


def known(operator: Client) -> bool:
    return all(one["discovered_at"] for one in drivers(operator).values()) and bool(
        operator.get("/hardware")["hardware"]
    )


def result_of(operator: Client, method: str, path: str, body: Any) -> dict[str, Any]:
    """The result of the one host."""
    (result,) = ended(operator, operator.send(method, path, body, 202))["results"]
    return dict(result)


def hardware(operator: Client, driver: str) -> dict[str, dict[str, Any]]:
    found = operator.get("/hardware", driver=driver)["hardware"]
    return {one["key"]: one for one in found}


def install_generic(operator: Client, resource_class: str) -> dict[str, Any]:
    """Have the generic_driver look after two backends, by the database's word alone."""
    classes = {f"generic_driver:{one}.resource_class": resource_class for one in ("nets", "demo")}
    body = {"driver": "generic_driver", "options": {**OPTIONS, **classes}}
    return result_of(operator, "POST", DRIVERS, body)


def test_first_start_reports_every_installed_driver(
    operator: Client, site: Callable[..., ComputeHost]
) -> None:
    host = site()
    eventually(lambda: len(drivers(operator)) == len(OURS) and known(operator))
    found = drivers(operator)
    assert sorted(found) == OURS
    assert {one["state"] for one in found.values()} == {"STOPPED"}
    assert operator.get("/devices")["devices"] == []
    card = hardware(operator, "pci_driver")[servers.GPU]
    assert (card["offered"], card["hostname"]) == (False, host.compute)
    # Not in force, so nobody looks all the time; but when somebody asks.
    host.machine.remove(f"/sys/bus/pci/devices/{servers.GPU}")
    assert result_of(operator, "POST", "/services/discover", {})["state"] == "succeeded"
    eventually(lambda: servers.GPU not in hardware(operator, "pci_driver"))


def test_all_installed_drivers_can_be_enabled(
    operator: Client, site: Callable[..., ComputeHost]
) -> None:
    site(loader.ALL)
    # The fake device, and what its driver offers by default: GPUs, QuickAssist, FPGA, an idle port.
    eventually(lambda: len(operator.get("/devices")["devices"]) == 6)
    found = drivers(operator)
    assert {name: one["state"] for name, one in found.items()} == dict.fromkeys(OURS, "READY")
    assert found["fake_driver"]["devices"]["found"] == 1


def test_options_from_database_create_backends(
    operator: Client,
    site: Callable[..., ComputeHost],
    resource_class: str,
    conf: cfg.ConfigOpts,
) -> None:
    host = site()
    eventually(lambda: len(drivers(operator)) == len(OURS) and known(operator))
    result = install_generic(operator, resource_class)
    assert (result["state"], result["error"]) == ("succeeded", None)
    (one,) = result["result"]["drivers"]
    nets = next(each for each in one["backends"] if each["name"] == "nets")["found"]
    assert nets > 0
    assert one["found"] == one["added"] == nets + 2
    told = [
        (each["name"], each["state"], [every["name"] for every in each["services"]])
        for each in one["backends"]
    ]
    assert told == [("demo", "READY", []), ("nets", "READY", ["aes", "gzip"])]
    numbers = {each["name"]: [each[key] for key in NUMBERS] for each in one["backends"]}
    assert numbers == {"demo": [2, 2, 0, 0, 0], "nets": [nets, nets, 0, 0, 0]}
    # What was known as hardware before is the same thing as a device.
    devices = {each["uuid"] for each in operator.get("/devices")["devices"]}
    shown = hardware(operator, "generic_driver").values()
    assert devices == {each["uuid"] for each in shown if each["offered"]}

    # One backend less, one device more on the other.
    changed = {"backends": "demo", "generic_driver:demo.pci_ids": "10de:20b5, 10ee:5001"}
    gone = dict.fromkeys((key for key in OPTIONS if ":nets." in key), None)
    gone["generic_driver:nets.resource_class"] = None
    body = {"options": {**gone, **changed}}
    result = result_of(operator, "PATCH", f"{DRIVERS}/generic_driver", body)
    assert (result["state"], result["error"]) == ("succeeded", None)
    (one,) = result["result"]["drivers"]
    numbers = {each["name"]: [each[key] for key in NUMBERS] for each in one["backends"]}
    assert numbers == {"demo": [2, 1, 0, 1, 0], "nets": [0, 0, 0, nets, 0]}
    assert [each["state"] for each in one["backends"]] == ["READY", "STOPPED"]

    before = drivers(operator)["generic_driver"]
    body = {"options": {"generic_driver:demo.reset_command": "/bin/true"}}
    refused = operator.patch(f"{DRIVERS}/generic_driver", body, status=400)
    assert "options.generic_driver:demo.reset_command" in refused["error_message"]
    after = drivers(operator)["generic_driver"]
    assert {**after, "discovered_at": None} == {**before, "discovered_at": None}

    # Nothing of that stands in the host's own files, and yet it is so after a restart.
    host.stop()
    host.start(*installed(host, conf))
    listed = servers.GPU, servers.FPGA
    eventually(lambda: drivers(operator)["generic_driver"]["state"] == "READY")
    result = result_of(operator, "POST", "/services/discover", {"driver": "generic_driver"})
    assert result["result"]["drivers"][0]["found"] == 2
    assert set(hardware(operator, "generic_driver")) == set(listed)


def test_package_installed_while_agent_runs_is_found(
    operator: Client,
    site: Callable[..., ComputeHost],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(str(packages))
    site()
    eventually(lambda: len(drivers(operator)) == len(OURS) and known(operator))
    name, module = f"late_{uuid4().hex[:8]}", f"late_vendor_{uuid4().hex[:8]}"
    result = result_of(operator, "POST", DRIVERS, {"driver": name})
    assert result["error"] == f"{name}: no driver of this name is installed"
    assert name not in drivers(operator)

    (packages / f"{module}.py").write_text(
        "from cyborg.drivers.fake import FakeDriver\n"
        f"class Late(FakeDriver):\n    name = {name!r}\n"
    )
    info = packages / f"{module}-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text(f"[{loader.NAMESPACE}]\n{name} = {module}:Late\n")
    result = result_of(operator, "POST", DRIVERS, {"driver": name})
    assert (result["state"], result["error"]) == ("succeeded", None)
    late = drivers(operator)[name]
    assert (late["version"], late["endpoint"]) == ("2.1", f"{module}:Late")
    assert len(operator.get("/devices")["devices"]) == 1
