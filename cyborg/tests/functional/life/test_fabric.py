# SPDX-License-Identifier: Apache-2.0
"""Partitions of an NVSwitch fabric: each guest has one of its own, from its bind to its release."""

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Arq
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.model.pci import PciAddress
from cyborg.testing import scenario_hosts, situations
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    Arqs,
    bind,
    create,
    delete_arqs,
    eventually_idle,
    eventually_offered,
    handle_states,
    hasten,
    of_instance,
    work_left,
)
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.simulated_fabric import (
    FMPM,
    GPUS,
    PARTITIONS,
    FabricManager,
    options,
)

SIZE = 4
#: The partitions of four GPUs.
LOW, HIGH = 1, 2


class Died(BaseException):
    """The process has ended here: nothing of it goes on."""


def gpus_of(partition: int) -> list[str]:
    return sorted(GPUS[module] for module in PARTITIONS[partition])


@pytest.fixture
def manager() -> FabricManager:
    return FabricManager()


@pytest.fixture
def compute(
    beside: Callable[..., Stack],
    placement: PlacementService,
    manager: FabricManager,
    tmp_path: Path,
) -> ComputeHost:
    """A compute that offers two partitions of four GPUs."""
    machine = manager.install(scenario_hosts.load("hgx-b200"))
    own = beside(agent_heartbeat=0.2, scan=0.2, full_check=0.5)
    host = compute_host(own, tmp_path / "state", machine)
    conf = written(tmp_path / "cyborg.conf", options(SIZE), host=host.compute)
    host.start(LoadResult(NvidiaGpuDriver.name, NvidiaGpuDriver(machine, conf)))
    for partition in (LOW, HIGH):
        eventually_offered(placement, provider(host, partition), SIZE)
    return host


@pytest.fixture
def arqs(nova: Client, profile: Callable[..., str]) -> Callable[[], Arqs]:
    """ARQs for the GPUs of a partition."""
    name = profile({"resources:PGPU": str(SIZE), "trait:CUSTOM_NVIDIA_2901": "required"})
    return lambda: create(nova, name)


def provider(compute: ComputeHost, partition: int) -> str:
    return compute.provider(gpus_of(partition)[0])


def boot(compute: ComputeHost, nova: Client, arqs: Arqs, partition: int) -> str:
    """Bind the GPUs of a partition and start the guest that has them; its instance."""
    instance = bind(nova, arqs, provider(compute, partition), host=compute.compute)
    eventually(lambda: set(states(nova, instance)) == {"Bound"})
    for gpu in gpus_of(partition):
        situations.hold(compute.machine, gpu)
    return instance


def shut_down(compute: ComputeHost) -> None:
    """End all guests: nothing has a function open any more."""
    machine = compute.machine
    for process in filter(str.isdecimal, machine.list_dir("/proc")):
        for name in machine.list_dir(f"/proc/{process}/fd"):
            if machine.readlink(f"/proc/{process}/fd/{name}").startswith("/dev/vfio/"):
                machine.remove(f"/proc/{process}/fd/{name}")


def states(nova: Client, instance: str) -> list[str]:
    return [arq["state"] for arq in of_instance(nova, instance)]


def changes(compute: ComputeHost) -> list[tuple[str, ...]]:
    """The arguments of the commands that changed a partition, in their order."""
    commands = [words for words in list(compute.machine.commands) if words[0] == FMPM]
    return [words[1:] for words in commands if words[1] != "-l"]


def settled(database: Database) -> bool:
    hasten(database)
    return work_left(database) == []


@pytest.mark.proves("nvidia_gpu_driver", "discover", "bind", "cleaning", by="simulated")
def test_each_guest_has_a_partition_until_it_is_deleted(
    compute: ComputeHost,
    arqs: Callable[[], Arqs],
    nova: Client,
    manager: FabricManager,
    placement: PlacementService,
    *,
    database: Database,
) -> None:
    first = boot(compute, nova, arqs(), HIGH)
    assert manager.active(compute.machine) == [HIGH]
    infos = [arq["attach_handle_info"] for arq in of_instance(nova, first)]
    assert sorted(str(PciAddress.from_info(info)) for info in infos) == gpus_of(HIGH)
    assert changes(compute) == [("-a", "2")]
    shut_down(compute)
    second = boot(compute, nova, arqs(), LOW)
    assert manager.active(compute.machine) == [LOW, HIGH]
    # Nova has ended the first guest, and the second one runs.
    delete_arqs(nova, first)
    eventually_idle(database)
    assert manager.active(compute.machine) == [LOW]
    assert changes(compute) == [("-a", "2"), ("-a", "1"), ("-d", "2")]
    assert states(nova, second) == ["Bound"] * SIZE
    eventually_offered(placement, provider(compute, HIGH), SIZE)
    shut_down(compute)
    delete_arqs(nova, second)
    eventually_idle(database)
    assert manager.active(compute.machine) == []
    assert set(handle_states(database).values()) == {"free"}


