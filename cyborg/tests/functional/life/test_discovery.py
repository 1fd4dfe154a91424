# SPDX-License-Identifier: Apache-2.0
"""Reports as conductors take them in: what is kept, what is refused, and whose word counts."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db.engine import Database
from cyborg.db.models import Deployable, Driver, Host, Service
from cyborg.model.device import AttachHandle, AttachType, DeviceType
from cyborg.model.device import Deployable as DeployableFacts
from cyborg.model.device import Device as DeviceFacts
from cyborg.model.report import AgentHeartbeat, DriverReport, DriverState, Report
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import FetchDesired, Heartbeat, SendPublished, SendReport
from cyborg.tests.fixtures.any_host import AnyHost
from cyborg.tests.fixtures.placement import fresh_host
from cyborg.tests.fixtures.stack import Stack, reach
from cyborg.tests.functional.life.cards import CARD, OTHER
from cyborg.tests.functional.life.steps import everything


@pytest.fixture
def reports(stack: Stack) -> Iterator[ConductorClient]:
    """The verbs of agents."""
    client = reach(AnyHost(stack.bus(), timeout=10))
    yield client
    client.close()


def heartbeat(host: str, epoch: int | None = None) -> AgentHeartbeat:
    return AgentHeartbeat(host, (host,), "0", f"cyborg-agent@{host}", epoch)


def card(name: str, key: str = CARD) -> DeviceFacts:
    handle = AttachHandle(key, AttachType.PCI, {"domain": "0000"})
    unit = DeployableFacts(name, "CUSTOM_CARD", "card", (handle,))
    return DeviceFacts(key, DeviceType.FPGA, "1d22", "card", {"domain": "0000"}, (unit,))


def ready(*devices: DeviceFacts, driver: str = "card_driver") -> Report:
    return Report((DriverReport(driver, DriverState.READY, devices),))


def test_device_name_of_another_host_is_refused(
    reports: ConductorClient, database: Database
) -> None:
    name = fresh_host()
    for host in ("first", "second"):
        epoch = reports.request(Heartbeat(heartbeat(host))).epoch
        taken = reports.request(
            SendReport(host, epoch, ready(card(name), card(f"{name}-{host}", OTHER)))
        )
        if host == "first":
            assert taken.refused == {}
        else:
            assert list(taken.refused) == [name]
            assert "already a deployable of driver card_driver on first" in taken.refused[name]
    with database.reader() as tx:
        names = set(tx.execute(sa.select(Deployable.name)).scalars())
    assert names == {name, f"{name}-first", f"{name}-second"}


def test_device_name_of_two_drivers_is_refused_once(reports: ConductorClient) -> None:
    name = fresh_host()
    epoch = reports.request(Heartbeat(heartbeat("both"))).epoch
    drivers = [ready(card(name), driver=one).drivers[0] for one in ("card_driver", "other_driver")]
    report = Report(tuple(drivers))
    taken = reports.request(SendReport("both", epoch, report))
    assert "claimed by driver card_driver as well" in taken.refused[name]
    assert report.kept_out(taken) == {"card_driver": {}, "other_driver": taken.refused}


@pytest.mark.parametrize(
    "odd",
    [
        {"vendor": "x" * 256},
        {"model": ""},
        {"model": "nul\0"},
        {"key": "y" * 256},
        {"vendor_board_info": "\ud800"},
        {"control_path": {"path": "z" * 255}},
        {"numa_node": 2**31},
        {"key": CARD},
    ],
    ids=lambda odd: next(iter(odd)),
)
def test_invalid_device_does_not_stop_others(
    reports: ConductorClient, database: Database, odd: dict[str, Any]
) -> None:
    epoch = reports.request(Heartbeat(heartbeat("odd"))).epoch
    bad = replace(card("bad", OTHER), **odd)
    taken = reports.request(SendReport("odd", epoch, ready(card("good"), bad)))
    assert list(taken.refused) == ["bad"]
    with database.reader() as tx:
        assert tx.execute(sa.select(Deployable.name)).scalars().all() == ["good"]


def test_device_keeps_its_row_under_another_driver(
    reports: ConductorClient, database: Database
) -> None:
    epoch = reports.request(Heartbeat(heartbeat("host"))).epoch
    reports.request(SendReport("host", epoch, ready(card("unit"))))
    before = everything(database, but=["drivers", "events", "hosts"])
    reports.request(SendReport("host", epoch, ready(card("unit"), driver="other_driver")))
    after = everything(database, but=["drivers", "events", "hosts"])
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"devices"}
    assert [row[1] for row in before["devices"]] == [row[1] for row in after["devices"]]
    with database.reader() as tx:
        states = {row.name: row.state for row in tx.execute(sa.select(Driver.name, Driver.state))}
    assert states == {"card_driver": "STOPPED", "other_driver": "READY"}


def test_unloadable_driver_reserves_devices_after_an_upgrade(
    reports: ConductorClient, database: Database
) -> None:
    epoch = reports.request(Heartbeat(heartbeat("host"))).epoch
    reports.request(SendReport("host", epoch, ready(card("unit"))))
    with database.writer() as tx:
        tx.execute(sa.delete(Driver))
    generation = reports.request(Heartbeat(heartbeat("host", epoch))).desired_generation
    failed = Report((DriverReport("card_driver", DriverState.FAILED, error="not there"),))
    taken = reports.request(SendReport("host", epoch, failed))
    assert taken.desired_generation != generation
    (shown,) = reports.request(FetchDesired("host", epoch)).tree.providers
    assert (shown.total, shown.reserved) == (1, 1)


def test_second_agent_of_a_host_supersedes_the_first(reports: ConductorClient) -> None:
    first = reports.request(Heartbeat(heartbeat("twin"))).epoch
    second = reports.request(Heartbeat(heartbeat("twin"))).epoch
    assert second > first
    for verb in (
        lambda: reports.request(Heartbeat(heartbeat("twin", first))),
        lambda: reports.request(SendReport("twin", first, ready())),
        lambda: reports.request(FetchDesired("twin", first)),
        lambda: reports.request(SendPublished("twin", first, {})),
    ):
        with pytest.raises(exception.StaleEpoch) as caught:
            verb()
        assert caught.value.fields["current"] == second
    assert reports.request(Heartbeat(heartbeat("twin", second))).epoch == second


def test_silent_agent_is_superseded(
    reports: ConductorClient, database: Database, stack: Stack
) -> None:
    first = reports.request(Heartbeat(heartbeat("twin"))).epoch
    reports.request(Heartbeat(heartbeat("twin")))
    silent = int(stack.times.agent_down_after * 1000) + 1000
    with database.writer() as tx:
        tx.execute(
            sa.update(Service)
            .where(Service.host == "twin")
            .values(last_seen_ms=Service.last_seen_ms - silent)
        )
    assert reports.request(Heartbeat(heartbeat("twin", first))).epoch > first + 1


def test_report_of_an_unknown_agent_is_refused(reports: ConductorClient) -> None:
    with pytest.raises(exception.NotFound):
        reports.request(SendReport("stranger", 1, ready()))
    with pytest.raises(exception.NotFound):
        reports.request(FetchDesired("stranger", 1))


def test_renamed_compute_keeps_its_devices(reports: ConductorClient, database: Database) -> None:
    epoch = reports.request(Heartbeat(heartbeat("short"))).epoch
    reports.request(SendReport("short", epoch, ready(card("unit"))))
    found = replace(heartbeat("short", epoch), provider_names=("short.example.org",))
    reports.request(Heartbeat(found))
    assert reports.request(FetchDesired("short", epoch)).tree.root_name == "short.example.org"
    with database.reader() as tx:
        assert tx.execute(sa.select(Host.name)).scalars().all() == ["short.example.org"]
