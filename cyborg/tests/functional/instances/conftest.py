# SPDX-License-Identifier: Apache-2.0
"""A cloud of its own: two devices that may be shared, a Nova, and conductors that ask it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
import webtest
from oslo_middleware import RequestId

from cyborg import service
from cyborg.api import app as api_app
from cyborg.conductor.leases import ConductorLease
from cyborg.db import schema
from cyborg.db.engine import Database, Reader
from cyborg.db.models import Instance
from cyborg.db.services import Process
from cyborg.model.report import AgentHeartbeat
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import Heartbeat, SendReport
from cyborg.tests.fixtures.fake_servers import Guest
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.stack import Stack, reach
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import bind, create
from cyborg.tests.functional.schema.databases import empty_database

HOST = "compute-of-cards.example.org"
_UNITS = 32


@dataclass
class Cloud:
    """One compute with two devices of many units; ``admin`` sees all of it."""

    stack: Stack
    database: Database
    nova: SimulatedNova
    admin: Client
    profile: str = field(default_factory=lambda: f"profile-{uuid4().hex[:12]}")
    servers: dict[str, Guest] = field(default_factory=dict)
    conductors: list[service.Daemon] = field(default_factory=list)

    def start_conductor(self, refresh: float = 0.2) -> service.Daemon:
        """One that asks Nova again after ``refresh`` seconds."""
        times = replace(self.stack.times, instance_refresh=refresh)
        name = f"control-{len(self.conductors)}"
        self.conductors.append(replace(self.stack, times=times).start_conductor(name))
        return self.conductors[-1]

    def fill(self) -> None:
        """Report the devices, and make a profile for one unit."""
        sender = f"agent@{HOST}"
        client = ConductorClient(self.stack.bus(), timeout=60.0, sender=sender)
        with closing(reach(client)) as agent:
            epoch = agent.request(Heartbeat(AgentHeartbeat(HOST, (HOST,), "0", sender, None))).epoch
            agent.request(SendReport(HOST, epoch, report_of(HOST, 2, handles=_UNITS)))
        groups = [{f"resources:{RESOURCE_CLASS}": "1"}]
        self.admin.post("/device_profiles", [{"name": self.profile, "groups": groups}])

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
def make_cloud(stack: Stack, nova: SimulatedNova, tmp_path: Path) -> Iterator[Callable[..., Cloud]]:
    """Start an API and a conductor, which does not ask Nova when ``refresh`` is 0.

    ``first`` is a conductor that was there before.
    """
    with ExitStack() as endings:

        def make(refresh: float = 0.2, first: Process | None = None) -> Cloud:
            database = endings.enter_context(empty_database(tmp_path))
            schema.upgrade(database)
            if first is not None:
                ConductorLease(db=database, process=first).renew()
            own = replace(
                stack,
                database_url=database.engine.url.render_as_string(hide_password=False),
                exchange=f"cyborg-{uuid4().hex[:12]}",
                peers=replace(stack.peers, nova=nova.adapter),
                _endings=[],
            )
            endings.callback(own.stop)
            # A conductor that ends waits for the question that it has under way.
            endings.callback(nova.shows.release)
            reader = endings.enter_context(closing(Reader(own.database_url)))
            client = ConductorClient(own.bus(), timeout=own.times.rpc)
            endings.callback(client.close)
            wsgi = RequestId(api_app.core(own.conf, reader=reader, conductor=client))
            admin = Client(webtest.TestApp(wsgi), role="admin", version="2.4")
            cloud = Cloud(own, database, nova, admin)
            cloud.start_conductor(refresh)
            reach(client)
            cloud.fill()
            return cloud

        yield make


@pytest.fixture
def cloud(make_cloud: Callable[..., Cloud]) -> Cloud:
    """One whose conductor asks all the time."""
    return make_cloud()
