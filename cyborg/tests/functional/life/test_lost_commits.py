# SPDX-License-Identifier: Apache-2.0
"""A COMMIT whose answer is lost on the wire: it is repeated, and what it did is done once.

Needs a database server; the conductor's use cases work on it through a proxy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from cyborg.clients.allocations import Allocations
from cyborg.clients.nova import Nova
from cyborg.conductor import app as conductor_app
from cyborg.conductor.endpoint import UseCases
from cyborg.db.engine import Database
from cyborg.db.models import METADATA
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.device_profile import DeviceProfile
from cyborg.model.report import AgentHeartbeat
from cyborg.rpc.agent import AgentClient
from cyborg.tests.fixtures.machines import provider_of, report_of
from cyborg.tests.fixtures.proxy import Proxy
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.steps import everything
from cyborg.tests.functional.schema.databases import empty_database

HOST = "compute"
CALLER = Caller("project", "user", "req-lost", all_projects=True, service=True)
_SETTINGS = conductor_app.Settings(
    host="behind-a-proxy",
    process="0",
    version="0",
    heartbeat=1.0,
    lease=3.0,
    bind_timeout=10.0,
    agent_down_after=30.0,
    threads=1,
    auto_enable=frozenset({"*"}),
)


@dataclass(frozen=True)
class House:
    """The use cases behind a proxy, and the database as others see it."""

    cases: UseCases
    proxy: Proxy
    database: Database

    def losing(self, verb: Callable[[], object]) -> object:
        """What a verb answers whose COMMIT went unanswered; done again, it changes nothing."""
        before = self.proxy.lost
        self.proxy.lose_answer_to(b"COMMIT")
        answer = verb()
        assert self.proxy.lost == before + 1
        after = everything(self.database)
        assert verb() == answer
        assert everything(self.database) == after
        return answer

    def count(self, table: str, **equal: object) -> int:
        """How many rows have these values."""
        one = METADATA.tables[table]
        terms = [one.c[name] == value for name, value in equal.items()]
        with self.database.reader() as tx:
            query = sa.select(sa.func.count()).select_from(one).where(*terms)
            return int(tx.execute(query).scalar_one())


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Database]:
    """A database that no running conductor works on."""
    with empty_database(tmp_path) as db:
        METADATA.create_all(db.engine)
        yield db


@pytest.fixture
def house(stack: Stack, quiet: Database) -> Iterator[House]:
    url = quiet.engine.url
    bus = stack.bus()
    agents = AgentClient(bus, timeout=1.0)
    with Proxy(url.host or "127.0.0.1", url.port or 0) as proxy:
        there = url.set(host="127.0.0.1", port=proxy.port)
        db = Database(there.render_as_string(hide_password=False))
        peers = conductor_app.Peers(Nova(stack.peers.nova()), Allocations(stack.peers.placement()))
        cases = conductor_app.use_cases(
            settings=_SETTINGS, db=db, agents=agents, peers=peers, wake=lambda: None
        )
        yield House(cases, proxy, quiet)
        db.close()
    agents.close()
    bus.close()


@pytest.fixture
def request_key() -> str:
    return str(uuid4())


def published(house: House, devices: int = 1) -> int:
    """Have a host reported; gives its agent's epoch."""
    epoch = house.cases.heartbeats.heartbeat(
        AgentHeartbeat(HOST, (HOST,), "0", f"bus@{HOST}", None)
    ).epoch
    house.cases.report_applier.report(HOST, epoch, report_of(HOST, devices))
    return epoch


def created(house: House) -> tuple[str, list[str]]:
    """The name of a new profile, and ARQs of it."""
    groups = ({"resources:FPGA": "2"},)
    profile = DeviceProfile(str(uuid4()), f"profile-{uuid4().hex}", groups)
    house.cases.profiles.create(CALLER, str(uuid4()), profile)
    made = house.cases.arq_creator.create(CALLER, str(uuid4()), profile.name)
    return profile.name, [one.uuid for one in made]


def binding(arqs: list[str], instance: str) -> list[Binding]:
    return [Binding(one, HOST, provider_of(HOST, 0), instance) for one in arqs]


