# SPDX-License-Identifier: Apache-2.0
"""What one tenant writes to a disk is never read by the next, whatever crashes in between.

Random sequences of binds, deletions, mounts and crashes run against one small cloud: two NVMe disks
of the pci_driver on the simulated host, whose content is that of their nodes.
"""

import contextlib
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db.models import Arq, AttachHandle, Work
from cyborg.drivers.pci import PciDriver
from cyborg.model.arq import Binding, State
from cyborg.model.device_profile import DeviceProfile
from cyborg.model.provider import provider_uuid
from cyborg.rpc.verbs import CreateArqs, CreateDeviceProfile, DeleteInstanceArqs, PatchArqs, Write
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.guest import guest
from cyborg.testing.kernel.nvme_tool import NvmeTool
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.fixtures.choice import FULL
from cyborg.tests.fixtures.crash import Boundary, FaultPlan
from cyborg.tests.fixtures.direct_bus import Died
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.single_step import (
    Agent,
    Conductor,
    Environment,
)
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg.tests.functional.crash.cloud import NOVA
from cyborg.tests.functional.environments import new_environment
from cyborg.tests.unit.drivers.configured import configured

#: How many sequences run; "tools/test --full" runs all.
SEQUENCES = 1000 if FULL else 20
SEED = 20261125
#: The disks by address, with their nodes and their numbers.
DISKS = {"0000:02:00.0": ("nvme1n1", "259:1"), "0000:41:00.0": ("nvme2n1", "259:2")}
SIZE = 16_384
CANARY = re.compile(rb"canary of ([0-9a-f-]{36})")
#: Less than a lease, so that running processes keep it.
ROUND_MS = 4000
ROUNDS = 80


