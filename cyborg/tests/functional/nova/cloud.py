# SPDX-License-Identifier: Apache-2.0
"""A cloud of real Keystone, Placement and Nova and this service, with two compute hosts."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import sqlalchemy as sa
from openstack.connection import Connection

from cyborg.db.engine import Database
from cyborg.db.models import DirtyUnit
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures import broker
from cyborg.tests.fixtures.keystone import ADMIN, Account, KeystoneService
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.processes import Deployment
from cyborg.tests.fixtures.real_nova import NovaService, Peers
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional import deployments
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.keystone.cloud import authentication
from cyborg.tests.functional.keystone.shell import write_clouds
from cyborg.tests.functional.nova.images import Images
from cyborg.tests.functional.schema.databases import SERVER, upgraded_database

#: The compute microversion of the requests of tests.
_COMPUTE: Final = "2.95"
#: The units of a fake device.
UNITS: Final = 16


@dataclass(frozen=True)
class Cloud:
    """All of it, running; ``url`` is that of the accelerator API, without a version."""

    keystone: KeystoneService
    placement: PlacementService
    nova: NovaService
    images: Images
    hosts: tuple[str, str]
    url: str
    member: Account
    database: Database
    #: The home of clients, with a ``clouds.yaml``.
    home: Path
    admin: Account = ADMIN

    def connection(self, account: Account = ADMIN) -> Connection:
        """A connection of openstacksdk, with the newest microversions that tests need."""
        return Connection(
            session=self.keystone.session(account),
            compute_default_microversion=_COMPUTE,
            accelerator_default_microversion="2.100",
        )

    def other(self, host: str) -> str:
        """The other host."""
        return self.hosts[1 - self.hosts.index(host)]

    def arqs(self, server: str, account: Account | None = None) -> list[dict[str, Any]]:
        """The accelerator requests of a server, as an account of its project sees them."""
        connection = self.connection(account or self.member)
        path = f"/accelerator_requests?instance={server}"
        listed: list[dict[str, Any]] = connection.accelerator.get(path).json()["arqs"]
        return listed

    def offered(self, host: str) -> int:
        """How many units of the device of a host nobody has, and Placement would give out."""
        provider = fake_provider(host)
        path = f"/resource_providers/{provider}/usages"
        used = self.placement.call("GET", path)["usages"].get("FPGA", 0)
        return offered(self.placement, provider) - int(used)

    @contextmanager
    def full(self, host: str) -> Iterator[None]:
        """Let somebody have all units of the device of a host that nobody has."""
        consumer, provider = str(uuid4()), fake_provider(host)
        assert self.placement.claim(consumer, {provider: {"FPGA": self.offered(host)}})
        yield
        self.placement.free(consumer)

    @contextmanager
    def server(self, *, units: int) -> Iterator[str]:
        """A server of the member with so many accelerators, ACTIVE; gives its ID."""
        admin, member = self.connection(), self.connection(self.member)
        name = f"server-{uuid4().hex[:12]}"
        flavor = admin.compute.create_flavor(name=name, ram=256, vcpus=1, disk=1)
        if units:
            group = {"resources:FPGA": str(units), "trait:CUSTOM_FAKE_DEVICE": "required"}
            body = [{"name": name, "groups": [group]}]
            assert admin.accelerator.post("/device_profiles", json=body).status_code == 201
            extra = {"accel:device_profile": name}
            admin.compute.create_flavor_extra_specs(flavor, extra)
        made = member.compute.create_server(
            name=name, image_id=self.images.base, flavor_id=flavor.id, networks="none"
        )
        eventually(lambda: self.show(made.id).status in {"ACTIVE", "ERROR"}, f"{name} starts")
        shown = self.show(made.id)
        assert shown.status == "ACTIVE", shown.fault
        yield made.id
        member.compute.delete_server(made.id)
        path = f"/servers/{made.id}"
        eventually(lambda: member.compute.get(path).status_code == 404, f"{name} is deleted")

    def dirty_units(self, host: str) -> int:
        """How many units of a host have had a guest, and were not cleaned since."""
        with self.database.reader() as tx:
            query = sa.select(sa.func.count()).where(DirtyUnit.hostname == host)
            return int(tx.execute(query).scalar_one())

    def show(self, server: str) -> Any:
        """A server as the administrator sees it."""
        return self.connection().compute.get_server(server)


def fake_provider(host: str) -> str:
    """The resource provider of the fake device of a host."""
    return provider_uuid(f"{host.replace('.', '_')}_FakeDevice")


@contextmanager
def running(
    directory: Path, keystone: KeystoneService, placement: PlacementService
) -> Iterator[Cloud]:
    """Start all of it; it is ended and removed from the servers afterwards."""
    hosts = fresh_host("c1"), fresh_host("c2")
    member = keystone.make_account("bob", "blue", "member")
    account = keystone.make_account("nova", "service", "service")
    with ExitStack() as endings:
        images = endings.enter_context(Images())
        database = endings.enter_context(upgraded_database(directory))
        deployment = endings.enter_context(
            _service(directory, keystone, placement, database=database, hosts=hosts)
        )
        deployment.conductor()
        _, url = deployment.api()
        keystone.register("accelerator", f"{url}/v2")
        tenant = endings.enter_context(broker.Tenant(deployments.TRANSPORT_URL))
        tenant.add_user(tenant.password)
        tenant.add_vhost()
        tenant.permit()
        place = directory / "nova"
        place.mkdir()
        peers = Peers(keystone, placement, account, images.url, f"{url}/v2/vendordata")
        nova = NovaService(place, server=SERVER, transport=tenant.url, peers=peers, computes=hosts)
        endings.enter_context(nova)
        for host in hosts:
            state = directory / host
            deployment.agent({"DEFAULT": {"host": host, "state_path": state}})
        providers = [fake_provider(host) for host in hosts]
        eventually(
            lambda: [offered(placement, provider) for provider in providers] == [UNITS] * 2,
            "Placement has the devices of both hosts",
        )
        write_clouds(directory, keystone, {"admin": ADMIN, "member": member})
        yield Cloud(
            *(keystone, placement, nova, images, hosts, url, member, database), home=directory
        )


@contextmanager
def _service(
    directory: Path,
    keystone: KeystoneService,
    placement: PlacementService,
    *,
    database: Database,
    hosts: tuple[str, ...],
) -> Iterator[Deployment]:
    """The configuration of conductor, API and agents, on an exchange of its own."""
    name = fresh_host("front")
    account = keystone.make_account("cyborg", "service", "service")
    with broker.exchange(deployments.TRANSPORT_URL, name, *hosts) as exchange:
        url = database.engine.url.render_as_string(hide_password=False)
        common = deployments.options(
            directory,
            database=url,
            exchange=exchange,
            host=name,
            placement=placement,
            nova="",
        )
        common["nova"] = {**account.options(keystone.url), "region_name": "RegionOne"}
        # The account with which Nova's metadata service asks.
        own = {"api": {"compute_users": "nova"}}
        options = deployments.merged(common, authentication(keystone), own)
        with Deployment(directory, options) as deployment:
            yield deployment
