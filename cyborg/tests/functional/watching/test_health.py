# SPDX-License-Identifier: Apache-2.0
"""The health of devices: asked of drivers, reserved in Placement, shown, told, and healed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import service
from cyborg.agent.state_store import HealthBaselines, StateStore
from cyborg.db.models import Device, Event
from cyborg.drivers import command
from cyborg.drivers.base import Progress, no_progress
from cyborg.drivers.fake import FakeDriver
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.scan import Scan
from cyborg.drivers.uevents import Uevent
from cyborg.model.health import Signal
from cyborg.model.probation import AT_ONCE, Rules
from cyborg.model.provider import provider_uuid
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.choice import FULL
from cyborg.tests.fixtures.pages import Page
from cyborg.tests.fixtures.placement import fresh_host
from cyborg.tests.fixtures.waiting import PATIENCE, Gate, eventually
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.enabling.cards import BareCardDriver
from cyborg.tests.functional.life.cards import CARD, OTHER, Rack
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    bind,
    create,
    delete_arqs,
    eventually_offered,
    of_instance,
)
from cyborg.tests.functional.watching.cards import MeasuringDriver
from cyborg.tests.functional.watching.conftest import (
    Watched,
    administrator,
    soon,
    watched_agent,
    watched_page,
)
from cyborg.tests.unit.drivers.configured import configured, written

FAULT = [Signal("fake", "fault", "set", "uncorrectable errors")]
REMEDY = "Remove the value of option [fake_driver] fault."
CAUSE = f"uncorrectable errors. {REMEDY}"


class CheckedDriver(MeasuringDriver):
    """``healths`` are the answers by device key: its signals, or what the check throws.

    ``gate``, when closed, keeps every check from ending.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.healths: dict[str, Any] = {}
        self.checks: list[str] = []

    def signals(self, scan: Scan, device_key: str) -> list[Signal]:
        """See Driver."""
        self.checks.append(device_key)
        self.gate.hold()
        answer = self.healths.get(device_key, [])
        if isinstance(answer, Exception):
            raise answer
        signals: list[Signal] = answer
        return signals


