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

from cyborg.conductor.endpoint import UseCases
from cyborg.db.engine import Database
from cyborg.db.models import METADATA
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.device_profile import DeviceProfile
from cyborg.model.report import AgentHeartbeat
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.host_reports import provider_of, report_of
from cyborg.tests.fixtures.manual_processes import ManualConductor
from cyborg.tests.fixtures.proxy import Proxy
from cyborg.tests.functional.life.steps import everything
from cyborg.tests.functional.schema.databases import empty_database

HOST = "compute"
CALLER = Caller("project", "user", "req-lost", all_projects=True, service=True)


@dataclass(frozen=True)
class Environment:
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
def environment(quiet: Database) -> Iterator[Environment]:
    url = quiet.engine.url
    with Proxy(url.host or "127.0.0.1", url.port or 0) as proxy:
        there = url.set(host="127.0.0.1", port=proxy.port)
        db = Database(there.render_as_string(hide_password=False))
        conductor = ManualConductor(db, DirectBus(Exchange()))
        yield Environment(conductor.cases, proxy, quiet)
        conductor.stop()


@pytest.fixture
def request_key() -> str:
    return str(uuid4())


def published(environment: Environment, devices: int = 1) -> int:
    """Have a host reported; gives its agent's epoch."""
    epoch = environment.cases.heartbeats.heartbeat(
        AgentHeartbeat(HOST, (HOST,), "0", f"bus@{HOST}", None)
    ).epoch
    environment.cases.report_applier.report(HOST, epoch, report_of(HOST, devices))
    return epoch


def created(environment: Environment) -> tuple[str, list[str]]:
    """The name of a new profile, and ARQs of it."""
    groups = ({"resources:FPGA": "2"},)
    profile = DeviceProfile(str(uuid4()), f"profile-{uuid4().hex}", groups)
    environment.cases.profiles.create(CALLER, str(uuid4()), profile)
    made = environment.cases.arq_creator.create(CALLER, str(uuid4()), profile.name)
    return profile.name, [one.uuid for one in made]


def binding(arqs: list[str], instance: str) -> list[Binding]:
    return [Binding(one, HOST, provider_of(HOST, 0), instance) for one in arqs]


def test_hello_and_first_report_survive_a_lost_commit(environment: Environment):
    environment.proxy.lose_answer_to(b"COMMIT")
    reply = environment.cases.heartbeats.heartbeat(
        AgentHeartbeat(HOST, (HOST,), "0", f"bus@{HOST}", None)
    )
    assert environment.proxy.lost == 1
    report = report_of(HOST, 2)
    environment.proxy.lose_answer_to(b"COMMIT")
    taken = environment.cases.report_applier.report(HOST, reply.epoch, report)
    assert (
        environment.proxy.lost,
        environment.count("devices"),
        environment.count("attach_handles"),
    ) == (2, 2, 4)
    heartbeat = AgentHeartbeat(HOST, (HOST,), "0", f"bus@{HOST}", reply.epoch)
    again = environment.cases.heartbeats.heartbeat(heartbeat)
    assert (again.epoch, again.digest) == (reply.epoch, report.digest())
    assert again.desired_generation == taken.desired_generation


def test_api_heartbeat_survives_a_lost_commit(environment: Environment):
    host = f"api-{uuid4().hex[:12]}"
    environment.losing(lambda: environment.cases.heartbeats.api_heartbeat(host, "1", "somewhere"))
    assert environment.count("services", host=host, epoch=1) == 1


def test_profiles_survive_a_lost_commit(environment: Environment, request_key: str):
    profile = DeviceProfile(str(uuid4()), "gpu", ({"resources:FPGA": "1"},))
    made = environment.losing(
        lambda: environment.cases.profiles.create(CALLER, request_key, profile)
    )
    assert isinstance(made, DeviceProfile)
    assert (made.uuid, environment.count("device_profiles")) == (profile.uuid, 1)
    other = str(UUID(int=UUID(request_key).int ^ 1))
    environment.losing(lambda: environment.cases.profiles.delete(CALLER, other, ["gpu"]))
    assert environment.count("device_profiles") == 0


def test_arqs_are_created_once_after_a_lost_commit(environment: Environment, request_key: str):
    name, before = created(environment)
    made = environment.losing(
        lambda: environment.cases.arq_creator.create(CALLER, request_key, name)
    )
    assert isinstance(made, list)
    assert environment.count("extended_accelerator_requests") == len(before) + len(made) == 4


def test_bind_holds_one_handle_after_a_lost_commit(environment: Environment, request_key: str):
    published(environment)
    _, arqs = created(environment)
    binds = binding(arqs, str(uuid4()))
    environment.losing(lambda: environment.cases.arq_binder.patch(CALLER, request_key, binds, []))
    assert environment.count("attach_handles", state="held") == 2
    assert environment.count("extended_accelerator_requests", state="Bound") == 2
    assert environment.count("work", kind="notify") == 2


def test_unbind_survives_a_lost_commit(environment: Environment, request_key: str):
    published(environment)
    _, arqs = created(environment)
    environment.cases.arq_binder.patch(CALLER, str(uuid4()), binding(arqs, str(uuid4())), [])
    environment.losing(lambda: environment.cases.arq_binder.patch(CALLER, request_key, [], arqs))
    assert environment.count("attach_handles", state="held") == 0
    assert environment.count("extended_accelerator_requests", state="Unbound") == 2


@pytest.mark.parametrize("by", ["instance", "uuid"])
def test_deletes_survive_a_lost_commit(environment: Environment, request_key: str, by: str):
    published(environment)
    _, arqs = created(environment)
    instance = str(uuid4())
    environment.cases.arq_binder.patch(CALLER, str(uuid4()), binding(arqs, instance), [])
    deleter = environment.cases.arq_releaser
    if by == "instance":
        environment.losing(lambda: deleter.by_instance(CALLER, request_key, instance))
    else:
        environment.losing(lambda: deleter.by_uuid(CALLER, request_key, arqs))
    assert environment.count("extended_accelerator_requests") == 0
    assert environment.count("attach_handles", state="free") == 2


def test_devices_and_attributes_survive_a_lost_commit(environment: Environment, request_key: str):
    published(environment)
    with environment.database.reader() as tx:
        device = tx.execute(sa.select(METADATA.tables["devices"].c.uuid)).scalar_one()
        deployable = tx.execute(sa.select(METADATA.tables["deployables"].c.uuid)).scalar_one()
    status = DeviceStatus.MAINTAINING
    device_admin = environment.cases.device_admin
    environment.losing(lambda: device_admin.update(CALLER, request_key, device, status=status))
    assert environment.count("events", action="maintaining") == 1
    once, again = str(uuid4()), str(uuid4())
    attributes = environment.cases.attributes
    environment.losing(
        lambda: attributes.create(
            CALLER, once, deployable=deployable, key="rack", value="7", uuid=None
        )
    )
    assert environment.count("attributes", origin="operator") == 1
    with environment.database.reader() as tx:
        table = METADATA.tables["attributes"]
        mine = tx.execute(sa.select(table.c.uuid).where(table.c.key == "rack")).scalar_one()
    environment.losing(lambda: attributes.delete(CALLER, again, mine))
    assert environment.count("attributes", origin="operator") == 0
