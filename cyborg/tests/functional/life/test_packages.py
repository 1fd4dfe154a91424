# SPDX-License-Identifier: Apache-2.0
"""Drivers of installed packages, on a host whose own files name none, or all, of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from oslo_config import cfg

from cyborg.drivers import loader
from cyborg.testing import servers
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import ended, eventually

DRIVERS = "/drivers"
OURS = ["fake_driver", "generic_driver", "pci_driver"]
#: What a host that is new to it needs in no file of its own.
OPTIONS = {
    "backends": "nets, demo",
    "generic_driver:nets.pci_ids": "8086:*",
    "generic_driver:nets.services": "aes, gzip",
    "generic_driver:demo.devices": "0000:0a:00.0, 0000:0b:00.0",
    "generic_driver:demo.attach_type": "TEST_PCI",
    "generic_driver:demo.units": "3",
}
NUMBERS = ("found", "added", "changed", "lost", "failed")


@pytest.fixture
def site(
    beside: Callable[..., Stack], conf: cfg.ConfigOpts, tmp_path: Path
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


def do(operator: Client, method: str, path: str, body: Any) -> dict[str, Any]:
    """The result of the one host."""
    (result,) = ended(operator, operator.send(method, path, body, 202))["results"]
    return dict(result)


def hardware(operator: Client, driver: str) -> dict[str, dict[str, Any]]:
    found = operator.get("/hardware", driver=driver)["hardware"]
    return {one["key"]: one for one in found}


def install(operator: Client, resource_class: str) -> dict[str, Any]:
    """Have the generic_driver look after two backends, by the database's word alone."""
    classes = {f"generic_driver:{one}.resource_class": resource_class for one in ("nets", "demo")}
    body = {"driver": "generic_driver", "options": {**OPTIONS, **classes}}
    return do(operator, "POST", DRIVERS, body)


def test_first_start_reports_every_installed_driver(
    operator: Client, site: Callable[..., ComputeHost]
) -> None:
    host = site()
    eventually(lambda: len(drivers(operator)) == len(OURS) and known(operator), timeout=60.0)
    found = drivers(operator)
    assert sorted(found) == OURS
    assert {one["state"] for one in found.values()} == {"STOPPED"}
    assert operator.get("/devices")["devices"] == []
    card = hardware(operator, "pci_driver")[servers.GPU]
    assert (card["offered"], card["hostname"]) == (False, host.compute)
    # Not in force, so nobody looks all the time; but when somebody asks.
    host.machine.remove(f"/sys/bus/pci/devices/{servers.GPU}")
    assert do(operator, "POST", "/services/discover", {})["state"] == "succeeded"
    eventually(lambda: servers.GPU not in hardware(operator, "pci_driver"))


def test_all_installed_drivers_can_be_enabled(
    operator: Client, site: Callable[..., ComputeHost]
) -> None:
    site(loader.ALL)
    eventually(lambda: len(operator.get("/devices")["devices"]) == 1, timeout=60.0)
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
    eventually(lambda: len(drivers(operator)) == len(OURS) and known(operator), timeout=60.0)
    result = install(operator, resource_class)
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
    changed = {"backends": "demo", "generic_driver:demo.devices": "0000:0a:00.0, 0000:0c:00.0"}
    gone = dict.fromkeys((key for key in OPTIONS if ":nets." in key), None)
    gone["generic_driver:nets.resource_class"] = None
    body = {"options": {**gone, **changed}}
    result = do(operator, "PATCH", f"{DRIVERS}/generic_driver", body)
    assert (result["state"], result["error"]) == ("succeeded", None)
    (one,) = result["result"]["drivers"]
    numbers = {each["name"]: [each[key] for key in NUMBERS] for each in one["backends"]}
    assert numbers == {"demo": [2, 1, 0, 1, 0], "nets": [0, 0, 0, nets, 0]}
    assert [each["state"] for each in one["backends"]] == ["READY", "STOPPED"]

    # Nothing of that stands in the host's own files, and yet it is so after a restart.
    host.stop()
    host.start(*installed(host, conf))
    listed = "0000:0a:00.0", "0000:0c:00.0"
    eventually(lambda: drivers(operator)["generic_driver"]["state"] == "READY")
    result = do(operator, "POST", "/services/discover", {"driver": "generic_driver"})
    assert result["result"]["drivers"][0]["found"] == 2
    assert set(hardware(operator, "generic_driver")) == set(listed)


def test_commands_are_not_accepted_from_requests(
    operator: Client, site: Callable[..., ComputeHost], resource_class: str
) -> None:
    site()
    eventually(lambda: len(drivers(operator)) == len(OURS) and known(operator), timeout=60.0)
    install(operator, resource_class)
    before = drivers(operator)["generic_driver"]
    body = {"options": {"generic_driver:nets.reset_command": "/bin/true"}}
    result = do(operator, "PATCH", f"{DRIVERS}/generic_driver", body)
    assert result["state"] == "failed"
    assert "must be in a configuration file that only root can change" in result["error"]
    after = drivers(operator)["generic_driver"]
    for one in (before, after):
        one.pop("discovered_at")
    assert after == before


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
    eventually(lambda: len(drivers(operator)) == len(OURS) and known(operator), timeout=60.0)
    name, module = f"late_{uuid4().hex[:8]}", f"late_vendor_{uuid4().hex[:8]}"
    result = do(operator, "POST", DRIVERS, {"driver": name})
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
    result = do(operator, "POST", DRIVERS, {"driver": name})
    assert (result["state"], result["error"]) == ("succeeded", None)
    late = drivers(operator)[name]
    assert (late["version"], late["endpoint"]) == ("2.1", f"{module}:Late")
    assert len(operator.get("/devices")["devices"]) == 1
