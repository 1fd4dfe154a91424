# SPDX-License-Identifier: Apache-2.0
"""Run the daemons as processes, on separate servers, with their peers."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from cyborg import exception, service
from cyborg.clients.nova import Servers
from cyborg.clients.placement import Placement
from cyborg.conductor.audit.auditor import Auditor
from cyborg.db.engine import Reader
from cyborg.drivers.fake import FakeDriver
from cyborg.model.audit_findings import Ages
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.model.provider import provider_uuid
from cyborg.rpc.threads import in_thread
from cyborg.tests.fixtures import ports
from cyborg.tests.fixtures.broker import Tenant
from cyborg.tests.fixtures.keystone import ADMIN, KeystoneService
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.processes import Options, Program
from cyborg.tests.fixtures.proxy import Proxy
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg_tools.chaos import driver
from cyborg_tools.chaos.front import Front
from cyborg_tools.chaos.servers import MariaDb, RabbitMq, started
from cyborg_tools.program import Started
from cyborg_tools.servers import daemon_options, deployed, upgrade

HOST = "compute-1.example.org"
CARD, PROBED, SPARE = "CUSTOM_CHAOS", "CUSTOM_CHAOS_PROBED", "CUSTOM_CHAOS_SPARE"
PROBED_ADDRESS, SPARE_ADDRESS = "0000:8e:00.0", "0000:8f:00.0"
#: Cards by address: their resource class and units. Clients ask for CARD only: whoever is to be
#: interrupted must not queue behind them.
CARDS = {
    "0000:81:00.0": (CARD, 8),
    "0000:82:00.0": (CARD, 8),
    "0000:83:00.0": (CARD, 8),
    PROBED_ADDRESS: (PROBED, 4),
    SPARE_ADDRESS: (SPARE, 2),
}
#: Seconds that a card usually takes for a preparation.
USUAL = 0.1
#: Groups of the profiles that clients use, by name, and of the one for the run itself.
PROFILES: Mapping[str, Mapping[str, str]] = {
    "at-once": {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"},
    "prepared": {f"resources:{CARD}": "1"},
    "prepared-2": {f"resources:{CARD}": "2"},
}
PROBE: Mapping[str, Mapping[str, str]] = {"probed": {f"resources:{PROBED}": "1"}}
#: What is said of a disk that could not be made small.
NO_LIMIT = "not limited in size"
#: Seconds between two heartbeats of the agent of a night, whose silence shows in a short outage.
_HEARTBEAT = 3


class World(Started):
    """Everything that is broken, and everything that looks at it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state_path = directory / "agent-state"
        self.disk = NO_LIMIT
        self._running: dict[str, Program] = {}
        self._ports = {f"{API}-{number}": ports.reserved() for number in (1, 2)}
        self._extra: dict[str, Path] = {}
        self._vendor = driver.install(directory / "vendor")

    @property
    def urls(self) -> list[str]:
        """The APIs, without a version."""
        return [f"http://127.0.0.1:{port}" for port in self._ports.values()]

    @property
    def open_urls(self) -> list[str]:
        return self.urls

    @property
    def options(self) -> dict[str, dict[str, object]]:
        return {
            **daemon_options(
                host=HOST,
                transport=self.rabbit.url,
                state_path=self.directory,
                database=self.maria.url,
                placement=self.placement_front.url,
                nova=f"{self.nova_front.url}/v2.1",
            ),
            "agent": {"enabled_drivers": f"{FakeDriver.name},{driver.ChaosDriver.name}"},
            "conductor": {"auto_enable": "*"},
            "chaos": {"machine": self.machine.directory},
        }

    @property
    def own_options(self) -> dict[str, Options]:
        return {
            **{f"{CONDUCTOR}-{one}": {"DEFAULT": {"host": f"control-{one}"}} for one in (1, 2)},
            AGENT: {
                "DEFAULT": {"state_path": self.state_path},
                "agent": {"resource_provider_name": HOST},
            },
            **{name: {"api": {"port": port}} for name, port in self._ports.items()},
        }

    def make_profiles(self, profiles: Mapping[str, Mapping[str, str]]) -> None:
        """Write device profiles of one group each."""
        for name, group in profiles.items():
            body: list[Any] = [{"name": name, "groups": [group]}]
            answer = requests.post(
                f"{self.urls[0]}/v2/device_profiles", json=body, timeout=PATIENCE
            )
            answer.raise_for_status()

    def begin_all(self) -> None:
        conductors = [name for name in self._extra if name.startswith(CONDUCTOR)]
        # Conductors first: what asks before there is one has to ask again, seconds later.
        for group in (conductors, [name for name in self._extra if name not in conductors]):
            for name in group:
                self.begin(name)
            for name in group:
                self._wait(name)

    def stop_all(self) -> None:
        self._tell_to_end()
        for program in self._running.values():
            program.stop()

    def sizes(self) -> dict[Path, int]:
        """Return how many bytes the daemons have logged, by file: each start has its own."""
        return {file: file.stat().st_size for file in self.directory.glob("*.out")}

    def written_since(self, sizes: Mapping[Path, int]) -> dict[str, str]:
        """Return what each daemon has logged since then over all restarts, by its name."""
        return {
            name: "".join(
                file.read_bytes()[sizes.get(file, 0) :].decode(errors="replace")
                for file in self.directory.glob(f"{name}-*.out")
            )
            for name in self._extra
        }

    def program(self, name: str) -> Program:
        return self._running[name]

    def begin(self, name: str, *, wait: bool = False) -> None:
        """Start a daemon by its name (as ``cyborg-conductor-1``); raises ConfigError.

        With ``wait``, return when it runs.
        """
        command = name if name == AGENT else name.rpartition("-")[0]
        more = dict(self._vendor) if name == AGENT else {}
        if more and os.environ.get("PYTHONPATH"):
            more["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
        files = [str(self.deployment.conf), str(self._extra[name])]
        arguments = [part for file in files for part in ("--config-file", file)]
        self._running[name] = self.deployment.start(command, *arguments, log=name, **more)
        if wait:
            self._wait(name)

    def freeze(self, name: str) -> None:
        self.program(name).signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self.program(name).signal(signal.SIGCONT)

    def audit(self) -> subprocess.CompletedProcess[str]:
        """Run the operator's ``cyborg-audit`` to its end."""
        return self.deployment.run("cyborg-audit", "--format", "json")

    def provider(self, address: str) -> str:
        return provider_uuid(f"{HOST}_{address}")

    def offered(self, address: str) -> int:
        try:
            _, known = Placement(self.placement.adapter()).inventories(self.provider(address))
        except exception.NotFound:
            return 0
        return sum(int(one["total"]) - int(one["reserved"]) for one in known.values())

    def start(self, endings: ExitStack) -> None:
        # Servers first; RabbitMQ needs seconds in which the others can be made.
        self.rabbit = RabbitMq(self.directory / "rabbitmq")
        endings.callback(self.rabbit.close)
        self.rabbit.begin()
        self.maria = MariaDb(self.directory / "mariadb")
        self.maria.begin()
        endings.callback(self.maria.stop)
        self.machine = driver.Machine(self.directory / "machine")
        for address, (resource_class, units) in CARDS.items():
            self.machine.plug(address, resource_class, units=units, seconds=USUAL)
        (self.directory / "placement").mkdir()
        self.placement = endings.enter_context(PlacementService(self.directory / "placement"))
        # A compute that has processors for more servers than it has devices for.
        path = f"/resource_providers/{self.placement.make_compute(HOST)}/inventories/VCPU"
        generation = self.placement.call("GET", path)["resource_provider_generation"]
        body = {"resource_provider_generation": generation, "total": 256}
        self.placement.call("PUT", path, body)
        self.nova = endings.enter_context(SimulatedNova())
        self.placement_front = endings.enter_context(Front(self.placement.url))
        self.nova_front = endings.enter_context(Front(self.nova.url.removesuffix("/v2.1")))
        self._mount(endings)
        self.maria.wait()
        self.maria.make_database()
        self.reader = Reader(self.maria.url)
        endings.callback(self.reader.close)
        self.auditor = Auditor(
            db=self.reader,
            placement=Placement(self.placement.adapter()),
            servers=Servers(self.nova.adapter()),
            ages=Ages(),
        )
        self._start_daemons(endings)

    def _start_daemons(self, endings: ExitStack) -> None:
        self.deployment = deployed(self.directory, self.options, endings)
        upgrade(self.deployment)
        self.rabbit.wait()
        endings.callback(self._tell_to_end)
        for name, options in self.own_options.items():
            self._extra[name] = self.deployment.write(name, options)
        self.begin_all()
        if not service.wait_until(self._ready, timeout=PATIENCE, step=0.2):
            raise exception.ConfigError(reason="the service does not get ready; see its logs.")

    def _ready(self) -> bool:
        return all(self.offered(address) == units for address, (_, units) in CARDS.items()) and all(
            requests.get(f"{url}/healthcheck", timeout=PATIENCE).status_code == 200
            for url in self.urls
        )

    def _mount(self, endings: ExitStack) -> None:
        """A small disk of its own for the agent, where that is allowed."""
        self.state_path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(self.state_path)]
        with suppress(OSError):
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                self.disk = "a tmpfs of 256 KiB"
                unmount = ["umount", "-l", str(self.state_path)]
                endings.callback(subprocess.run, unmount, check=False)

    def _wait(self, name: str) -> None:
        """Wait until a daemon runs; raises ConfigError with its last words when it does not."""
        try:
            self.program(name).wait_for(r"cyborg-\w+ is running")
        except RuntimeError as fault:
            raise exception.ConfigError(reason=f"{name} does not start: {fault}") from None

    def _tell_to_end(self) -> None:
        """Stop all at the same time; frozen processes resume first."""
        for program in self._running.values():
            if program.running:
                program.signal(signal.SIGCONT)
                program.signal(signal.SIGTERM)


