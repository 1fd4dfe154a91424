# SPDX-License-Identifier: Apache-2.0
"""One API, one conductor and one compute with three kinds of accelerators, in one thread's hand.

Put together as the composition roots do, on the bus without a wire; nothing happens unless the
story has it happen, so that each run is like the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
import webtest
from oslo_config import cfg

from cyborg.api.middleware import auth_token
from cyborg.conductor.jobs import read_instances
from cyborg.db import readings
from cyborg.db.models import Device
from cyborg.drivers.base import Driver
from cyborg.drivers.command import Completed
from cyborg.drivers.fake import FakeDriver
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.loader import LoadResult
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import ApiHeartbeat
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.single_step import Environment, OneOfEach
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.life.cards import CARD, CardDriver, Rack, Traits
from cyborg.tests.unit.drivers.configured import written

VERSION: Final = "18.0.0"
#: Where clients of the samples find the service.
PLACE: Final = {
    "HTTP_HOST": "cloud.example.com",
    "wsgi.url_scheme": "https",
    "SCRIPT_NAME": "/accelerator",
}
GPU, OTHER_GPU = "0000:3b:00.0", "0000:86:00.0"
GPUS: Final = "CUSTOM_GPU_A100"
#: Graphics cards that a host sets up, and a backend on which operators create accelerators.
_OPTIONS: Final = """\
[generic_driver]
backends = gpu, soft
[generic_driver:gpu]
pci_ids = 10de:20b5
device_type = GPU
kind = CUDA
attach_type = PCI
resource_class = CUSTOM_GPU_A100
traits = CUSTOM_CUDA_8
vendor = NVIDIA
model = A100 80GB
services = nvidia-persistenced
service_file = /run/{service}.pid
capabilities = {"memory_gib": 80}
install_command = /usr/sbin/gpu setup {address}
ready_file = /run/gpu/{address}
prepare_command = /usr/sbin/gpu give {handle}
prepared_file = /run/gpu/given-{handle}
release_command = /usr/sbin/gpu take {handle}
reset_command = /usr/sbin/gpu wipe {handle}
health_command = /usr/sbin/gpu check {address}
[generic_driver:soft]
devices = 0000:0a:00.0
device_type = FPGA
kind = FPGA
attach_type = TEST_PCI
resource_class = FPGA
"""
_FAULTY: Final = "/run/gpu/faulty-"
#: The root ports above the graphics cards.
_PORT, _OTHER_PORT = "0000:3a:00.0", "0000:85:00.0"
#: More turns than any step of the story takes.
_TURNS = 30


class FpgaDriver(CardDriver):
    """Cards that images can be loaded into."""

    name = "fpga_driver"
    device_type = "FPGA"


def _card(host: FakeHost, argv: tuple[str, ...]) -> Completed:
    """The operator's program."""
    if argv[1] == "setup":
        host.add_file(f"/run/gpu/{argv[2]}", "")
    if argv[1] == "give":
        host.add_file(f"/run/gpu/given-{argv[2]}", "")
    if argv[1] == "take":
        host.remove(f"/run/gpu/given-{argv[2]}")
    if argv[1] == "check" and host.exists(f"{_FAULTY}{argv[2]}"):
        return Completed(1, "", "XID 79: the GPU has fallen off the bus")
    return Completed(0, "", "")


