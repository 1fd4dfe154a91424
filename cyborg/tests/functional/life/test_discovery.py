# SPDX-License-Identifier: Apache-2.0
"""Reports as conductors take them in: what is kept, what is refused, and whose word counts."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db.engine import Database
from cyborg.db.models import Backend, Deployable, Device, Driver, Hardware, Host, Service
from cyborg.model import device as facts
from cyborg.model.device import AttachHandle, AttachType, DeviceType
from cyborg.model.device import Deployable as DeployableFacts
from cyborg.model.device import Device as DeviceFacts
from cyborg.model.report import (
    AgentHeartbeat,
    DriverReport,
    DriverState,
    HeartbeatReply,
    InstalledDriver,
    Report,
)
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import FetchDesired, Heartbeat, SendPublished, SendReport
from cyborg.tests.fixtures.any_host import AnyHost
from cyborg.tests.fixtures.placement import fresh_host
from cyborg.tests.fixtures.stack import Stack, reach
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.life.cards import CARD, IDLE, OTHER

HOST = "equipped"
ENGINE = facts.Backend("engine-0", "READY", (facts.BackendService("ipsec", "READY"),), {"num": 2})


@pytest.fixture
def reports(stack: Stack) -> Iterator[ConductorClient]:
    """The verbs of agents."""
    client = reach(AnyHost(stack.bus(), timeout=PATIENCE))
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
        lambda: reports.request(SendPublished("twin", first, {}, {})),
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


def hello(
    reports: ConductorClient, *drivers: InstalledDriver, epoch: int | None = None
) -> HeartbeatReply:
    endpoint = f"cyborg-agent@{HOST}"
    return reports.request(
        Heartbeat(AgentHeartbeat(HOST, (HOST,), "0", endpoint, epoch, drivers=drivers))
    )


def one(**values: Any) -> Report:
    """A report of one driver that is ready."""
    fixed = {"driver": "card_driver", "state": DriverState.READY}
    return Report((DriverReport(**{**fixed, **values}),))


def rows(db: Database, model: Any, *columns: str) -> list[Any]:
    with db.reader() as tx:
        return [
            tuple(row)
            for row in tx.execute(
                sa.select(*(getattr(model, name) for name in columns)).order_by(model.id)
            )
        ]


def test_hardware_row_has_uuid_of_its_device(reports: ConductorClient, database: Database) -> None:
    epoch = hello(reports).epoch
    device = card("equipped-card")
    reports.request(
        SendReport(HOST, epoch, one(devices=(device,), hardware=(facts.Hardware.of(device), IDLE)))
    )
    ((uuid,),) = rows(database, Device, "uuid")
    mine, idle = rows(database, Hardware, "uuid", "hardware_key", "offered", "acc_specs")
    assert mine[:3] == (uuid, device.key, True)
    assert idle[1:] == (
        IDLE.key,
        False,
        {
            "device_type": "CRYPTO",
            "num": 4,
            "remote": 1,
            "acc_capability": {"num": 2, "ipsec": {"aes": {"3des": 50, "num": 1}}},
        },
    )
    (_, status) = rows(database, Hardware, "acc_status")
    assert status == (
        {
            "setup_required": True,
            "reboot_required": False,
            "reason": "its firmware is missing",
        },
    )


def test_hardware_that_becomes_a_device_keeps_its_uuid(
    reports: ConductorClient, database: Database
) -> None:
    epoch = hello(reports).epoch
    device = card("equipped-card")
    waiting = replace(facts.Hardware.of(device), offered=False, reason="not enabled")
    stopped = DriverReport("card_driver", DriverState.STOPPED, hardware=(waiting,))
    reports.request(SendReport(HOST, epoch, Report((stopped,))))
    ((before,),) = rows(database, Hardware, "uuid")
    assert rows(database, Device, "uuid") == []
    reports.request(
        SendReport(HOST, epoch, one(devices=(device,), hardware=(facts.Hardware.of(device),)))
    )
    assert rows(database, Device, "uuid") == [(before,)]
    assert rows(database, Hardware, "uuid", "offered") == [(before, True)]


def test_hardware_keeps_its_uuid_under_another_driver(
    reports: ConductorClient, database: Database
) -> None:
    epoch = hello(reports).epoch
    device = card("equipped-card")
    known = facts.Hardware.of(device)
    idle = replace(known, offered=False, reason="not enabled")

    def report(first: DriverState, second: DriverState) -> Report:
        return Report(
            tuple(
                DriverReport(
                    name,
                    state,
                    (device,) if state is DriverState.READY else (),
                    hardware=(known if state is DriverState.READY else idle,),
                )
                for name, state in (("card_driver", first), ("other_driver", second))
            )
        )

    reports.request(SendReport(HOST, epoch, report(DriverState.READY, DriverState.STOPPED)))
    ((uuid,),) = rows(database, Device, "uuid")
    reports.request(SendReport(HOST, epoch, report(DriverState.STOPPED, DriverState.READY)))
    assert rows(database, Device, "uuid", "driver") == [(uuid, "other_driver")]
    owners = dict(rows(database, Hardware, "driver", "uuid"))
    assert owners["other_driver"] == uuid
    assert owners["card_driver"] != uuid


def test_missing_hardware_is_removed_unless_driver_failed(
    reports: ConductorClient, database: Database
) -> None:
    epoch = hello(reports).epoch
    reports.request(SendReport(HOST, epoch, one(hardware=(IDLE,), backends=(ENGINE,))))
    kept = rows(database, Hardware, "uuid"), rows(database, Backend, "uuid")
    failed = one(state=DriverState.FAILED, error="no bus")
    reports.request(SendReport(HOST, epoch, failed))
    assert (rows(database, Hardware, "uuid"), rows(database, Backend, "uuid")) == kept
    assert rows(database, Driver, "state", "error") == [("FAILED", "no bus")]
    reports.request(SendReport(HOST, epoch, one(hardware=(IDLE,), backends=(ENGINE,))))
    assert (rows(database, Hardware, "uuid"), rows(database, Backend, "uuid")) == kept
    reports.request(SendReport(HOST, epoch, one(hardware=(), backends=())))
    assert rows(database, Hardware, "uuid") == rows(database, Backend, "uuid") == []
    reports.request(SendReport(HOST, epoch, one(hardware=(IDLE,), backends=(ENGINE,))))
    reports.request(SendReport(HOST, epoch, Report(())))
    assert rows(database, Hardware, "uuid") == rows(database, Backend, "uuid") == []
    assert rows(database, Driver, "state", "enabled") == [("STOPPED", False)]


def test_backends_and_services_follow_the_report(
    reports: ConductorClient, database: Database
) -> None:
    epoch = hello(reports).epoch
    reports.request(SendReport(HOST, epoch, one(backends=(ENGINE,))))
    ((uuid,),) = rows(database, Backend, "uuid")
    down = facts.BackendService("ipsec", "FAILED")
    more = facts.BackendService("compression", "READY")
    reports.request(
        SendReport(HOST, epoch, one(backends=(replace(ENGINE, services=(down, more)),)))
    )
    assert rows(database, Backend, "uuid", "name", "state", "services", "capabilities") == [
        (
            uuid,
            "engine-0",
            "READY",
            [{"name": "compression", "state": "READY"}, {"name": "ipsec", "state": "FAILED"}],
            {"num": 2},
        )
    ]


@pytest.mark.parametrize(
    "odd",
    [
        {"key": "x" * 256},
        {"key": "nul\0"},
        {"kind": ""},
        {"kind": "K" * 65},
        {"num": -1},
        {"num": 2, "remote": 3},
        {"num": 2**40},
    ],
)
def test_invalid_hardware_does_not_stop_others(
    reports: ConductorClient, database: Database, odd: dict[str, Any]
) -> None:
    epoch = hello(reports).epoch
    reports.request(SendReport(HOST, epoch, one(hardware=(replace(IDLE, **odd), IDLE, IDLE))))
    assert rows(database, Hardware, "hardware_key") == [(IDLE.key,)]


def test_hello_stores_announced_drivers(reports: ConductorClient, database: Database) -> None:
    first = hello(reports, InstalledDriver("card_driver", DriverState.READY))
    # The report that follows tells of a host that is news.
    assert rows(database, Driver, "name") == []
    reports.request(
        SendReport(HOST, first.epoch, one(version="1.0", type="FPGA", endpoint="vendor:Card"))
    )
    columns = ("name", "state", "version", "device_type", "endpoint", "enabled")
    known = ("card_driver", "READY", "1.0", "FPGA", "vendor:Card", True)
    assert rows(database, Driver, *columns) == [known]
    hello(
        reports,
        InstalledDriver("card_driver", DriverState.READY, "vendor:Card", "FPGA", "2.0"),
        InstalledDriver("new_driver", DriverState.READY, "new:Driver", "GPU", "0.1"),
        InstalledDriver("idle_driver", DriverState.STOPPED),
    )
    assert rows(database, Driver, *columns) == [
        ("card_driver", "READY", "2.0", "FPGA", "vendor:Card", True),
        ("new_driver", "STARTING", "0.1", "GPU", "new:Driver", True),
        ("idle_driver", "STOPPED", None, None, None, False),
    ]


def test_requested_driver_state_survives_reports(
    reports: ConductorClient, database: Database
) -> None:
    epoch = hello(reports).epoch
    reports.request(SendReport(HOST, epoch, one()))
    with database.writer() as tx:
        tx.execute(sa.update(Driver).values(requested=True, enabled=False))
    reports.request(SendReport(HOST, epoch, one(error="slow")))
    assert rows(database, Driver, "enabled", "error") == [(False, "slow")]
