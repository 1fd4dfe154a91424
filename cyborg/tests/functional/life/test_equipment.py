# SPDX-License-Identifier: Apache-2.0
"""What agents tell beside devices is kept as they tell it, and only of their own host."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Backend, Device, Driver, Hardware
from cyborg.model import device as facts
from cyborg.model.report import (
    AgentHeartbeat,
    DriverReport,
    DriverState,
    HeartbeatReply,
    InstalledDriver,
    Report,
)
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import Heartbeat, SendReport
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.cards import IDLE
from cyborg.tests.functional.life.test_discovery import card

HOST = "equipped"
ENGINE = facts.Backend("engine-0", "READY", (facts.BackendService("ipsec", "READY"),), {"num": 2})


@pytest.fixture
def reports(beside: Callable[..., Stack]) -> ConductorClient:
    """The verbs of the host's agent."""
    return beside().conductor_client(f"cyborg-agent@{HOST}")


def heartbeat(
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
    epoch = heartbeat(reports).epoch
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
    epoch = heartbeat(reports).epoch
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
    epoch = heartbeat(reports).epoch
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
    epoch = heartbeat(reports).epoch
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
    epoch = heartbeat(reports).epoch
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
    epoch = heartbeat(reports).epoch
    reports.request(SendReport(HOST, epoch, one(hardware=(replace(IDLE, **odd), IDLE, IDLE))))
    assert rows(database, Hardware, "hardware_key") == [(IDLE.key,)]


def test_hello_stores_announced_drivers(reports: ConductorClient, database: Database) -> None:
    first = heartbeat(reports, InstalledDriver("card_driver", DriverState.READY))
    # The report that follows tells of a host that is news.
    assert rows(database, Driver, "name") == []
    reports.request(
        SendReport(HOST, first.epoch, one(version="1.0", type="FPGA", endpoint="vendor:Card"))
    )
    columns = ("name", "state", "version", "device_type", "endpoint", "enabled")
    known = ("card_driver", "READY", "1.0", "FPGA", "vendor:Card", True)
    assert rows(database, Driver, *columns) == [known]
    heartbeat(
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
    epoch = heartbeat(reports).epoch
    reports.request(SendReport(HOST, epoch, one()))
    with database.writer() as tx:
        tx.execute(sa.update(Driver).values(requested=True, enabled=False))
    reports.request(SendReport(HOST, epoch, one(error="slow")))
    assert rows(database, Driver, "enabled", "error") == [(False, "slow")]