@dataclass(frozen=True)
class Site:
    """The whole, as clients meet it."""

    rack: Rack
    processes: OneOfEach
    conf: cfg.ConfigOpts

    @property
    def compute(self) -> str:
        """The host of the agent."""
        return self.rack.compute

    @property
    def bus(self) -> ConductorClient:
        """How the API reaches the conductor."""
        return self.processes.api.conductor

    @property
    def http(self) -> webtest.TestApp:
        """The API as clients meet it."""
        return mounted(self.processes.api.app)

    def guarded(self) -> webtest.TestApp:
        """The same API as ``http``, behind the filter that asks for a token."""
        url = "https://cloud.example.com/identity"
        keystone = {"www_authenticate_uri": url, "auth_type": "password", "auth_url": url}
        return mounted(auth_token.protect(self.processes.api.core, self.conf, overrides=keystone))

    def begin(self) -> None:
        """Everybody is up and has said so; there are two graphics cards and an FPGA."""
        self.processes.begin()
        self.signal("control-1")
        for _ in range(2):
            self.run_once()

    def signal(self, host: str) -> None:
        """The sign of life of an API process."""
        self.bus.request(
            ApiHeartbeat(host, version=VERSION, endpoint="https://cloud.example.com/accelerator")
        )

    def run_once(self) -> None:
        """The agent's round."""
        self.processes.agent.run_once()

    def check(self, address: str, *, faulty: bool) -> None:
        """Have the agent ask for the health of a graphics card that is faulty or not."""
        if faulty:
            self.rack.machine.add_file(f"{_FAULTY}{address}", "")
        else:
            self.rack.machine.remove(f"{_FAULTY}{address}")
        self.processes.agent.parts.checks.after_set_up(GenericDriver.name, address)
        self.run_once()

    def measure(self, address: str, figures: Mapping[str, float]) -> None:
        """Let a graphics card have measured something."""
        card = sa.select(Device.host_id, Device.uuid).where(Device.device_key == address)
        with self.processes.conductor.db.writer() as tx:
            host_id, uuid = tx.execute(card).one()
            readings.store(tx, host_id, {uuid: figures})

    def work(self) -> None:
        """Let all that is due be done, the agent's part as well, until nothing is left."""
        for _ in self.processes.environment.turns(_TURNS):
            self.processes.conductor.run_worker()
            self.run_once()
        self.run_once()

    def ask_nova(self) -> None:
        """Learn how the instances are called."""
        self.processes.conductor.renew()
        read_instances(self.processes.conductor.ctx)

    def pass_time(self, seconds: float) -> None:
        """Who is silent all the while is down afterwards; conductor and agent are not."""
        self.processes.environment.clock.ms += int(seconds * 1000)
        self.processes.conductor.renew()
        self.run_once()


def described_site(
    environment: Environment, conf: cfg.ConfigOpts, files: Path, compute: str
) -> Site:
    """Return the site; nobody runs before it begins."""
    rack = _rack(compute)
    # A hint that is lost costs a heartbeat; one that comes costs this story its order.
    environment.exchange.lose_request("desired_changed", 1000)
    conductor = environment.conductor(
        "control-1",
        version=VERSION,
        bind_timeout=PATIENCE,
        instance_refresh=0.001,
        instance_interval=PATIENCE,
        auto_enable=frozenset({FpgaDriver.name}),
    )
    options = written(files / "cyborg.conf", _OPTIONS, host=compute)
    loaded = [
        _packaged(GenericDriver(rack.machine, options), "generic:GenericDriver"),
        _packaged(rack.driver, "fpga:FpgaDriver"),
    ]
    later = _packaged(FakeDriver(rack.machine, options), "fake:FakeDriver")
    packages = {one.name: one for one in (*loaded, later)}
    agent = environment.agent(
        compute,
        *loaded,
        load=lambda name, _options: packages[name],
        prompt=True,
        machine=rack.machine,
        version=VERSION,
        health_interval=60.0,
    )
    return Site(rack, OneOfEach(environment, conductor, agent, environment.api(conf)), conf)


def mounted(application: Any) -> webtest.TestApp:
    """Return an application where clients look for it."""

    def placed(environ: dict[str, Any], start_response: Any) -> Any:
        return application({**environ, **PLACE}, start_response)

    return webtest.TestApp(placed)


def _packaged(driver: Driver, where: str) -> LoadResult:
    return LoadResult(driver.name, driver, endpoint=f"cyborg.drivers.{where}", version=VERSION)


def _rack(compute: str) -> Rack:
    """The machine with all that is plugged in."""
    machine = servers.bare()
    machine.add_dir("/cards")
    machine.programs["/usr/sbin/gpu"] = _card
    machine.add_file("/run/nvidia-persistenced.pid", "1723")
    for slot, (address, port) in enumerate(((GPU, _PORT), (OTHER_GPU, _OTHER_PORT)), start=1):
        servers.add_function(machine, port, "8086:2030:060400", driver="pcieport", node=0)
        path = servers.add_function(
            machine, address, "10de:20b5:030200", behind=port, driver="nvidia", node=0
        )
        machine.add_file(f"{path}/serial_number", f"48-b0-2d-ff-ff-12-34-{slot:02x}\n")
        machine.add_file(f"/sys/bus/pci/slots/{slot}/address", f"{address.partition('.')[0]}\n")
    traits = Traits("FPGA", programmable=True)
    rack = Rack(compute, machine, FpgaDriver(machine, compute, traits))
    rack.plug(CARD, 1)
    return rack