class NightWorld(World):
    """The cloud of the night: an account of its own on RabbitMQ, and a Keystone that can fail.

    The first API asks for no token, for the servers; the second asks Keystone, as in a cloud. Both
    show the details of their health check. The daemons reach Keystone through ``keystone``.
    """

    tenant: Tenant
    keystone: Proxy

    @property
    def open_urls(self) -> list[str]:
        return self.urls[:1]

    @property
    def options(self) -> dict[str, dict[str, object]]:
        account = self._account.options(self._keystone_url)
        common = super().options
        common["DEFAULT"] |= {"transport_url": self.tenant.url, "rpc_response_timeout": 5}
        common["api"]["auth_strategy"] = "keystone"
        common["agent"]["heartbeat_interval"] = _HEARTBEAT
        return common | {
            "healthcheck": {"detailed": True},
            "keystone_authtoken": dict(account),
            "nova": {**account, "endpoint_override": f"{self.nova_front.url}/v2.1"},
        }

    @property
    def own_options(self) -> dict[str, Options]:
        own = super().own_options
        return own | {f"{API}-1": {"api": {**own[f"{API}-1"]["api"], "auth_strategy": "noauth"}}}

    def token(self) -> str:
        """Return a new token of an administrator: the API has not validated it before."""
        return self._identity.token(ADMIN)

    @property
    def _keystone_url(self) -> str:
        return f"http://127.0.0.1:{self.keystone.port}/v3"

    def start(self, endings: ExitStack) -> None:
        directory = self.directory / "keystone"
        directory.mkdir()
        self._identity = KeystoneService(directory)
        endings.callback(self._identity.stop)
        # It takes seconds, as the other servers do.
        self._identity_runs = in_thread(self._identity.start, name="keystone")
        super().start(endings)

    def _start_daemons(self, endings: ExitStack) -> None:
        started(self._identity_runs)
        self._account = self._identity.make_account("cyborg", "service", "service", "admin")
        port = urlsplit(self._identity.url).port or 0
        self.keystone = endings.enter_context(Proxy("127.0.0.1", port))
        # The API takes the address for its validations from the catalogue.
        self._identity.register("identity", self._keystone_url)
        self.rabbit.wait()
        self.tenant = endings.enter_context(Tenant(self.rabbit.url, self.rabbit.control))
        self.tenant.add_user(self.tenant.password)
        self.tenant.add_vhost()
        self.tenant.permit()
        super()._start_daemons(endings)
