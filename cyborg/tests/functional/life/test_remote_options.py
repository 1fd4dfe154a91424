# SPDX-License-Identifier: Apache-2.0
"""Attacks of an operator of the API, who is not root on the hosts, through options of drivers."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Device, Driver
from cyborg.drivers import loader
from cyborg.drivers.command import Completed
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import ended, meddle
from cyborg.tests.unit import test_packaging
from cyborg.tests.unit.drivers.configured import written

DRIVERS = "/drivers"
DEVICES = "/devices"
#: The devices of the host that it needs itself: the disk of ``/`` and the default route.
OWN = (servers.NVME_MOUNTED, servers.NIC_DEFAULT_ROUTE)
FORCED = json.dumps([{"address": address, "force": True} for address in OWN])
OPTIONS = """\
[generic_driver]
backends = cards, demo
[generic_driver:cards]
pci_ids = 10ee:5001
resource_class = {resource_class}
reset_command = /usr/sbin/wipe {{address}}
[generic_driver:demo]
devices = ffff:0a:00.0
attach_type = TEST_PCI
resource_class = {resource_class}
reset_command = /usr/sbin/wipe {{address}}
"""
#: Requests that would make the section have other devices, or offer them in another way.
CHANGES = [
    {"generic_driver:cards.devices": servers.NVME_MOUNTED},
    {"generic_driver:demo.devices": servers.NVME_MOUNTED},
    {"devices": servers.NVME_MOUNTED},
    {"generic_driver:cards.addresses": servers.NVME_MOUNTED},
    {"generic_driver:cards.sysfs_class": "nvme"},
    {"generic_driver:demo.reset_command": "/bin/true"},
    {"generic_driver:cards.ready_file": "/etc/shadow"},
    {"generic_driver.devices_dir": "/var/tmp"},
    {"generic_driver:cards.layout": "vfs=0"},
    {"generic_driver:cards.reset_after_release": "false"},
]


@pytest.fixture
def host(
    beside: Callable[..., Stack], resource_class: str, tmp_path: Path, operator: Client
) -> ComputeHost:
    """A host with a backend whose program wipes devices; its agent has reported."""
    compute = compute_host(
        beside(agent_heartbeat=0.2, scan=0.2), tmp_path / "state", servers.server()
    )
    compute.machine.programs["/usr/sbin/wipe"] = wipe
    options = OPTIONS.format(resource_class=resource_class)
    conf = written(tmp_path / "cyborg.conf", options, host=compute.compute)
    compute.load = lambda name, options: loader.load_with_options(
        name, compute.machine, conf, options=options
    )
    loaded = loader.load(["generic_driver"], compute.machine, conf)
    compute.start(*loaded, *loader.load_disabled(["generic_driver"], compute.machine, conf))
    eventually(lambda: len(operator.get(DEVICES)["devices"]) == 2)
    eventually(lambda: len(operator.get(DRIVERS)["drivers"]) == len(test_packaging.DRIVERS))
    return compute


def wipe(host: FakeHost, argv: tuple[str, ...]) -> Completed:
    """The operator's program."""
    return Completed(0, "", "")


def keys(database: Database) -> set[str]:
    with database.reader() as tx:
        return set(tx.execute(sa.select(Device.device_key)).scalars())


def stored(database: Database) -> dict[str, Any]:
    with database.reader() as tx:
        rows = tx.execute(sa.select(Driver.name, Driver.options))
        return {row.name: row.options for row in rows}


def discover(operator: Client) -> dict[str, Any]:
    return ended(operator, operator.post("/services/discover", {}, status=202))


