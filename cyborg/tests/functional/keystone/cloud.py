# SPDX-License-Identifier: Apache-2.0
"""A cloud of real Keystone, real Placement and this service with one host and a fake device.

In a full run with a broker the service runs as the three daemons, else in this process.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import requests
from oslo_config import cfg

from cyborg import conf as configuration
from cyborg.api import app
from cyborg.conf import generic
from cyborg.db.engine import Database, Reader
from cyborg.model.process import API
from cyborg.model.provider import provider_uuid
from cyborg.rpc.conductor import ConductorClient
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.keystone import Account, KeystoneService
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.fixtures.stack import Stack, reach
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.deployments import merged


@dataclass(frozen=True)
class People:
    """Who uses the cloud; manager, member and reader belong to one project."""

    admin: Account
    operator: Account
    manager: Account
    member: Account
    reader: Account
    stranger: Account
    nova: Account


def people(keystone: KeystoneService) -> People:
    """The accounts, made in Keystone."""
    return People(
        admin=keystone.make_account("admin", "admin", "admin"),
        operator=keystone.make_account("otto", "ops", "accelerator_operator"),
        manager=keystone.make_account("mary", "blue", "manager"),
        member=keystone.make_account("bob", "blue", "member"),
        reader=keystone.make_account("rita", "blue", "reader"),
        stranger=keystone.make_account("greta", "green", "member"),
        nova=keystone.make_account("nova", "service", "service"),
    )


def authentication(keystone: KeystoneService) -> Options:
    """What the API needs to ask Keystone."""
    return keystone.authentication(keystone.make_account("cyborg", "service", "service"))


#: The devices of the host that the generic driver may have; no request can name them. Servers of
#: the members' project have a unit of the first one.
HELD, SPARE = "0000:0a:00.0", "0000:0b:00.0"
SECTION: Options = {"generic_driver:soft": {"devices": f"{HELD},{SPARE}"}}
#: Runs an API with further options and gives its URL, without a version.
RunApi = Callable[..., AbstractContextManager[str]]


@contextmanager
def in_process(options: Options, host: str, directory: Path, stack: Stack) -> Iterator[RunApi]:
    """Conductor and agent of ``host`` in this process; gives what runs an API with them."""
    stack.start_conductor()
    client = reach(ConductorClient(stack.bus(), timeout=stack.times.rpc))

    @contextmanager
    def api(*more: Options) -> Iterator[str]:
        deployment = Deployment(_fresh(directory), merged(options, *more))
        conf = configuration.prepare(
            [], prog=API, default_config_files=[str(deployment.conf)], conf=cfg.ConfigOpts()
        )
        reader = Reader(stack.database_url)
        with Loopback(app.build(conf, reader=reader, conductor=client)) as loopback:
            yield loopback.url
        reader.close()

    [(group, section)] = SECTION.items()
    stack.conf.register_opts(generic.backend_options(), group=group)
    for name, value in section.items():
        stack.conf.set_override(name, str(value).split(","), group=group)
    stack.conf.set_override("host", host)
    stack.start_agent(host, machine=FakeHost(), state_path=directory)
    yield api
    client.close()
    stack.stop()
    stack.conf.clear_override("host")
    for name in section:
        stack.conf.clear_override(name, group=group)


@contextmanager
def daemons(options: Options, directory: Path) -> Iterator[RunApi]:
    """A conductor and an agent as processes; gives what runs an API as another one."""

    @contextmanager
    def api(*more: Options) -> Iterator[str]:
        with Deployment(_fresh(directory), merged(options, *more)) as front:
            yield front.api()[1]

    with Deployment(_fresh(directory), merged(options, SECTION)) as behind:
        behind.conductor()
        behind.agent()
        yield api


@dataclass(frozen=True)
class Cloud:
    """All of it, running; ``url`` is that of the API in the catalogue, without a version."""

    keystone: KeystoneService
    people: People
    host: str
    url: str
    api: RunApi
    database: Database

    @property
    def provider(self) -> str:
        """The resource provider of the host's fake device."""
        return provider_uuid(f"{self.host.replace('.', '_')}_FakeDevice")

    def ask(
        self,
        path: str,
        token: str | None = None,
        *,
        service_token: str | None = None,
        method: str = "GET",
        body: Any = None,
        url: str | None = None,
        version: str | None = None,
    ) -> requests.Response:
        """One request below /v2, with these tokens; the answer whatever it is."""
        headers = {
            "X-Auth-Token": token,
            "X-Service-Token": service_token,
            "OpenStack-API-Version": version and f"accelerator {version}",
        }
        return requests.request(
            method,
            f"{url or self.url}/v2{path}",
            headers={name: value for name, value in headers.items() if value is not None},
            json=body,
            timeout=PATIENCE,
        )


def _fresh(directory: Path) -> Path:
    made = directory / uuid4().hex[:8]
    made.mkdir()
    return made
