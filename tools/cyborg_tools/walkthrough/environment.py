# SPDX-License-Identifier: Apache-2.0
"""Start the three daemons, the agent on two hosts, and their peers.

With ``--tls`` the servers are those of ``SecuredServers``; else those that the plan names.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cyborg import exception
from cyborg.drivers.host import LocalHost
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.fixtures.accelerators import AcceleratorClient, Exchange, NovaFault
from cyborg.tests.fixtures.compute import ComputeWalk
from cyborg.tests.fixtures.processes import Deployment, Options, Program
from cyborg_tools.servers import Cloud, deployed, upgrade
from cyborg_tools.walkthrough.keys import Keys
from cyborg_tools.walkthrough.secured import PROJECT, SecuredServers

#: The host of the steps, and the host that fails.
RACK, SPARE = "compute-1", "compute-2"
DRIVER = "generic_driver"
#: The backends of the first host, and the devices on them by address.
CRYPTO, SOFT = "crypto", "soft"
CARDS = ("0000:0a:00.0", "0000:0b:00.0")
CRYPTO_CLASS, SOFT_CLASS = "CUSTOM_CRYPTO", "CUSTOM_SOFT"
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


class WalkedCloud(Cloud):
    """The daemons by their names; ``listener`` gets each request of Nova to the API."""

    name, host = "cyborg_walkthrough", "control"
    computes: tuple[str, ...] = (RACK, SPARE)

    def __init__(
        self, plan: argparse.Namespace, place: Place, listener: Callable[[Exchange], None]
    ) -> None:
        super().__init__(plan, place.directory)
        self.place = place
        self.agents: dict[str, Program] = {}
        self.daemons: dict[str, Program] = {}
        self._listener = listener
        self.project = PROJECT
        self.secured: SecuredServers | None = None
        self.keys: Keys | None = None

    @property
    def more(self) -> Options:
        return {"DEFAULT": {"periodic_interval": 2}, "agent": {"heartbeat_interval": 2}}

    @property
    def operator(self) -> Mapping[str, str]:
        """The variables with which somebody uses the commands."""
        if self.secured is None:
            return {"OS_AUTH_TYPE": "none", "OS_ENDPOINT": self.url}
        return self.secured.operator()

    def options(self, endings: ExitStack) -> dict[str, dict[str, object]]:
        if self.secured is None:
            return super().options(endings)
        self.placement_url = self.secured.join(self.placement, self.nova.url, endings)
        options = self.secured.controllers()
        options["DEFAULT"] |= {"host": self.host, "state_path": self.directory / self.host}
        return options

    def start(self, endings: ExitStack) -> None:
        """See Started; requests of daemons before the conductor runs are repeated."""
        if self.plan.tls:
            servers = SecuredServers(self.directory / "servers", self.computes)
            self.secured = endings.enter_context(servers)
            self.certificate = servers.certificate
            self.keys = servers.keys
        super().start(endings)
        self.hosts = self._hosts(endings)
        self.daemons = {
            CONDUCTOR: self.deployment.begin(CONDUCTOR),
            API: self.deployment.begin(API, {"api": {"port": 0}}),
        }
        for host in self.drivers():
            self.agents[host] = self.hosts.begin(AGENT, self.agent_options(host))
            self.daemons[f"{AGENT} on {host}"] = self.agents[host]
        try:
            for name, program in self.daemons.items():
                program.wait_for(f"{name.partition(' ')[0]} is running")
            port = self.daemons[API].wait_for(r"Listening on .*:(\d+)")[1]
        except RuntimeError as fault:
            raise exception.ConfigError(reason=f"A daemon does not start: {fault}") from None
        self._connect_nova(port)

    def drivers(self) -> dict[str, tuple[str, Options]]:
        """The drivers that the agent of each host has from the start, and its further options."""
        return {RACK: ("", self._generic()), SPARE: ("fake_driver", {})}

    def agent_options(self, host: str) -> Options:
        """The options of the agent of one host, besides those of all processes."""
        drivers, more = self.drivers()[host]
        return {
            "DEFAULT": self.identity(host),
            "agent": {"resource_provider_name": host, "enabled_drivers": drivers},
            **more,
        }

    def identity(self, host: str) -> dict[str, object]:
        """The options of the agent of one host that no other host has."""
        keys = self.keys and {"message_signing_key_file": self.keys.file(host)}
        return {"host": host, "state_path": self.directory / host, **(keys or {})}

    def _hosts(self, endings: ExitStack) -> Deployment:
        """What agents run on. With TLS they have a configuration of their own, as in a cloud."""
        if self.secured is None:
            return self.deployment
        upgrade(self.deployment)
        options = self.secured.agents()
        for group, values in self.more.items():
            options.setdefault(group, {}).update(values)
        place = self.directory / "hosts"
        place.mkdir()
        return deployed(place, options, endings)

    def _connect_nova(self, port: str) -> None:
        scheme, user, service = "http", None, None
        if self.secured is not None:
            scheme, (user, service) = "https", self.secured.tokens()
            self.secured.keystone.register("accelerator", f"https://127.0.0.1:{port}/v2")
            self.project = self.secured.keystone.project_id(PROJECT)
        self.url = f"{scheme}://127.0.0.1:{port}"
        api, verify = f"{self.url}/v2", self.placement.verify
        nova = AcceleratorClient(api, user, service, self._listener, verify=verify)
        self.compute = ComputeWalk(nova, self.placement, self.nova, project=self.project)
        quiet = AcceleratorClient(api, user, service, verify=verify)

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
