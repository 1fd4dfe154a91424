# SPDX-License-Identifier: Apache-2.0
"""Start the three daemons, the agent on two hosts, and their peers."""

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cyborg import exception
from cyborg.drivers.host import LocalHost
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.fixtures.accelerators import AcceleratorClient, Exchange, NovaFault
from cyborg.tests.fixtures.compute import ComputeWalk
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import TOKEN, PlacementService
from cyborg.tests.fixtures.processes import Deployment, Options, Program
from cyborg_tools.walkthrough import servers
from cyborg_tools.walkthrough.options import Plan

#: The host of the steps, the host that fails, and a host that does not exist.
RACK, SPARE, MISSING = "compute-1", "compute-2", "compute-3"
DRIVER = "generic_driver"
#: The backends of the first host, and the devices on them by address.
CRYPTO, SOFT = "crypto", "soft"
CARDS = ("0000:0a:00.0", "0000:0b:00.0")
CRYPTO_CLASS, SOFT_CLASS = "CUSTOM_CRYPTO", "CUSTOM_SOFT"
#: Timeout for the start of a daemon, in seconds.
_PATIENCE = 90.0
#: Where a file may be that root alone can change.
_ROOTS = (tempfile.gettempdir(), "/run", "/var/lib")


@dataclass(frozen=True)
class Place:
    """The directory of a run; ``trusted`` if root alone can change what is in it."""

    directory: Path
    trusted: bool

    @classmethod
    def make(cls) -> Self:
        """A new one, where commands in a configuration are trusted if there is such a place."""
        host, writable = LocalHost(), (one for one in _ROOTS if os.access(one, os.W_OK))
        parent = next((one for one in writable if host.owned_by_root(one)), None)
        made = tempfile.mkdtemp(prefix="cyborg-walkthrough-", dir=parent)
        return cls(Path(made).resolve(), parent is not None)

    def mark(self, address: str) -> Path:
        """The file that is there when a card is set up."""
        return self.directory / f"set-up-{address}"


class Environment:
    """Start everything in ``enter``; stop it by process id in ``exit``, after errors as well."""

    def __init__(self, plan: Plan, place: Place) -> None:
        self._plan = plan
        self.place = place
        self.nova = SimulatedNova()
        self.agents: dict[str, Program] = {}
        self.daemons: dict[str, Program] = {}
        self._listener: Callable[[Exchange], None] = lambda _exchange: None
        self._endings = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as endings:
            self._start(endings)
            self._endings = endings.pop_all()
        return self

    def __exit__(self, *_details: object) -> None:
        self._endings.close()

    def _start(self, endings: ExitStack) -> None:
        database = endings.enter_context(
            servers.database(self._plan.mysql_url, self.place.directory, "cyborg_walkthrough")
        )
        exchange = endings.enter_context(
            servers.exchange(self._plan.rabbit_url, RACK, SPARE, "control")
        )
        (self.place.directory / "placement").mkdir()
        self.placement = endings.enter_context(PlacementService(self.place.directory / "placement"))
        endings.enter_context(self.nova)
        for host in (RACK, SPARE):
            self.placement.make_compute(host)
        self.deployment = Deployment(self.place.directory, self._options(database, exchange))
        endings.callback(self.deployment.stop)
        self._start_daemons()
        api = f"{self.url}/v2"
        nova = AcceleratorClient(api, listener=lambda one: self._listener(one))
        self.compute = ComputeWalk(nova, self.placement, self.nova)
        quiet = AcceleratorClient(api)
        self.nova.guests.listed = lambda instance: _listed(quiet, instance)

    def listen(self, listener: Callable[[Exchange], None]) -> None:
        """Pass each request of Nova to the accelerator API to ``listener`` from now on."""
        self._listener = listener

    def _start_daemons(self) -> None:
        """Start all daemons; requests before the conductor runs are repeated."""
        self.daemons = {
            CONDUCTOR: self.deployment.begin(CONDUCTOR),
            API: self.deployment.begin(API, {"api": {"port": 0}}),
        }
        for host, more in ((RACK, self._generic()), (SPARE, {})):
            self.agents[host] = self.deployment.begin(AGENT, {**_agent(host, self.place), **more})
            self.daemons[f"{AGENT} on {host}"] = self.agents[host]
        try:
            for name, program in self.daemons.items():
                program.wait_for(f"{name.partition(' ')[0]} is running", _PATIENCE)
            found = self.daemons[API].wait_for(r"Listening on .*:(\d+)", _PATIENCE)
        except RuntimeError as fault:
            raise exception.ConfigError(reason=f"A daemon does not start: {fault}") from None
        self.url = f"http://127.0.0.1:{found[1]}"

    def _options(self, database: str, exchange: str) -> Options:
        return {
            "DEFAULT": {
                "host": "control",
                "transport_url": self._plan.rabbit_url,
                "control_exchange": exchange,
                "state_path": self.place.directory / "control",
                "periodic_interval": 2,
            },
            # The broker removes objects of a connection soon after it closes.
            "oslo_messaging_rabbit": {"rabbit_transient_queues_ttl": 60},
            "api": {"auth_strategy": "noauth"},
            "agent": {"heartbeat_interval": 2},
            "database": {"connection": database},
            "placement": {
                "auth_type": "admin_token",
                "endpoint": self.placement.url,
                "token": TOKEN,
            },
            "nova": {"auth_type": "none", "endpoint": self.nova.url},
        }

    def _generic(self) -> Options:
        """Two backends that no driver looks after yet; commands where they are trusted."""
        crypto: dict[str, object] = {
            "devices": ", ".join(CARDS),
            "attach_type": "TEST_PCI",
            "units": 2,
            "resource_class": CRYPTO_CLASS,
            "kind": "CRYPTO",
            "vendor": "example",
            "model": "crypto card",
            "services": "aes, rsa",
            "capabilities": '{"num": 2, "ipsec": {"aes": {"3des": 50, "num": 1}}}',
            "ready_file": self.place.mark("{address}"),
        }
        if self.place.trusted:
            crypto["install_command"] = f"{shutil.which('touch')} {self.place.mark('{address}')}"
        soft = {
            "devices": "0000:0c:00.0",
            "attach_type": "TEST_PCI",
            "resource_class": SOFT_CLASS,
            "services": "zip",
        }
        return {f"{DRIVER}:{CRYPTO}": crypto, f"{DRIVER}:{SOFT}": soft}


def _agent(host: str, place: Place) -> Options:
    """Return the options of one host; the second host has a driver from the start."""
    drivers = "fake_driver" if host == SPARE else ""
    return {
        "DEFAULT": {"host": host, "state_path": place.directory / host},
        "agent": {"resource_provider_name": host, "enabled_drivers": drivers},
    }


def _listed(client: AcceleratorClient, instance: str) -> list[str]:
    """What nova-compute is answered; nothing is an error there, and here an empty list."""
    try:
        return [one["uuid"] for one in client.arqs_of(instance)]
    except NovaFault:
        return []