@pytest.mark.parametrize("way", ["fails", "hangs"])
@pytest.mark.proves("nvidia_gpu_driver", "bind", by="simulated")
def test_bind_fails_with_the_reason_if_the_partition_cannot_be_activated(
    compute: ComputeHost,
    arqs: Callable[[], Arqs],
    nova: Client,
    nova_api: SimulatedNova,
    manager: FabricManager,
    *,
    database: Database,
    placement: PlacementService,
    way: str,
) -> None:
    machine = compute.machine
    text = "partition 2 is not active after"
    if way == "fails":
        manager.broken.add(HIGH)
    else:
        text = f"running {FMPM} failed: it did not end in time"

        def hang(words: str) -> None:
            if words.startswith(FMPM):
                machine.hanging = words.startswith(f"{FMPM} -a")

        machine.on_call = hang
    mine = arqs()
    bind(nova, mine, provider(compute, HIGH), host=compute.compute)
    uuids = [arq["uuid"] for arq in mine]
    assert set(nova_api.wait_for_events(uuids).values()) == {"failed"}
    with database.reader() as tx:
        faults = tx.execute(sa.select(Arq.fault).where(Arq.uuid.in_(uuids))).scalars().all()
    assert all(text in str(fault) for fault in faults)
    machine.on_call, machine.hanging = None, False
    manager.broken.clear()
    eventually(lambda: settled(database))
    assert manager.active(machine) == []
    eventually_offered(placement, provider(compute, HIGH), SIZE)
    boot(compute, nova, arqs(), HIGH)
    assert manager.active(machine) == [HIGH]


@pytest.mark.proves("nvidia_gpu_driver", "bind", by="simulated")
def test_agent_that_dies_after_the_activation_is_replaced(
    compute: ComputeHost,
    arqs: Callable[[], Arqs],
    nova: Client,
    manager: FabricManager,
    *,
    database: Database,
) -> None:
    machine, died = compute.machine, list[str]()

    def die(words: str) -> None:
        # The first look after the activation, before the driver returns.
        if words == f"{FMPM} -l" and manager.active(machine) and changes(compute) and not died:
            died.append(words)
            raise Died

    machine.on_call = die
    instance = bind(nova, arqs(), provider(compute, LOW), host=compute.compute)
    eventually(lambda: bool(died))
    compute.restart()

    def bound() -> bool:
        hasten(database)
        return set(states(nova, instance)) == {"Bound"}

    eventually(bound)
    assert manager.active(machine) == [LOW]
    assert changes(compute) == [("-a", "1")]
    delete_arqs(nova, instance)
    eventually(lambda: settled(database))
    assert manager.active(machine) == []


@pytest.mark.proves("nvidia_gpu_driver", "bind", by="simulated")
def test_partitions_of_guests_are_activated_again_and_others_are_ended(
    compute: ComputeHost, arqs: Callable[[], Arqs], nova: Client, manager: FabricManager
) -> None:
    """Neither a reboot nor a start of Fabric Manager leaves a partition active."""
    machine = compute.machine
    boot(compute, nova, arqs(), LOW)
    manager.restart(machine)
    eventually(lambda: manager.active(machine) == [LOW])
    compute.stop()
    shut_down(compute)
    manager.restart(machine)
    compute.start()
    eventually(lambda: manager.active(machine) == [LOW])
    manager.set(machine, HIGH, active=True)
    eventually(lambda: manager.active(machine) == [LOW])


@pytest.mark.proves("nvidia_gpu_driver", "cleaning", by="simulated")
def test_units_are_in_quarantine_while_their_partition_cannot_be_deactivated(
    compute: ComputeHost,
    arqs: Callable[[], Arqs],
    nova: Client,
    manager: FabricManager,
    placement: PlacementService,
    *,
    database: Database,
) -> None:
    instance = boot(compute, nova, arqs(), LOW)
    shut_down(compute)
    manager.broken.add(LOW)
    delete_arqs(nova, instance)

    def quarantined() -> bool:
        hasten(database)
        return list(handle_states(database).values()).count("quarantined") == SIZE

    eventually(quarantined)
    eventually_offered(placement, provider(compute, LOW), 0)
    manager.broken.clear()
    eventually(lambda: settled(database))
    assert manager.active(compute.machine) == []
    eventually_offered(placement, provider(compute, LOW), SIZE)