class Cloud:
    """Two disks, the processes that offer them, and the guests that have them."""

    conductor: Conductor
    agent: Agent

    def __init__(
        self, name: str, machine: FakeHost, environment: Environment, nova: SimulatedNova
    ) -> None:
        self.environment, self.nova = environment, nova
        self.name, self.machine = name, machine
        machine.on_call = self._call
        #: Of the agent.
        self.plan = _plan()
        #: Instances by address, those that run.
        self.guests: dict[str, str] = {}
        self.unknown: list[Write[Any]] = []
        self.boots = self.crashes = self.cleanings = 0
        self._mounted: set[str] = set()
        #: Instances that Nova has ended; the service may not know it yet.
        self._ended: set[str] = set()

    # What a tenant, Nova and libvirt do.

    def boot(self, profile: str, address: str) -> None:
        """Request a disk for a new instance; it starts when its ARQ is Bound."""
        instance = str(uuid4())
        self.nova.own(instance, NOVA.project_id or "", self.name, profile)
        created = self.ask(CreateArqs(NOVA, str(uuid4()), profile))
        if created:
            provider = provider_uuid(f"{self.name}_{address}")
            self.ask(
                PatchArqs(
                    *(NOVA, str(uuid4())),
                    [Binding(arq.uuid, self.name, provider, instance) for arq in created],
                    [],
                )
            )

    def start_guests(self) -> None:
        """Start the instances whose ARQs are Bound: each reads its disk, then writes to it."""
        for address, instance in self.bound().items():
            if self.guests.get(address) == instance or instance in self._ended:
                continue
            assert address not in self.guests, f"{address} has two guests"
            assert self.canaries(address) == set(), (
                f"instance {instance} reads {self.canaries(address)} on {address}"
            )
            self.boots += 1
            self.guests[address] = instance
            self._bind(address, "vfio-pci")
            self.kernel.hold(address)
            node = f"/dev/{DISKS[address][0]}"
            content = bytearray(self.machine.content(node) or b"")
            place = 4096 * random.Random(instance).randrange(SIZE // 4096)
            text = f"canary of {instance}".encode()
            content[place : place + len(text)] = text
            self.machine.add_file(node, bytes(content))

    def delete(self, instance: str, *, late: bool) -> None:
        """Delete an instance; libvirt gives its disk back before, or only ``late``."""
        self._ended.add(instance)
        address = next((place for place, one in self.guests.items() if one == instance), None)
        if address is not None:
            del self.guests[address]
            if late:
                self.machine.on_pause = lambda: self._give_back(address)
            else:
                self._give_back(address)
        self.ask(DeleteInstanceArqs(NOVA, str(uuid4()), instance))
        if address is not None:
            self._give_back(address)
            self.machine.on_pause = None

    def toggle_mount(self, address: str) -> None:
        """Let the host mount the disk of no guest, or unmount it."""
        if address in self._mounted:
            self._mounted.discard(address)
        elif address not in self.guests:
            self._mounted.add(address)
        self.machine.add_file("/proc/self/mountinfo", "")
        for place in self._mounted:
            servers.add_mount(self.machine, DISKS[place][1], f"/media/{place}")

    # What is there now.

    @property
    def kernel(self) -> SimulatedKernel:
        assert isinstance(self.machine.kernel, SimulatedKernel)
        return self.machine.kernel

    def canaries(self, address: str) -> set[bytes]:
        """Return the instances whose canaries are on a disk."""
        content = self.machine.content(f"/dev/{DISKS[address][0]}") or b""
        return set(CANARY.findall(content))

    def bound(self) -> dict[str, str]:
        """Return address → instance of the ARQs that are Bound."""
        query = (
            sa.select(AttachHandle.handle_key, Arq.instance_uuid)
            .join(Arq, Arq.id == AttachHandle.arq_id)
            .where(Arq.state == State.BOUND.value)
        )
        return {key: instance or "" for key, instance in self.environment.rows(query)}

    def instances(self) -> list[str]:
        """Return the instances that have ARQs."""
        query = sa.select(Arq.instance_uuid).where(Arq.instance_uuid.is_not(None)).distinct()
        return sorted(self.environment.values(query))

    def check(self) -> None:
        """A unit that may be given out has nothing of any guest."""
        query = sa.select(AttachHandle.handle_key).where(UNIT == "free")
        free = set(self.environment.values(query))
        for address in free & DISKS.keys():
            assert self.canaries(address) == set(), f"{address} is free with the data of a guest"
        self.start_guests()

    # The processes.

    def ask(self, request: Write[Any]) -> list[Any] | None:
        """Send a request; one whose result is unknown is repeated later. None: no answer."""
        with contextlib.closing(self.environment.client()) as client:
            try:
                answer = client.write(request)
            except exception.Unavailable:
                self.unknown.append(request)
                answer = None
            except exception.CyborgError:
                # No free unit, a device that is not offered, or an ARQ that has gone.
                answer = None
        self._tend()
        return answer if isinstance(answer, list) else None

    def work(self) -> None:
        self._go_on(self.conductor.run_worker)

    def look(self) -> None:
        self._go_on(self.agent.run_once)

    def crash(self, victim: str, steps: int, *, after: bool) -> None:
        """Let a process crash at one of its next boundaries."""
        process = self.conductor if victim == "conductor" else self.agent
        if not process.fault_plan.will_crash:
            process.fault_plan.crash_after(steps, after=after)

    def settle(self) -> None:
        """Let time pass until nothing is left to do."""
        for process in (self.conductor, self.agent):
            process.fault_plan.rest()
        for address in list(self._mounted):
            self.toggle_mount(address)
        quiet = 0
        for _ in range(ROUNDS):
            waiting, self.unknown = self.unknown, []
            for request in waiting:
                self.ask(request)
            self.work()
            self.look()
            self.check()
            left = self.environment.count(Work)
            quiet = 0 if left or self.unknown else quiet + 1
            if quiet == 2:
                return
            self.environment.clock.ms += ROUND_MS
        raise AssertionError("there is always something left to do")

    def _go_on(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(Died, exception.CyborgError):
            call()
        self._tend()

    def _tend(self) -> None:
        """Replace what has crashed; the host of an agent may have been rebooted with it."""
        if self.conductor.fault_plan.dead:
            self.crashes += 1
            self.conductor.stop()
            self.environment.clock.ms += 2 * ROUND_MS
            self.conductor = self.conductor.again(fresh_host("conductor"))
            self.conductor.renew()
            self.conductor.serve()
        if self.agent.fault_plan.dead:
            self.crashes += 1
            self.agent.stop()
            self.plan = _plan()
            self.agent = self.agent.again(_driver(self.machine, self.name), faults=self.plan)
            self.agent.serve()

    def _call(self, call: str) -> None:
        """Make each change of the host a boundary of the agent."""
        if call.startswith("nvme ") or call.endswith("/reset"):
            if call.startswith(("nvme sanitize ", "nvme format ")):
                self.cleanings += 1
            self.plan.after(self.plan.before(Boundary.HOST, call))

    def _bind(self, address: str, driver: str) -> None:
        machine, self.machine.on_call = self.machine, None
        machine.write_text(f"/sys/bus/pci/devices/{address}/driver_override", f"{driver}\n")
        machine.write_text(f"/sys/bus/pci/devices/{address}/driver/unbind", address)
        machine.write_text("/sys/bus/pci/drivers_probe", address)
        machine.on_call = self._call

    def _give_back(self, address: str) -> None:
        if self.machine.readlink(f"/sys/bus/pci/devices/{address}/driver").endswith("vfio-pci"):
            self.kernel.release(address)
            self._bind(address, "")


def _plan() -> FaultPlan:
    return FaultPlan(kinds=frozenset({Boundary.HOST, Boundary.RPC, Boundary.HTTP}))


def _driver(machine: FakeHost, host: str) -> PciDriver:
    entries = [f'{{"address": "{address}"}}' for address in DISKS]
    return PciDriver(machine, configured(*entries, host=host))


@pytest.fixture
def cloud(tmp_path: Path, placement: PlacementService) -> Iterator[Cloud]:
    name, machine = fresh_host("canary"), guest()
    placement.make_compute(name)
    for node, _ in DISKS.values():
        machine.add_file(f"/dev/{node}", bytes(SIZE))
    with new_environment(tmp_path, placement) as (environment, nova, _):
        made = Cloud(name, machine, environment, nova)
        made.conductor = environment.conductor(fresh_host("conductor"), faults=FaultPlan())
        made.conductor.renew()
        made.agent = environment.agent(
            name, _driver(machine, name), faults=made.plan, devices=list(DISKS)
        )
        for process in (made.conductor, made.agent):
            process.serve()
        yield made
        for process in (made.conductor, made.agent):
            process.stop()


def play(cloud: Cloud, profile: str, rng: random.Random) -> None:
    """Run one random sequence to its end; the disks keep their guests for the next one."""
    sanitizes = rng.random() < 0.5
    cloud.machine.programs["nvme"] = NvmeTool(seconds=10.0, sanitizes=sanitizes)
    for _ in range(rng.randrange(6, 18)):
        address = rng.choice(list(DISKS))
        match rng.randrange(10):
            case 0 | 1 | 2:
                cloud.boot(profile, address)
            case 3 | 4:
                if instances := cloud.instances():
                    cloud.delete(rng.choice(instances), late=rng.random() < 0.3)
            case 5:
                cloud.work()
            case 6:
                cloud.look()
            case 7 | 8:
                victim = rng.choice(["conductor", "agent", "agent"])
                cloud.crash(victim, rng.randrange(8), after=rng.random() < 0.5)
            case 9:
                if rng.random() < 0.3:
                    cloud.toggle_mount(address)
                cloud.environment.clock.ms += rng.randrange(3000)
        cloud.check()
    cloud.settle()


def make_profile(cloud: Cloud, **requirements: str) -> str:
    """Return the name of a new profile for one disk, with these ``accel:`` requirements."""
    cloud.settle()
    name = f"profile-{uuid4().hex[:12]}"
    group = {"resources:CUSTOM_PCI": "1"}
    group |= {f"accel:{key}": value for key, value in requirements.items()}
    profile = DeviceProfile(str(uuid4()), name, (group,))
    cloud.ask(CreateDeviceProfile(NOVA, str(uuid4()), profile))
    return name


def play_all(cloud: Cloud, profile: str, sequences: int) -> None:
    for number in range(sequences):
        try:
            play(cloud, profile, random.Random(SEED + number))
        except AssertionError as error:
            raise AssertionError(f"sequence {number} of seed {SEED}: {error}") from error


@pytest.mark.proves("pci_driver", "bind", "cleaning", by="simulated")
def test_canary_of_a_tenant_is_never_read_by_the_next(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    play_all(cloud, make_profile(cloud), SEQUENCES)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{SEQUENCES} sequences: {cloud.boots} guests, {cloud.cleanings} erasures, "
            f"{cloud.crashes} crashes"
        )
    # Without these the test would not test what it says.
    assert cloud.boots > SEQUENCES / 2
    assert cloud.cleanings > SEQUENCES / 2
    assert cloud.crashes > SEQUENCES / 4


def test_canary_is_found_where_the_profile_requests_no_erasure(cloud: Cloud) -> None:
    profile = make_profile(cloud, clean="reset")
    with pytest.raises(AssertionError, match=r"reads|is free with the data of a guest"):
        play_all(cloud, profile, SEQUENCES)
    assert cloud.cleanings == 0
