# SPDX-License-Identifier: Apache-2.0
"""Users with real tokens, a generic driver and a server."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import sqlalchemy as sa
import yaml

from cyborg.db.models import Service
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.accelerators import AcceleratorClient
from cyborg.tests.fixtures.compute import ComputeWalk, Server
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.keystone.cloud import HELD, SPARE, Cloud
from cyborg.tests.functional.keystone.shell import cyborg
from cyborg.tests.functional.life.steps import eventually_offered
from cyborg.tests.unit.cli.conftest import CommandResult

NEWEST: Final = "2.100"
DRIVER: Final = "generic_driver"
#: Installed, changed and removed; it finds nothing.
IDLE: Final = "pci_driver"


@dataclass
class UserSessions:
    """The sessions of all users; ``tokens`` by name. Each user logs in once."""

    cloud: Cloud
    tokens: dict[str, str]

    def cyborg(self, who: str, command: str, *arguments: str) -> CommandResult:
        """One command of the ``cyborg`` program, in this process."""
        return cyborg(who, command, *arguments)

    def do(self, command: str, *arguments: str) -> Any:
        """What an operator's command shows; it must succeed."""
        return self.cyborg("operator", f"{command} -f json", *arguments).json

    def rows(self, noun: str, **terms: Any) -> list[dict[str, Any]]:
        """What the API lists to the administrator, as far as it has these values."""
        answer = self.cloud.ask(f"/{noun}", self.tokens["admin"], version=NEWEST)
        assert answer.status_code == 200, answer.text
        listed: list[dict[str, Any]] = next(iter(answer.json().values()))
        return [one for one in listed if terms.items() <= one.items()]

    def of_instance(self, instance: str) -> list[dict[str, Any]]:
        """The ARQs that Nova would be handed for a server."""
        path = f"/accelerator_requests?instance={instance}"
        arqs: list[dict[str, Any]] = self.cloud.ask(path, self.tokens["admin"]).json()["arqs"]
        return arqs


@dataclass
class Scenario:
    """What commands are about: a server with a unit of one device, and another device.

    Devices are told by uuid; what is attached may come from either.
    """

    sessions: UserSessions
    server: Server
    profile: str
    held: str
    spare: str

    @property
    def host(self) -> str:
        return self.sessions.cloud.host

    @property
    def agent(self) -> str:
        """The uuid of the agent's row."""
        return str(self._only("services", binary="cyborg-agent", host=self.host)["uuid"])

    @property
    def driver(self) -> str:
        return str(self._only("drivers", name=DRIVER)["uuid"])

    @property
    def backend(self) -> str:
        return str(self._only("backends", driver=DRIVER)["uuid"])

    @property
    def hardware(self) -> str:
        return str(self.sessions.rows("hardware", driver=DRIVER)[0]["uuid"])

    @property
    def arq(self) -> str:
        return str(self.server.arqs[0]["uuid"])

    def operation(self) -> str:
        """One of the operator's."""
        return str(self.sessions.rows("operations")[0]["uuid"])

    def gone_process(self) -> str:
        """The uuid of a conductor that ended long ago."""
        uuid = str(uuid4())
        row = {"uuid": uuid, "host": f"dead-{uuid}", "binary": "cyborg-conductor", "process": "1"}
        with self.sessions.cloud.database.writer() as tx:
            tx.execute(sa.insert(Service).values(**row, status="READY", epoch=1, last_seen_ms=1))
        return uuid

    def new_profile(self) -> str:
        """The name of a profile that nobody uses."""
        name = f"profile-{uuid4().hex}"
        group = "resources:FPGA=1"
        assert self.sessions.cyborg("admin", "profile-create", name, "--group", group).status == 0
        return name

    def installed(self) -> str:
        """The idle driver, installed."""
        self.sessions.do(f"install-driver {IDLE} --host {self.host}")
        return IDLE

    def attached(self) -> str:
        """The server, with something attached."""
        if len(self.sessions.of_instance(self.server.uuid)) == 1:
            self.sessions.do(f"attach-instance {self.server.uuid}")
        return self.server.uuid

    def detach(self) -> None:
        """Nothing is attached any more."""
        self.sessions.do(f"detach-instance {self.server.uuid}")

    def _only(self, noun: str, **terms: Any) -> dict[str, Any]:
        (found,) = self.sessions.rows(noun, **terms)
        return found


def user_sessions(cloud: Cloud, place: Path) -> UserSessions:
    """Everybody at ``cyborg``; their tokens are in a ``clouds.yaml`` at ``place``."""
    tokens = {name: cloud.keystone.token(one) for name, one in vars(cloud.people).items()}
    clouds = {
        name: {
            "auth_type": "admin_token",
            "auth": {"endpoint": f"{cloud.url}/v2", "token": token},
        }
        for name, token in tokens.items()
    }
    place.write_text(yaml.safe_dump({"clouds": clouds}))
    return UserSessions(cloud, tokens)


@contextlib.contextmanager
def prepared_scenario(
    sessions: UserSessions, placement: PlacementService, nova: SimulatedNova
) -> Iterator[Scenario]:
    """The generic driver, installed by an operator, and a server of the members' project."""
    cloud, kind = sessions.cloud, f"CUSTOM_SOFT_{uuid4().hex[:12].upper()}"
    options = {
        "backends": "soft",
        "attach_type": "TEST_PCI",
        "units": "3",
        "resource_class": kind,
        "services": "cipher,compress",
    }
    given = [word for key, value in options.items() for word in ("--option", f"{key}={value}")]
    sessions.do(f"install-driver {DRIVER} --host {cloud.host}", *given)
    for address in (HELD, SPARE):
        provider = provider_uuid(f"{cloud.host}_{address}")
        eventually_offered(placement, provider, 3)
    profile = f"profile-{uuid4().hex}"
    made = sessions.cyborg("admin", "profile-create", profile, "--group", f"resources:{kind}=1")
    assert made.status == 0, made.err
    project = cloud.keystone.project_id(cloud.people.member.project)
    client = AcceleratorClient(
        f"{cloud.url}/v2", sessions.tokens["member"], sessions.tokens["nova"]
    )
    walk = ComputeWalk(client, placement, nova, project=project)
    nova.guests.listed = lambda uuid: [one["uuid"] for one in sessions.of_instance(uuid)]
    server = walk.boot(profile)
    (held,) = sessions.rows("devices", driver=DRIVER, in_use=True)
    (spare,) = sessions.rows("devices", driver=DRIVER, in_use=False)
    yield Scenario(sessions, server, profile, held["uuid"], spare["uuid"])
    nova.guests.listed = lambda _uuid: []
    walk.delete(server)
    assert sessions.cyborg("admin", "profile-delete", profile).status == 0
    # Others find the cloud as it was.
    for driver in (DRIVER, IDLE):
        if any(one["state"] != "STOPPED" for one in sessions.rows("drivers", name=driver)):
            sessions.do(f"uninstall-driver {driver}")
    eventually(lambda: sessions.rows("devices", driver=DRIVER) == [], "the devices are gone")
