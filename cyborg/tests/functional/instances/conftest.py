# SPDX-License-Identifier: Apache-2.0
"""A cloud of its own: two devices that may be shared, a Nova, and conductors that ask it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import service
from cyborg.conductor.leases import ConductorLease
from cyborg.db.engine import Database
from cyborg.db.models import Instance
from cyborg.db.services import Process
from cyborg.tests.fixtures.fake_servers import Guest
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.http import Client, open_client
from cyborg.tests.functional.life.steps import bind, create

HOST = "compute-of-cards.example.org"
_UNITS = 32


@dataclass
class Cloud:
    """One compute with two devices of many units; ``admin`` sees all of it."""

    stack: Stack
    database: Database
    nova: SimulatedNova
    admin: Client
    conductor: service.Daemon
    profile: str = field(init=False)
    servers: dict[str, Guest] = field(default_factory=dict)

    def fill(self) -> None:
        """Report the devices, and make a profile for one unit."""
        self.stack.report(HOST, report_of(HOST, 2, handles=_UNITS))
        self.profile = self.admin.make_profile({f"resources:{RESOURCE_CLASS}": "1"})

    def as_(self, role: str, project: str | None = None) -> Client:
        """Somebody else; of the admin's project unless another is given."""
        return replace(self.admin, role=role, project=project or self.admin.project)

    def boot(self, project: str, name: str = "", *, known: bool = True, device: int = 0) -> str:
        """A server of a project with one unit of a device; Nova may know nothing of it."""
        instance = str(uuid4())
        if known:
            self.servers[instance] = self.nova.own(instance, project, HOST)
            self.servers[instance].name = name
        self.bind(project, instance, device)
        return instance

    def bind(self, project: str, instance: str, device: int = 0) -> None:
        """What Nova's conductor does at a boot."""
        user = replace(self.as_("member", project), version=None, service=True)
        arqs = create(user, self.profile)
        bind(user, arqs, provider_of(HOST, device), host=HOST, instance=instance)

    def delete(self, instance: str, project: str) -> None:
        """What Nova does when a server is deleted, or shelved."""
        user = self.as_("member", project).with_service_token()
        user.delete(f"/accelerator_requests?instance={instance}")

    def shown(self, who: Client | None = None) -> dict[str, dict[str, Any]]:
        """The instances of all devices that somebody sees, by uuid."""
        devices = (who or self.admin).get("/devices")["devices"]
        return {user["uuid"]: user for one in devices for user in one["instances"]}

    def kept(self, instance: str) -> tuple[Any, ...]:
        """What the database has of an instance beside its owner: name, status, when, asked."""
        columns = (Instance.name, Instance.status, Instance.seen_ms, Instance.look_ms)
        with self.database.reader() as tx:
            return tuple(tx.execute(sa.select(*columns).where(Instance.uuid == instance)).one())


@pytest.fixture
def nova() -> Iterator[SimulatedNova]:
    with SimulatedNova() as one:
        yield one


@pytest.fixture
def make_cloud(
    stack: Stack, nova: SimulatedNova, own_database: Database
) -> Iterator[Callable[..., Cloud]]:
    """Start an API and a conductor, which does not ask Nova when ``refresh`` is 0.

    ``first`` is a conductor that was there before.
    """
    with stack.beside(own_database, peers=replace(stack.peers, nova=nova.adapter)) as own:

        def make(refresh: float = 0.2, first: Process | None = None) -> Cloud:
            if first is not None:
                ConductorLease(db=own_database, process=first).renew()
            own.times = replace(own.times, instance_refresh=refresh)
            conductor = own.start_conductor("control-0")
            admin = open_client(own, "admin", version="2.100")
            cloud = Cloud(own, own_database, nova, admin, conductor)
            cloud.fill()
            return cloud

        yield make
        # A conductor that ends waits for the question that it has under way.
        nova.shows.release()


@pytest.fixture
def cloud(make_cloud: Callable[..., Cloud]) -> Cloud:
    """One whose conductor asks all the time."""
    return make_cloud()