@pytest.mark.parametrize("key", ["pci.passthrough_whitelist", "passthrough_whitelist"])
def test_operator_cannot_offer_what_the_host_uses(
    operator: Client, host: ComputeHost, database: Database, key: str
) -> None:
    before = keys(database)
    body = {"driver": "pci_driver", "hosts": [host.compute], "options": {key: FORCED}}
    refused = operator.post(DRIVERS, body, status=400)
    assert f"options.{key}" in refused["error_message"]
    assert f"only the configuration files of {host.compute}" in refused["error_message"]
    assert stored(database) == dict.fromkeys(test_packaging.DRIVERS)
    # The driver itself may be loaded: it has the whitelist of the host, which is empty.
    body = {"driver": "pci_driver", "hosts": [host.compute]}
    assert ended(operator, operator.post(DRIVERS, body, status=202))["state"] == "succeeded"
    patched = operator.patch(f"{DRIVERS}/pci_driver", {"options": {key: FORCED}}, status=400)
    assert f"options.{key}" in patched["error_message"]
    assert discover(operator)["state"] == "succeeded"
    assert keys(database) == before


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_operator_cannot_change_the_devices_of_a_section(
    operator: Client, host: ComputeHost, database: Database, change: dict[str, str]
) -> None:
    before = keys(database)
    (key,) = change
    answer = operator.patch(f"{DRIVERS}/generic_driver", {"options": change}, status=400)
    assert f"options.{key}" in answer["error_message"]
    assert stored(database)["generic_driver"] is None
    assert discover(operator)["state"] == "succeeded"
    assert keys(database) == before
    assert host.ran("wipe") == []


def test_operator_cannot_select_devices_for_a_section_with_commands(
    operator: Client, host: ComputeHost, database: Database
) -> None:
    """Neither by their ids, which an operator may set for other sections."""
    before = keys(database)
    body = {"options": {"generic_driver:cards.pci_ids": "144d:a808"}}
    over = ended(operator, operator.patch(f"{DRIVERS}/generic_driver", body, status=202))
    (result,) = over["results"]
    assert result["state"] == "failed"
    assert "[generic_driver:cards] pci_ids" in result["error"]
    assert "this section has commands" in result["error"]
    assert keys(database) == before


@pytest.mark.parametrize(
    ("backend", "more"), [("cards", []), ("demo", []), ("demo", ["ffff:0b:00.0"])]
)
@pytest.mark.parametrize("address", [*OWN, servers.NVME_FREE])
def test_operator_cannot_create_accelerators_of_any_function(
    operator: Client,
    host: ComputeHost,
    resource_class: str,
    database: Database,
    *,
    backend: str,
    more: list[str],
    address: str,
) -> None:
    body = {
        "host": host.compute,
        "driver": "generic_driver",
        "backend": backend,
        "model": "m",
        "type": "FPGA",
        "resource_class": resource_class,
        # The first address names the accelerator, and the commands get each.
        "handles": [*more, address],
    }
    before = keys(database)
    over = ended(operator, operator.post(DEVICES, body, status=202))
    (result,) = over["results"]
    assert over["state"] == "failed"
    why = {servers.NVME_MOUNTED: "mounted", servers.NIC_DEFAULT_ROUTE: "route"}
    assert why.get(address, f"backend {backend} selects no devices") in result["error"]
    assert keys(database) == before
    assert [argv for argv in host.machine.commands if "wipe" in argv[0]] == []


def test_stored_options_of_an_older_release_have_no_effect(
    operator: Client,
    host: ComputeHost,
    database: Database,
    *,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = keys(database)
    options = {"pci.passthrough_whitelist": FORCED}
    settings = {"requested": True, "enabled": True, "options": options}
    host.stop()
    meddle(database, sa.update(Driver).where(Driver.name == "pci_driver").values(settings))
    with caplog.at_level(logging.WARNING):
        host.start()
        over = discover(operator)
        eventually(lambda: operator.get(DRIVERS, name="pci_driver", state="READY")["drivers"])
        discover(operator)
    assert keys(database) == before
    warnings = [one.getMessage() for one in caplog.records if "ignores options" in one.getMessage()]
    (warning,) = warnings
    assert warning == (
        "Driver pci_driver ignores options that were set through the API: "
        "pci.passthrough_whitelist. Set them in the configuration files of the hosts that need "
        "them, and remove them with 'cyborg update-driver pci_driver --unset-option "
        "pci.passthrough_whitelist'"
    )
    assert "can set pci.passthrough_whitelist" in over["results"][0]["error"]
    # What the warning says can be done.
    body = {"options": {"pci.passthrough_whitelist": None}}
    over = ended(operator, operator.patch(f"{DRIVERS}/pci_driver", body, status=202))
    assert over["state"] == "succeeded"
    assert stored(database)["pci_driver"] == {}