class BareCheckedDriver(CheckedDriver, BareCardDriver):
    """The same for cards that have to be set up; checks of a card that is not would fail."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.installing = Gate()
        self.installing.set()

    def install(
        self, device_key: str, request_key: str, *, progress: Progress = no_progress
    ) -> None:
        """See Driver."""
        self.installing.hold()
        super().install(device_key, request_key)


@dataclass
class Site:
    """A watched service with one compute whose cards are checked all the time."""

    watched: Watched
    rack: Rack
    driver: CheckedDriver
    admin: Client
    agent: service.Daemon
    page: Page

    def device(self, key: str = CARD) -> dict[str, Any]:
        """A card as operators see it."""
        with self.watched.database.reader() as tx:
            uuid = tx.execute(sa.select(Device.uuid).where(Device.device_key == key)).scalar_one()
        shown: dict[str, Any] = self.admin.get(f"/devices/{uuid}")
        return shown

    def becomes(self, health: str | None, key: str = CARD) -> dict[str, Any]:
        """Wait until a card has this health, and give it as it was then."""

        def found() -> dict[str, Any] | None:
            shown = self.device(key)
            return shown if shown["health"] == health else None

        return eventually(found, f"{key} becomes {health}")

    def offers(self, units: int, key: str = CARD) -> None:
        """Wait until Placement gives out so many units of a card."""
        soon(lambda: offered(self.watched.placement, self.rack.provider(key)) == units)

    def history(self) -> list[tuple[str, str | None]]:
        """The actions and reasons of the history of health, oldest first."""
        with self.watched.database.reader() as tx:
            rows = tx.execute(
                sa.select(Event.action, Event.reason)
                .where(Event.noun == "device", Event.action.like("health%"))
                .order_by(Event.id)
            )
            return [(row.action, row.reason) for row in rows]

    def told(self, uuid: str) -> list[str]:
        """The healths of a device that were told as notifications."""
        return [str(one["health"]) for one in self.watched.listener.of("device.health", uuid=uuid)]

    def arqs(self) -> list[dict[str, Any]]:
        """A new ARQ for one unit."""
        return create(self.admin, self.admin.make_profile(self.rack.one_unit))


Sites = Callable[..., Site]


@pytest.fixture
def checked(watched: Watched) -> Sites:
    """Start a conductor and an agent; ``healths`` are the first answers.

    ``interval`` is how often checks run, ``poll`` how long an agent waits for the first check of a
    card, in seconds.
    """

    def start(
        kind: type[CheckedDriver] = CheckedDriver,
        *,
        healths: dict[str, Any] | None = None,
        interval: float = 0.2,
        poll: float = PATIENCE,
        auto_enable: frozenset[str] = frozenset({"*"}),
        others: tuple[Rack, ...] = (),
        rules: Rules = AT_ONCE,
    ) -> Site:
        watched.stack.times = replace(watched.stack.times, health=interval, poll=poll)
        watched.stack.auto_enable = auto_enable
        watched.stack.health_rules = rules
        page = watched_page(watched)
        rack = watched.rack(kind)
        driver = rack.driver
        assert isinstance(driver, CheckedDriver)
        driver.healths = healths or {}
        for one in others:
            one.driver.traits.resource_class = rack.resource_class
        agent = watched_agent(watched, rack, *others)
        admin = administrator(watched)
        cards = 1 + len(others)
        soon(lambda: len(admin.get("/devices")["devices"]) == cards)
        return Site(watched, rack, driver, admin, agent, page)

    return start


def test_faulty_device_is_reserved_and_shown_until_it_recovers(checked: Sites):
    here = checked()
    first = here.becomes("ok")
    assert (first["health_reasons"], first["health_since"] is not None) == ([], True)
    here.offers(2)
    (holder, rival) = here.arqs(), here.arqs()
    instance = bind(here.admin, holder, here.rack.provider())
    here.driver.healths[CARD] = FAULT
    faulty = here.becomes("drain")
    assert faulty["health_reasons"] == ["uncorrectable errors", REMEDY]
    assert faulty["health_since"] > first["health_since"]
    assert faulty["status"] == "enabled"
    # Neither unit is given out: what a guest has cannot be offered before it is free.
    here.offers(0)
    bind(here.admin, rival, here.rack.provider(), status=409)
    # A guest keeps its unit.
    (held,) = of_instance(here.admin, instance)
    assert (held["state"], held["health"]) == ("Bound", "drain")
    assert here.admin.get(f"/accelerator_requests/{rival[0]['uuid']}")["health"] is None
    labels = {
        "host": here.rack.compute,
        "driver": "card_driver",
        "type": "FPGA",
        "device": faulty["uuid"],
    }
    soon(lambda: here.page.value("cyborg_device_healthy", **labels) == 0)
    soon(lambda: here.told(faulty["uuid"]) == ["drain"])
    assert [one["uuid"] for one in here.admin.get("/devices", health="drain")["devices"]] == [
        faulty["uuid"]
    ]
    counts = here.device()["units"]
    assert (counts["free"], counts["out_of_service"], counts["reasons"]) == (0, 1, {"unhealthy": 1})
    assert here.admin.get("/devices", health="ok")["devices"] == []
    (driver,) = here.admin.get("/drivers")["drivers"]
    assert driver["devices"]["offered"] == 0
    here.driver.healths.clear()
    healed = here.becomes("ok")
    assert healed["health_reasons"] == []
    here.offers(2)
    bind(here.admin, rival, here.rack.provider())
    soon(lambda: here.page.value("cyborg_device_healthy", **labels) == 1)
    assert here.history() == [("health drain", CAUSE), ("health ok", None)]
    soon(lambda: here.told(faulty["uuid"]) == ["drain", "ok"])
    (told, _) = here.watched.listener.of("device.health", uuid=faulty["uuid"])
    assert told["reason"] == CAUSE
    assert [one["instance"] for one in told["users"]] == [instance]
    # Its owner is told without the evidence, which is for operators.
    soon(lambda: len(here.watched.listener.of("arq.health", uuid=held["uuid"])) == 2)
    (told, _) = here.watched.listener.of("arq.health", uuid=held["uuid"])
    assert (told["health"], told["instance"], told["reason"]) == ("drain", instance, None)
    assert told["project_id"] == here.admin.project
    (shown,) = of_instance(here.admin, instance)
    assert shown["health"] == "ok"
    history = here.admin.get(f"/accelerator_requests/{held['uuid']}")["events"]
    assert [(one["action"], one["reason"]) for one in history[:2]] == [
        ("health ok", None),
        ("health drain", None),
    ]
    # The state of the device was never another one.
    assert here.watched.listener.states("device.state", faulty["uuid"]) == ["enabled"]
    delete_arqs(here.admin, instance)


def test_new_device_is_checked_before_it_is_enabled(checked: Sites):
    here = checked(healths={CARD: FAULT}, interval=3600)
    assert here.device()["health"] == "drain"
    assert here.device()["status"] == "enabled"
    bind(here.admin, here.arqs(), here.rack.provider(), status=409)
    here.rack.plug(OTHER, 2)
    here.driver.healths[OTHER] = FAULT
    soon(lambda: len(here.admin.get("/devices")["devices"]) == 2)
    assert here.device(OTHER)["health"] == "drain"
    bind(here.admin, here.arqs(), here.rack.provider(OTHER), status=409)
    assert here.driver.checks == [CARD, OTHER]


def test_device_is_checked_after_setup(checked: Sites):
    here = checked(BareCheckedDriver, interval=3600, auto_enable=frozenset())
    assert (here.device()["status"], here.device()["health"]) == ("inactive", "ok")
    here.driver.healths[CARD] = FAULT
    here.admin.post(f"/devices/{here.device()['uuid']}/enable", status=204)
    soon(lambda: here.device()["status"] == "enabled")
    assert here.device()["health"] == "drain"
    bind(here.admin, here.arqs(), here.rack.provider(), status=409)
    here.offers(0)
    assert here.driver.checks == [CARD, CARD]
    assert here.history() == [("health drain", CAUSE)]


def test_hanging_check_delays_no_heartbeat_and_no_report(checked: Sites):
    here = checked(poll=1.0)
    here.becomes("ok")
    # A check that has begun at the former gate ends.
    here.driver.gate = Gate()
    here.driver.gate.reached()
    stuck = len(here.driver.checks)
    before = here.driver.scans
    # The loop goes on: what changes is reported, and the fault of the driver is told.
    soon(lambda: here.driver.scans > before + 5)
    here.rack.plug(OTHER, 2)
    soon(lambda: len(here.admin.get("/devices")["devices"]) == 2)
    (driver,) = here.admin.get("/drivers")["drivers"]
    soon(lambda: "has not answered" in str(here.admin.get("/drivers")["drivers"][0]["error"]))
    assert driver["state"] == "READY"
    assert len(here.driver.checks) == stuck
    # The card keeps its last word; the new one has none, and both are offered.
    assert (here.device()["health"], here.device(OTHER)["health"]) == ("ok", None)
    here.offers(2)
    here.offers(2, OTHER)
    here.driver.gate.set()
    here.becomes("ok", OTHER)
    soon(lambda: here.admin.get("/drivers")["drivers"][0]["error"] is None)
    # A fault of one card affects no other one of its driver.
    here.driver.healths[OTHER] = FAULT
    here.becomes("drain", OTHER)
    here.offers(0, OTHER)
    assert here.becomes("ok")["health_reasons"] == []
    here.offers(2)


def test_health_outlives_failed_checks_and_restarts_until_it_is_switched_off(checked: Sites):
    here = checked(healths={CARD: FAULT})
    since = here.becomes("drain")["health_since"]
    here.driver.healths[CARD] = [Signal("fake", "fault", "set", "two\nlines\0")]
    soon(lambda: here.device()["health_reasons"] == ["two lines", REMEDY])
    assert here.device()["health_since"] == since
    assert here.history() == [("health drain", CAUSE)]

    def error() -> str | None:
        shown: str | None = here.admin.get("/drivers")["drivers"][0]["error"]
        return shown

    here.driver.healths[CARD] = ValueError("broken")
    soon(lambda: CARD in str(error()))
    assert here.device()["health"] == "drain"
    here.offers(0)
    here.driver.healths[CARD] = FAULT
    soon(lambda: error() is None)

    here.agent.stop()
    here.driver.gate.clear()
    here.watched.stack.times = replace(here.watched.stack.times, poll=0.5)
    again = watched_agent(here.watched, here.rack)
    before = here.driver.scans
    soon(lambda: here.driver.scans > before + 3)
    assert (here.device()["health"], here.device()["health_since"]) == ("drain", since)
    here.offers(0)
    here.driver.gate.set()
    here.driver.healths.clear()
    here.becomes("ok")
    here.offers(2)
    here.driver.healths[CARD] = FAULT
    here.becomes("drain")

    again.stop()
    here.watched.stack.times = replace(here.watched.stack.times, health=0.0)
    asked = len(here.driver.checks)
    watched_agent(here.watched, here.rack)
    shown = here.becomes(None)
    assert (shown["health_reasons"], shown["health_since"]) == ([], None)
    here.offers(2)
    assert len(here.driver.checks) == asked
    assert here.history()[-1] == ("health unknown", None)
    assert here.page.samples("cyborg_device_healthy") == []
    # Older microversions know nothing of health.
    older = replace(here.admin, version="2.3")
    (device,) = older.get("/devices")["devices"]
    assert [name for name in device if name.startswith("health")] == []
    older.get("/devices", status=400, health="ok")
    here.admin.get("/devices", status=400, health="fine")


#: A device that needs no hardware, and a command that tells its health.
COMMAND = """\
[generic_driver]
backends = soft
[generic_driver:soft]
devices = 0000:0a:00.0
attach_type = TEST_PCI
units = 2
resource_class = CUSTOM_SOFT
check_timeout = 1
health_command = /usr/sbin/check {address}
"""
SOFT = "0000:0a:00.0"
#: It works while the directory of the script has a file that is named like the device.
SCRIPT = """\
#!/bin/sh
echo "checking $1"
[ -e "$(dirname "$0")/$1" ] && exit 0
echo "first line" >&2
echo "uncorrectable errors" >&2
exit 3
"""


def install(path: Path, script: str) -> None:
    """Put a program in place of one that may run."""
    new = path.with_suffix(".new")
    new.write_text(script)
    new.chmod(0o755)
    new.replace(path)


def commanded(watched: Watched, directory: Path, script: str) -> tuple[Client, str]:
    """Start a host whose generic_driver runs a real script; an administrator, and the provider."""
    path = directory / "check"
    install(path, script)

    def check(host: FakeHost, argv: tuple[str, ...]) -> command.Completed:
        return command.run([str(path), *argv[1:]], timeout=host.patience[-1])

    watched.stack.times = replace(watched.stack.times, health=0.2)
    watched.stack.start_conductor()
    name = fresh_host("commanded")
    watched.placement.make_compute(name)
    machine = FakeHost()
    machine.programs["/usr/sbin/check"] = check
    driver = GenericDriver(machine, written(directory / "cyborg.conf", COMMAND, host=name))
    watched.stack.start_agent(
        name,
        machine=machine,
        drivers=[LoadResult(driver.name, driver)],
        state_path=watched.state_path,
    )
    admin = administrator(watched)
    soon(lambda: len(admin.get("/devices")["devices"]) == 1)
    return admin, provider_uuid(f"{name}_{SOFT}")


@pytest.mark.proves("generic_driver", "health", by="simulated")
def test_generic_driver_runs_health_command(watched: Watched, tmp_path: Path):
    admin, provider = commanded(watched, tmp_path, "#!/bin/sh\nexec sleep 3600\n")

    def health() -> list[str]:
        (device,) = admin.get("/devices")["devices"]
        return [device["health"], *device["health_reasons"]]

    def error() -> str:
        return str(admin.get("/drivers")["drivers"][0]["error"])

    # A command that does not end is killed.
    soon(lambda: "did not end within 1 seconds" in error())
    assert health() == [None]
    eventually_offered(watched.placement, provider, 2)
    install(tmp_path / "check", SCRIPT)
    action = "Read what the health_command of the backend says, and repair the device."
    faulty = ["drain", "it ended with status 3: uncorrectable errors", action]
    soon(lambda: health() == faulty)
    eventually_offered(watched.placement, provider, 0)
    (tmp_path / SOFT).write_text("")
    soon(lambda: health() == ["ok"])
    eventually_offered(watched.placement, provider, 2)
    (tmp_path / SOFT).unlink()
    soon(lambda: health() == faulty)
    eventually_offered(watched.placement, provider, 0)


@pytest.mark.proves("fake_driver", "health", by="simulated")
def test_fake_driver_shows_a_fault(watched: Watched):
    watched.stack.times = replace(watched.stack.times, health=0.2)
    watched.stack.start_conductor()
    name = fresh_host("fake")
    watched.placement.make_compute(name)
    driver = FakeDriver(FakeHost(), configured(host=name))
    watched.stack.start_agent(
        name,
        machine=driver.host,
        drivers=[LoadResult(driver.name, driver)],
        state_path=watched.state_path,
    )
    admin = administrator(watched)

    def reasons() -> list[str]:
        return [one for device in admin.get("/devices")["devices"] for one in _reasons(device)]

    def _reasons(device: dict[str, Any]) -> list[str]:
        return [device["health"], *device["health_reasons"]]

    soon(lambda: reasons() == ["ok"])
    path = "/drivers/fake_driver"
    admin.patch(path, {"options": {"fault": "the fan stands still"}}, status=202)
    soon(lambda: reasons() == ["drain", "the fan stands still", REMEDY])
    admin.patch(path, {"options": {"fault": None}}, status=202)
    soon(lambda: reasons() == ["ok"])


def test_device_is_in_probation_before_it_is_offered_again(checked: Sites):
    site = checked(rules=Rules(probation=5_000))
    site.becomes("ok")
    site.offers(2)
    site.driver.healths[CARD] = FAULT
    site.becomes("drain")
    site.driver.healths.clear()
    device = site.becomes("probation")
    (text, *causes) = device["health_reasons"]
    assert text.startswith("The fault is gone. The units are offered again at 20")
    assert causes == ["uncorrectable errors", REMEDY]
    site.becomes("ok")
    site.offers(2)
    actions = [action for action, _ in site.history()]
    assert actions == ["health drain", "health probation", "health ok"]
    soon(lambda: site.told(device["uuid"]) == ["drain", "probation", "ok"])


def test_operator_releases_a_parked_device_and_has_faults_ignored(checked: Sites):
    site = checked(rules=Rules(faults=1, window=3_600_000), healths={CARD: FAULT})
    device = site.becomes("parked")
    site.offers(0)
    assert "--health auto" in device["health_reasons"][0]
    path = f"/devices/{device['uuid']}"
    changed = site.admin.patch(path, {"health": "ignore", "ignore_for": 3600}, status=200)
    assert changed["health"] == "ignored"
    assert changed["health_reasons"][1:] == ["uncorrectable errors", REMEDY]
    site.offers(2)
    bind(site.admin, site.arqs(), site.rack.provider())
    assert site.admin.patch(path, {"health": "auto"}, status=200)["health"] == "parked"
    site.offers(0)
    site.driver.healths.clear()
    soon(lambda: site.admin.patch(path, {"health": "auto"}, status=200)["health"] == "ok")
    site.offers(2)


@pytest.mark.parametrize(
    "change",
    [
        {"health": "ignore"},
        {"health": "auto", "ignore_for": 3600},
        {"ignore_for": 3600},
        {"health": "ignore", "ignore_for": 59},
        {"health": "ignore", "ignore_for": 30 * 24 * 3600 + 1},
        {"health": "ok"},
        {"health": None},
    ],
)
def test_order_about_health_that_is_not_valid_is_refused(checked: Sites, change: dict[str, Any]):
    site = checked()
    site.admin.patch(f"/devices/{site.device()['uuid']}", change, status=400)
    assert site.device()["health"] == "ok"


def _tell_kernel(site: Site) -> None:
    """Let the kernel report something about the card."""
    path = servers.place(CARD).removeprefix("/sys")
    site.rack.machine.emit(Uevent("change", path, {"SUBSYSTEM": "pci"}))


def test_units_are_reserved_at_once_after_events(checked: Sites, capsys: Any):
    """No interval is waited for: the checks run every hour here. A full run prints the times."""
    site = checked(interval=3600)
    site.becomes("ok")
    site.offers(2)
    times = []
    for _ in range(200 if FULL else 3):
        site.driver.healths[CARD] = FAULT
        began = time.monotonic()
        _tell_kernel(site)
        site.offers(0)
        times.append(time.monotonic() - began)
        site.driver.healths.clear()
        _tell_kernel(site)
        site.offers(2)
    times.sort()
    with capsys.disabled():
        print(  # noqa: T201
            f"\nkernel event to reserved: p50 {times[len(times) // 2]:.3f} s, "
            f"p99 {times[len(times) * 99 // 100]:.3f} s of {len(times)}"
        )
    assert site.history()[:2] == [("health drain", CAUSE), ("health ok", None)]


def test_xid_in_the_log_of_the_kernel_reserves_the_units(checked: Sites):
    """No interval of the health is waited for: the checks run every hour here."""
    site = checked(interval=3600)
    site.becomes("ok")
    site.offers(2)
    text = f"NVRM: Xid (PCI:{CARD[:-2]}): 79, pid=4711, name=qemu, GPU has fallen off the bus."
    site.rack.machine.add_file("/dev/kmsg", f"4,2048,73000000,-;{text}\n")
    assert site.becomes("dead")["health_reasons"][0] == "Xid 79"
    site.offers(0)
    soon(lambda: site.driver.checks.count(CARD) > 1)


def test_errors_while_no_agent_runs_reserve_the_units(checked: Sites):
    """The counters that the previous process saw are on the disk."""
    site = checked()
    path = servers.add_function(site.rack.machine, CARD, "1d22:3684:120000")
    site.rack.machine.add_file(f"{path}/config", bytes(64))
    counters = f"{path}/aer_dev_fatal"
    site.rack.machine.add_file(counters, "DLP 4\nTOTAL_ERR_FATAL 4\n")
    site.becomes("ok")
    store = StateStore(site.watched.state_path, site.rack.compute)
    soon(lambda: (site.rack.driver.name, CARD) in HealthBaselines(store).load())
    site.agent.stop()
    site.rack.machine.add_file(counters, "DLP 5\nTOTAL_ERR_FATAL 5\n")
    site.agent = watched_agent(site.watched, site.rack)
    device = site.becomes("drain")
    assert device["health_reasons"][0] == "new fatal PCIe errors: 1 DLP"
    site.offers(0)
