# SPDX-License-Identifier: Apache-2.0
"""Guests that run without a unit that is bound to them, as after a reboot of their host."""

import random
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.agent.guests import GuestReports
from cyborg.clients.nova import Servers
from cyborg.conductor.audit.unattached import report
from cyborg.conf.conductor import NOTIFY, REBOOT
from cyborg.db import guests, metrics
from cyborg.db.models import Arq, Event, Work
from cyborg.drivers.files import INITIAL_PROCESSES
from cyborg.drivers.worker import Worker
from cyborg.model.arq import Binding
from cyborg.model.audit_findings import Ages, Kind, Severity
from cyborg.model.work import WorkKind
from cyborg.rpc.conductor import ConductorClient
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.contexts import changed
from cyborg.tests.fixtures.fake_servers import Guest
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.functional.audit.cloud import AT_ONCE, SmallCloud
from cyborg.tests.functional.audit.test_restored import restore

GUESTS = 8
BOOTS = 100


class Conductor:
    """What the agent sends goes to the use case."""

    def __init__(self, cloud: SmallCloud) -> None:
        self._cases = cloud.cases
        self.sent = 0

    def request(self, command: Any) -> None:
        self._cases.ask(command)
        self.sent += 1


@dataclass
class SimulatedCompute:
    """A host with one function for each of its guests, and its processes."""

    cloud: SmallCloud
    machine: FakeHost = field(default_factory=FakeHost)
    instances: list[str] = field(default_factory=list)
    servers: list[Guest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.cloud.compute("rebooted")
        self.report = report_of(self.name, GUESTS, handles=1)
        self.cloud.cases.report(self.name, self.report)
        self.cloud.publish(self.name)
        self.functions = [device.key for device in self.report.drivers[0].devices]
        for number, function in enumerate(self.functions):
            place = f"/sys/bus/pci/devices/{function}"
            group = f"../../../../kernel/iommu_groups/{number}"
            self.machine.add_link(f"{place}/iommu_group", group)
        self.conductor = Conductor(self.cloud)
        client = cast(ConductorClient, self.conductor)
        self.auditor = self.cloud.auditor()
        self.reports = GuestReports(
            host=self.name, machine=self.machine, conductor=client, worker=Worker()
        )
        self.boot()

    def bind(self, index: int) -> str:
        """Boot a server with the unit of a function; its uuid."""
        arq, instance = self.cloud.request(), str(uuid4())
        self.servers.append(self.cloud.nova.own(instance, "project", node=self.name))
        provider = provider_of(self.name, index)
        assert self.cloud.placement.claim(instance, {provider: {RESOURCE_CLASS: 1}})
        self.cloud.cases.patch(Binding(arq, self.name, provider, instance))
        self.instances.append(instance)
        return instance

    def boot(self) -> None:
        """Start the machine: no guest runs."""
        if self.machine.exists("/proc"):
            self.machine.remove("/proc")
        self.machine.add_link("/proc/self/ns/pid", INITIAL_PROCESSES)
        self.machine.add_file("/proc/sys/kernel/random/boot_id", f"{uuid4()}\n")
        self.machine.add_file("/proc/1/cmdline", "/usr/lib/systemd/systemd\0")
        self.machine.add_dir("/proc/1/fd")

    def run(self, index: int, *, is_named: bool = False, is_open: bool = False) -> None:
        """Run the guest of a function: its command line names it, and qemu has opened it."""
        process = 1000 + index
        function = self.functions[index]
        device = f'-device\0{{"driver":"vfio-pci","host":"{function}","id":"hostdev0"}}\0'
        line = f"/usr/bin/qemu-system-x86_64\0-uuid\0{self.instances[index]}\0"
        self.machine.add_file(f"/proc/{process}/cmdline", line + (device if is_named else ""))
        self.machine.add_file(f"/proc/{process}/comm", "qemu-system-x86\n")
        self.machine.add_dir(f"/proc/{process}/fd")
        if is_open:
            self.machine.add_link(f"/proc/{process}/fd/7", f"/dev/vfio/{index}")

    def scan(self) -> None:
        """One heartbeat and one scan of the agent."""
        self.cloud.cases.heartbeat(self.name)
        self.reports.send(self.cloud.cases.epochs[self.name], self.report)

    def named(self, ages: Ages | None = None) -> set[str]:
        """The servers that an audit names as running without their units.

        Without ``ages`` it is the audit of a conductor, which knows what Placement showed before.
        """
        auditor = self.auditor if ages is None else self.cloud.auditor(ages)
        findings = auditor.look(self.name).findings
        return {finding.key for finding in findings if finding.kind is Kind.UNATTACHED_BIND}

    def handle(self, repair: str) -> None:
        """Run the job of a conductor once."""
        ctx = changed(self.cloud.cases.ctx, ages=AT_ONCE, repair_unattached=repair)
        report(replace(ctx, nova=Servers(self.cloud.nova.adapter())))

    def actions(self, instance: str) -> list[str]:
        with self.cloud.cases.db.reader() as tx:
            query = sa.select(Event.action).where(Event.subject_uuid == instance)
            return list(tx.execute(query.order_by(Event.id)).scalars())


@pytest.fixture
def compute(cloud: SmallCloud) -> SimulatedCompute:
    made = SimulatedCompute(cloud)
    for index in range(GUESTS):
        made.bind(index)
    return made


def test_every_guest_without_its_unit_is_named_after_each_boot(compute: SimulatedCompute) -> None:
    """Each guest is in another state after each boot; a server is rebooted once in each."""
    chance = random.Random(26)
    reboots = dict.fromkeys(compute.instances, 0)
    for _ in range(BOOTS):
        compute.boot()
        bare = set()
        for index, instance in enumerate(compute.instances):
            state = chance.choice(["bare", "bare", "attached", "starting", "off", "building"])
            guest = compute.servers[index]
            guest.status, guest.task = ("BUILD" if state == "building" else "ACTIVE"), None
            if state == "off":
                guest.status = "SHUTOFF"
            else:
                is_named = state in ("attached", "starting")
                compute.run(index, is_named=is_named, is_open=state == "attached")
            if state == "bare":
                bare.add(instance)
                reboots[instance] += 1
        compute.scan()
        assert compute.named() == bare
        for _ in range(2):
            compute.handle(REBOOT)
            for index in range(GUESTS):
                compute.servers[index].task = None
    assert {
        instance: compute.servers[index].reboots for index, instance in enumerate(compute.instances)
    } == reboots


def test_server_is_reported_once_for_a_boot_and_not_rebooted_by_default(
    compute: SimulatedCompute,
) -> None:
    compute.run(0)
    compute.run(1, is_named=True, is_open=True)
    compute.scan()
    (finding,) = [
        finding
        for finding in compute.cloud.auditor().look().findings
        if finding.kind is Kind.UNATTACHED_BIND
    ]
    assert (finding.severity, finding.fix, finding.host) == (Severity.ERROR, None, compute.name)
    assert f"{compute.name}_0" in finding.cause
    assert f"openstack server reboot --hard {compute.instances[0]}" in finding.remedy
    for _ in range(2):
        compute.handle(NOTIFY)
    assert compute.actions(compute.instances[0])[-1:] == ["without its accelerators"]
    assert compute.actions(compute.instances[0]).count("without its accelerators") == 1
    assert compute.actions(compute.instances[1]).count("without its accelerators") == 0
    assert compute.servers[0].reboots == 0
    with compute.cloud.cases.db.reader() as tx:
        assert metrics.totals(tx).unattached == 1
        assert guests.unattached_units(tx) == {provider_of(compute.name, 0): 1}
    # Its owner reboots it.
    compute.run(0, is_named=True, is_open=True)
    compute.scan()
    assert compute.named() == set()
    with compute.cloud.cases.db.reader() as tx:
        assert metrics.totals(tx).unattached == 0
        assert guests.unattached_units(tx) == {}


@pytest.mark.parametrize("status", ["RESCUE", "PAUSED", "BUILD", "SHUTOFF", "ERROR"])
def test_server_in_another_state_is_not_named(compute: SimulatedCompute, status: str) -> None:
    compute.run(0)
    compute.scan()
    compute.servers[0].status = status
    assert compute.named() == set()


def test_server_that_is_changed_is_not_named(compute: SimulatedCompute) -> None:
    """Nova works on it, an attach is in progress, or its bind is new."""
    compute.run(0)
    compute.scan()
    assert compute.named() == {compute.instances[0]}
    assert compute.named(Ages(settle=120_000)) == set()
    compute.servers[0].lasts = 1000
    compute.servers[0].begin()
    assert compute.named() == set()
    compute.servers[0].task = None
    attach = {"uuid": str(uuid4()), "kind": WorkKind.ATTACH.value, "fence": 0, "attempts": 0}
    times = {"created_ms": 0, "not_before_ms": 0, "instance_uuid": compute.instances[0]}
    compute.cloud.cases.execute(sa.insert(Work).values(**attach, **times))
    assert compute.named() == set()
    compute.cloud.cases.execute(sa.delete(Work))
    assert compute.named() == {compute.instances[0]}
    hide = sa.update(Arq).where(Arq.instance_uuid == compute.instances[0]).values(hidden=True)
    compute.cloud.cases.execute(hide)
    assert compute.named() == set()


def test_agent_that_cannot_see_processes_names_nothing(
    compute: SimulatedCompute, caplog: pytest.LogCaptureFixture
) -> None:
    compute.run(0)
    compute.scan()
    compute.machine.remove("/proc/self/ns/pid")
    for _ in range(2):
        compute.scan()
    assert compute.named() == set()
    assert sum("Guests of host" in message for message in caplog.messages) == 1


def test_guests_are_sent_only_after_a_change(compute: SimulatedCompute) -> None:
    compute.run(0)
    for _ in range(3):
        compute.scan()
    assert compute.conductor.sent == 1
    compute.run(1)
    compute.scan()
    assert compute.conductor.sent == 2


def test_units_of_an_older_database_are_named(compute: SimulatedCompute) -> None:
    """The finding about a server without a request tells which unit its process has."""
    compute.run(0, is_named=True, is_open=True)
    compute.scan()
    server = compute.instances[0]
    restore(compute.cloud, server)
    (finding,) = compute.cloud.auditor().look(compute.name).findings
    assert finding.kind is Kind.UNKNOWN_HOLDER
    assert f"by server {server}, qemu-system-x86 (process 1000)" in finding.cause
    assert compute.cloud.fix() == []
    suspects = [
        finding
        for finding in compute.cloud.auditor().look(compute.name).findings
        if finding.kind is Kind.SUSPECT_HANDLE
    ]
    assert len(suspects) == 1
    assert f"by server {server}" in suspects[0].cause
