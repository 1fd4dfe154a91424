# SPDX-License-Identifier: Apache-2.0
"""Start the three daemons, the agent on two hosts, and their peers."""

import argparse
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
from cyborg.tests.fixtures.processes import Options, Program
from cyborg_tools.servers import Cloud

#: The host of the steps, and the host that fails.
RACK, SPARE = "compute-1", "compute-2"
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
        return self.directory / f"set-up-{address}"


class Environment(Cloud):
    """The daemons by their names; ``listener`` gets each request of Nova to the API."""

    name, computes, host = "cyborg_walkthrough", (RACK, SPARE), "control"

    def __init__(
        self, plan: argparse.Namespace, place: Place, listener: Callable[[Exchange], None]
    ) -> None:
        super().__init__(plan, place.directory)
        self.place = place
        self.agents: dict[str, Program] = {}
        self.daemons: dict[str, Program] = {}
        self._listener = listener

    @property
    def more(self) -> Options:
        return {"DEFAULT": {"periodic_interval": 2}, "agent": {"heartbeat_interval": 2}}

    def start(self, endings: ExitStack) -> None:
        """See Environment; requests of daemons before the conductor runs are repeated."""
        super().start(endings)
        self.daemons = {
            CONDUCTOR: self.deployment.begin(CONDUCTOR),
            API: self.deployment.begin(API, {"api": {"port": 0}}),
        }
        # The second host has a driver from the start.
        for host, drivers, more in ((RACK, "", self._generic()), (SPARE, "fake_driver", {})):
            own: Options = {
                "DEFAULT": {"host": host, "state_path": self.directory / host},
                "agent": {"resource_provider_name": host, "enabled_drivers": drivers},
            }
            self.agents[host] = self.deployment.begin(AGENT, {**own, **more})
            self.daemons[f"{AGENT} on {host}"] = self.agents[host]
        try:
            for name, program in self.daemons.items():
                program.wait_for(f"{name.partition(' ')[0]} is running", _PATIENCE)
            port = self.daemons[API].wait_for(r"Listening on .*:(\d+)", _PATIENCE)[1]
        except RuntimeError as fault:
            raise exception.ConfigError(reason=f"A daemon does not start: {fault}") from None
        self.url = f"http://127.0.0.1:{port}"
        api = f"{self.url}/v2"
        nova = AcceleratorClient(api, listener=self._listener)
        self.compute = ComputeWalk(nova, self.placement, self.nova)
        quiet = AcceleratorClient(api)

        def listed(instance: str) -> list[str]:
            """What nova-compute is answered; nothing is an error there, and here an empty list."""
            try:
                return [one["uuid"] for one in quiet.arqs_of(instance)]
            except NovaFault:
                return []

        self.nova.guests.listed = listed

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