def test_a_first_hello_and_a_first_report(house: House):
    house.proxy.lose_answer_to(b"COMMIT")
    reply = house.cases.heartbeats.heartbeat(
        AgentHeartbeat(HOST, (HOST,), "0", f"bus@{HOST}", None)
    )
    assert house.proxy.lost == 1
    report = report_of(HOST, 2)
    house.proxy.lose_answer_to(b"COMMIT")
    taken = house.cases.report_applier.report(HOST, reply.epoch, report)
    assert (house.proxy.lost, house.count("devices"), house.count("attach_handles")) == (2, 2, 4)
    heartbeat = AgentHeartbeat(HOST, (HOST,), "0", f"bus@{HOST}", reply.epoch)
    again = house.cases.heartbeats.heartbeat(heartbeat)
    assert (again.epoch, again.digest) == (reply.epoch, report.digest())
    assert again.desired_generation == taken.desired_generation


def test_a_sign_of_life(house: House):
    host = f"api-{uuid4().hex[:12]}"
    house.losing(lambda: house.cases.heartbeats.api_heartbeat(host, "1", "somewhere"))
    assert house.count("services", host=host, epoch=1) == 1


def test_profiles(house: House, request_key: str):
    profile = DeviceProfile(str(uuid4()), "gpu", ({"resources:FPGA": "1"},))
    made = house.losing(lambda: house.cases.profiles.create(CALLER, request_key, profile))
    assert isinstance(made, DeviceProfile)
    assert (made.uuid, house.count("device_profiles")) == (profile.uuid, 1)
    other = str(UUID(int=UUID(request_key).int ^ 1))
    house.losing(lambda: house.cases.profiles.delete(CALLER, other, ["gpu"]))
    assert house.count("device_profiles") == 0


def test_requests_are_made_once(house: House, request_key: str):
    name, before = created(house)
    made = house.losing(lambda: house.cases.arq_creator.create(CALLER, request_key, name))
    assert isinstance(made, list)
    assert house.count("extended_accelerator_requests") == len(before) + len(made) == 4


def test_a_bind_holds_one_handle_for_each_request(house: House, request_key: str):
    published(house)
    _, arqs = created(house)
    binds = binding(arqs, str(uuid4()))
    house.losing(lambda: house.cases.arq_binder.patch(CALLER, request_key, binds, []))
    assert house.count("attach_handles", state="held") == 2
    assert house.count("extended_accelerator_requests", state="Bound") == 2
    assert house.count("work", kind="notify") == 2


def test_an_unbind(house: House, request_key: str):
    published(house)
    _, arqs = created(house)
    house.cases.arq_binder.patch(CALLER, str(uuid4()), binding(arqs, str(uuid4())), [])
    house.losing(lambda: house.cases.arq_binder.patch(CALLER, request_key, [], arqs))
    assert house.count("attach_handles", state="held") == 0
    assert house.count("extended_accelerator_requests", state="Unbound") == 2


@pytest.mark.parametrize("by", ["instance", "uuid"])
def test_deletes(house: House, request_key: str, by: str):
    published(house)
    _, arqs = created(house)
    instance = str(uuid4())
    house.cases.arq_binder.patch(CALLER, str(uuid4()), binding(arqs, instance), [])
    deleter = house.cases.arq_releaser
    if by == "instance":
        house.losing(lambda: deleter.by_instance(CALLER, request_key, instance))
    else:
        house.losing(lambda: deleter.by_uuid(CALLER, request_key, arqs))
    assert house.count("extended_accelerator_requests") == 0
    assert house.count("attach_handles", state="free") == 2


def test_devices_and_attributes(house: House, request_key: str):
    published(house)
    with house.database.reader() as tx:
        device = tx.execute(sa.select(METADATA.tables["devices"].c.uuid)).scalar_one()
        deployable = tx.execute(sa.select(METADATA.tables["deployables"].c.uuid)).scalar_one()
    status = DeviceStatus.MAINTAINING
    house.losing(lambda: house.cases.device_admin.set_status(CALLER, request_key, device, status))
    assert house.count("events", action="maintaining") == 1
    once, again = str(uuid4()), str(uuid4())
    attributes = house.cases.attributes
    house.losing(
        lambda: attributes.create(
            CALLER, once, deployable=deployable, key="rack", value="7", uuid=None
        )
    )
    assert house.count("attributes", origin="operator") == 1
    with house.database.reader() as tx:
        table = METADATA.tables["attributes"]
        mine = tx.execute(sa.select(table.c.uuid).where(table.c.key == "rack")).scalar_one()
    house.losing(lambda: attributes.delete(CALLER, again, mine))
    assert house.count("attributes", origin="operator") == 0
