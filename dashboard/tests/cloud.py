# SPDX-License-Identifier: Apache-2.0
"""The cloud behind the panels: real Keystone and Placement, and this service with scenario hosts.

One process has the API, a conductor and an agent for each host; ``Front`` records the requests.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import requests
from oslo_config import cfg

from cyborg import conf as configuration
from cyborg.api import app
from cyborg.db.engine import Database
from cyborg.drivers.loader import load
from cyborg.model.process import API
from cyborg.testing import scenario_hosts
from cyborg.tests.fixtures import broker
from cyborg.tests.fixtures.accelerators import AcceleratorClient
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.keystone import KeystoneService
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, requested, shared, suffix
from cyborg.tests.fixtures.processes import Deployment
from cyborg.tests.fixtures.stack import Peers, Stack, Times
from cyborg.tests.fixtures.waiting import PATIENCE, eventually
from cyborg.tests.functional import deployments
from cyborg.tests.functional.keystone.cloud import People, authentication, people
from cyborg.tests.functional.schema.databases import upgraded_database
from cyborg.tests.unit.drivers.configured import written

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: The computes with the scenario host and the driver of each.
HOSTS = {
    "gpu-1.example.org": ("hgx-h200", "pci_driver"),
    "gpu-2.example.org": ("dgx-h100", "pci_driver"),
    "fpga-1.example.org": ("n6001", "generic_driver"),
}


@dataclass(frozen=True)
class Seen:
    """A request that reached the API."""

    method: str
    path: str
    query: str
    status: int


@dataclass
class Front:
    """The API with a record of its requests.

    With ``newest`` it answers as a service that has no later microversion does.
    """

    application: "WSGIApplication"
    seen: list[Seen] = field(default_factory=list)
    newest: str = ""

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """See WSGI."""
        if self.newest and "2.100" in environ.get("HTTP_OPENSTACK_API_VERSION", ""):
            start_response("406 Not Acceptable", [("Content-Type", "application/json")])
            return [b"{}"]
        place = (environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", ""))

        def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            self.seen.append(Seen(*place, int(status.split()[0])))
            if self.newest:
                headers = [pair for pair in headers if pair[0].lower() != "content-length"]
            return start_response(status, headers, *more)

        body = self.application(environ, started)
        if not self.newest:
            return body
        return [b"".join(body).replace(b'"2.100"', f'"{self.newest}"'.encode())]


@dataclass(frozen=True)
class Cloud:
    """All of it, running; ``url`` is that of the API, with its version."""

    keystone: KeystoneService
    placement: PlacementService
    nova: SimulatedNova
    people: People
    stack: Stack
    database: Database
    front: Front
    url: str
    computes: Mapping[str, ComputeHost]

    def send(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Send a request as the administrator at 2.100; raises AssertionError if it is refused."""
        answer = requests.request(
            method,
            f"{self.url}{path}",
            json=body,
            params=query,
            headers={
                "X-Auth-Token": self.keystone.token(self.people.admin),
                "OpenStack-API-Version": "accelerator 2.100",
            },
            timeout=PATIENCE,
        )
        assert answer.status_code < 400, answer.text
        return answer.json() if answer.content else None

    def devices(self, **query: Any) -> list[dict[str, Any]]:
        """Return devices, as the administrator sees them."""
        devices: list[dict[str, Any]] = self.send("GET", "/devices", **query)["devices"]
        return devices

    def profile(self, name: str, *groups: Mapping[str, str], **members: Any) -> str:
        """Make a device profile, and return its name."""
        self.send("POST", "/device_profiles", [{"name": name, "groups": list(groups), **members}])
        return name

    def server(self, profile: str, host: str, project: str = "blue") -> str:
        """Boot a server with a profile on a host, as Nova does; return its uuid."""
        project_id, instance = self.keystone.project_id(project), str(uuid4())
        nova = self._compute()
        self.nova.own(instance, project_id, node=host, profile=profile)
        groups = requested(nova.groups(profile))
        candidate = self.placement.candidates(groups, self.computes[host].root)[0]
        self.placement.allocate(instance, candidate, project_id)
        arqs = [arq["uuid"] for arq in nova.create(profile)]
        (provider,) = candidate.mappings[suffix(0)]
        nova.bind(instance, host, dict.fromkeys(arqs, provider))
        assert set(self.nova.wait_for_events(arqs).values()) == {"completed"}
        return instance

    def delete_server(self, instance: str) -> None:
        """Delete a server, as Nova does."""
        self._compute().delete_of(instance)
        self.placement.free(instance)
        self.nova.disown(instance)

    def _compute(self) -> AcceleratorClient:
        """Return Nova's client, for a member."""
        return AcceleratorClient(
            self.url,
            self.keystone.token(self.people.member),
            self.keystone.token(self.people.nova),
        )


@contextmanager
def running(directory: Path) -> Iterator[Cloud]:
    """Run a cloud whose hosts have reported their devices."""
    with ExitStack() as endings:
        place = directory / "keystone"
        place.mkdir()
        keystone = endings.enter_context(KeystoneService(place))
        placement = shared()
        nova = endings.enter_context(SimulatedNova())
        database = endings.enter_context(upgraded_database(directory))
        exchange = endings.enter_context(broker.exchange(deployments.TRANSPORT_URL, *HOSTS))
        url = database.engine.url.render_as_string(hide_password=False)
        peers = Peers(placement=placement.adapter, nova=nova.adapter)
        stack = Stack(
            conf=configuration.prepare([], prog="tests", default_config_files=[]),
            database_url=url,
            transport_url=deployments.TRANSPORT_URL,
            peers=peers,
            exchange=exchange,
            times=Times(bind_timeout=PATIENCE, agent=PATIENCE, rpc=PATIENCE, instance_refresh=1.0),
        )
        endings.callback(stack.stop)
        stack.start_conductor()
        options = deployments.options(
            directory,
            database=url,
            exchange=exchange,
            host="control-1",
            placement=placement,
            nova=nova.url,
        )
        deployment = Deployment(directory, deployments.merged(options, authentication(keystone)))
        conf = configuration.prepare(
            [], prog=API, default_config_files=[str(deployment.conf)], conf=cfg.ConfigOpts()
        )
        front = Front(
            app.build(
                conf, reader=stack._reader(), conductor=stack.conductor_client(), neighbours=peers
            )
        )
        loopback = endings.enter_context(Loopback(front))
        keystone.register("accelerator", f"{loopback.url}/v2")
        cloud = Cloud(
            keystone=keystone,
            placement=placement,
            nova=nova,
            people=people(keystone),
            stack=stack,
            database=database,
            front=front,
            url=f"{loopback.url}/v2",
            computes={name: _started(stack, directory, name) for name in HOSTS},
        )
        eventually(
            lambda: {device["hostname"] for device in cloud.devices()} == set(HOSTS), "all hosts"
        )
        yield cloud


def _started(stack: Stack, directory: Path, name: str) -> ComputeHost:
    scenario, driver_name = HOSTS[name]
    state = directory / name
    state.mkdir()
    shared().make_compute(name)
    machine = scenario_hosts.load(scenario)
    drivers = {entry.name: entry for entry in scenario_hosts.read(scenario).drivers}
    driver = drivers[driver_name]
    conf = written(state / "cyborg.conf", driver.options, host=name)
    (loaded,) = load([driver.name], machine, conf)
    host = ComputeHost(compute=name, machine=machine, stack=stack, state_path=state)
    host.start(loaded)
    return host
