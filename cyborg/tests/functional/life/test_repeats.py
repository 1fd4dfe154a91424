# SPDX-License-Identifier: Apache-2.0
"""Every verb that writes may be repeated with its request key: it answers the same, and no more.

On a database server the answer to the COMMIT of the first attempt is lost on the wire as well, so
that the use case repeats it by itself. SQLite has no wire on which something could be lost.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.conductor.endpoint import UseCases
from cyborg.db.engine import Database
from cyborg.db.models import METADATA, Deployable, Device
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.device_profile import DeviceProfile, ProfileChange
from cyborg.model.report import AgentHeartbeat
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.host_reports import provider_of, report_of
from cyborg.tests.fixtures.manual_processes import ManualConductor
from cyborg.tests.fixtures.proxy import Proxy
from cyborg.tests.functional.life.steps import everything
from cyborg.tests.functional.schema.databases import SERVER, empty_database

HOST = "compute"
CALLER = Caller("project", "user", "req-lost", all_projects=True, service=True)
KEY, INSTANCE, ATTRIBUTE = (str(uuid4()) for _ in range(3))
Verb = Callable[[], object]


@dataclass(frozen=True)
class Environment:
    """The use cases, behind a proxy on a server, and the database as others see it."""

    cases: UseCases
    database: Database
    proxy: Proxy | None

    def losing(self, verb: Verb) -> Any:
        """What a verb answers; on a server its COMMIT is done and goes unanswered."""
        if self.proxy is None:
            return verb()
        before = self.proxy.lost
        self.proxy.lose_answer_to(b"COMMIT")
        answer = verb()
        assert self.proxy.lost == before + 1
        return answer

    def count(self, table: str, **equal: object) -> int:
        """How many rows have these values."""
        one = METADATA.tables[table]
        terms = [one.c[name] == value for name, value in equal.items()]
        with self.database.reader() as tx:
            query = sa.select(sa.func.count()).select_from(one).where(*terms)
            return int(tx.execute(query).scalar_one())

    def only(self, model: Any) -> str:
        """The uuid of the only row of a table."""
        with self.database.reader() as tx:
            return str(tx.execute(sa.select(model.uuid)).scalar_one())

    def heartbeat(self, epoch: int | None = None) -> Any:
        sent = AgentHeartbeat(HOST, (HOST,), "0", f"bus@{HOST}", epoch)
        return self.cases.heartbeats.heartbeat(sent)

    def report(self) -> None:
        self.cases.report_applier.report(HOST, self.heartbeat().epoch, report_of(HOST, 1))

    def create(self) -> list[str]:
        """New ARQs for both units of the host."""
        profile = self.profile("pair")
        made = self.cases.arq_creator.create(CALLER, str(uuid4()), profile.name)
        return [one.uuid for one in made]

    def profile(self, name: str) -> DeviceProfile:
        profile = DeviceProfile(str(uuid4()), name, ({"resources:FPGA": "2"},))
        return self.cases.profiles.create(CALLER, str(uuid4()), profile)

    def bind(self) -> list[str]:
        """ARQs that are bound to INSTANCE."""
        arqs = self.create()
        self.cases.arq_binder.patch(CALLER, str(uuid4()), binding(arqs), [])
        return arqs


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """A database that no running conductor works on."""
    with empty_database(tmp_path_factory.mktemp("repeats")) as db:
        METADATA.create_all(db.engine)
        url = db.engine.url
        proxy = Proxy(url.host or "127.0.0.1", url.port or 0) if SERVER else None
        if proxy is not None:
            proxy.__enter__()
            url = url.set(host="127.0.0.1", port=proxy.port)
        own = Database(url.render_as_string(hide_password=False))
        conductor = ManualConductor(own, DirectBus(Exchange()))
        yield Environment(conductor.cases, db, proxy)
        conductor.stop()
        if proxy is not None:
            proxy.__exit__(None, None, None)


@pytest.fixture
def environment(shared: Environment) -> Environment:
    with shared.database.writer() as tx:
        for table in reversed(METADATA.sorted_tables):
            tx.execute(sa.delete(table))
    shared.report()
    return shared


def binding(arqs: list[str]) -> list[Binding]:
    return [Binding(one, HOST, provider_of(HOST, 0), INSTANCE) for one in arqs]


def _creating(env: Environment) -> Verb:
    name = env.profile("gpu").name
    return lambda: env.cases.arq_creator.create(CALLER, KEY, name)


def _binding(env: Environment) -> Verb:
    binds = binding(env.create())
    return lambda: env.cases.arq_binder.patch(CALLER, KEY, binds, [])


def _rebinding(env: Environment) -> Verb:
    """One request unbinds what another binds."""
    (old, new) = env.create()
    env.cases.arq_binder.patch(CALLER, str(uuid4()), binding([old]), [])
    binds = [Binding(new, HOST, provider_of(HOST, 0), str(uuid4()))]
    return lambda: env.cases.arq_binder.patch(CALLER, KEY, binds, [old])


def _unbinding(env: Environment) -> Verb:
    arqs = env.bind()
    return lambda: env.cases.arq_binder.patch(CALLER, KEY, [], arqs)


def _deleting(env: Environment) -> Verb:
    arqs = env.bind()
    return lambda: env.cases.arq_releaser.by_uuid(CALLER, KEY, arqs)


def _deleting_of_instance(env: Environment) -> Verb:
    env.bind()
    return lambda: env.cases.arq_releaser.by_instance(CALLER, KEY, INSTANCE)


def _making_a_profile(env: Environment) -> Verb:
    profile = DeviceProfile(str(uuid4()), "gpu", ({"resources:FPGA": "1"},))
    return lambda: env.cases.profiles.create(CALLER, KEY, profile)


def _changing_a_profile(env: Environment) -> Verb:
    env.profile("gpu")
    change = ProfileChange(name="fpga", description="d", sets_description=True)
    return lambda: env.cases.profiles.update(CALLER, KEY, "gpu", change)


def _deleting_profiles(env: Environment) -> Verb:
    keys = ["gpu", env.profile("gpu").uuid]
    return lambda: env.cases.profiles.delete(CALLER, KEY, keys)


def _disabling(env: Environment) -> Verb:
    uuid, status = env.only(Device), DeviceStatus.MAINTAINING
    return lambda: env.cases.device_admin.update(CALLER, KEY, uuid, status=status)


def _programming(env: Environment) -> Verb:
    with env.database.writer() as tx:
        tx.execute(sa.update(Deployable).values(programmable=True))
    uuid, image = env.only(Deployable), str(uuid4())
    return lambda: env.cases.device_admin.program(CALLER, KEY, uuid, image)


def _adding(env: Environment, uuid: str | None, request_key: str = KEY) -> Verb:
    deployable = env.only(Deployable)
    return lambda: env.cases.attributes.create(
        CALLER, request_key, deployable=deployable, key="rack", value="7", uuid=uuid
    )


def _adding_an_attribute(env: Environment) -> Verb:
    return _adding(env, None)


def _adding_a_named_attribute(env: Environment) -> Verb:
    return _adding(env, ATTRIBUTE)


def _removing_an_attribute(env: Environment) -> Verb:
    _adding(env, ATTRIBUTE, str(uuid4()))()
    return lambda: env.cases.attributes.delete(CALLER, KEY, ATTRIBUTE)


def _telling_of_an_api(env: Environment) -> Verb:
    return lambda: env.cases.heartbeats.api_heartbeat("api", "1", "somewhere")


ARQS, HANDLES = "extended_accelerator_requests", "attach_handles"
#: What prepares each verb, and how many rows there are afterwards.
VERBS: list[tuple[Callable[[Environment], Verb], list[tuple[str, dict[str, Any], int]]]] = [
    (_creating, [(ARQS, {"state": "Initial"}, 2)]),
    (
        _binding,
        [(ARQS, {"state": "Bound"}, 2), (HANDLES, {"state": "held"}, 2), ("work", {}, 2)],
    ),
    (_rebinding, [(ARQS, {"state": "Bound"}, 1), (ARQS, {"state": "Unbound"}, 1)]),
    (_unbinding, [(ARQS, {"state": "Unbound"}, 2), (HANDLES, {"state": "free"}, 2)]),
    (_deleting, [(ARQS, {}, 0), (HANDLES, {"state": "free"}, 2)]),
    (_deleting_of_instance, [(ARQS, {}, 0), (HANDLES, {"state": "free"}, 2)]),
    (_making_a_profile, [("device_profiles", {"name": "gpu"}, 1)]),
    (_changing_a_profile, [("device_profiles", {"name": "fpga", "description": "d"}, 1)]),
    (_deleting_profiles, [("device_profiles", {}, 0)]),
    (_disabling, [("events", {"action": "maintaining"}, 1)]),
    (_programming, [("work", {"kind": "program"}, 1), ("events", {"action": "program"}, 1)]),
    (_adding_an_attribute, [("attributes", {"origin": "operator"}, 1)]),
    (_adding_a_named_attribute, [("attributes", {"uuid": ATTRIBUTE}, 1)]),
    (_removing_an_attribute, [("attributes", {"origin": "operator"}, 0)]),
    (_telling_of_an_api, [("services", {"host": "api", "epoch": 1}, 1)]),
]


@pytest.mark.parametrize(("prepare", "counts"), VERBS, ids=[one.__name__ for one, _ in VERBS])
def test_repeated_verb_runs_once(
    environment: Environment,
    prepare: Callable[[Environment], Verb],
    counts: list[tuple[str, dict[str, Any], int]],
) -> None:
    verb = prepare(environment)
    answer = environment.losing(verb)
    for table, equal, number in counts:
        assert environment.count(table, **equal) == number, table
    after = everything(environment.database)
    assert verb() == answer
    assert everything(environment.database) == after


def test_late_repetition_of_a_status_change_does_not_undo_the_next(
    environment: Environment,
) -> None:
    disable, uuid = _disabling(environment), environment.only(Device)
    disable()
    admin = environment.cases.device_admin
    admin.update(CALLER, str(uuid4()), uuid, status=DeviceStatus.ENABLED)
    disable()
    assert environment.count("devices", status="enabled") == 1


def test_heartbeat_and_report_survive_a_lost_commit(environment: Environment) -> None:
    reply = environment.losing(environment.heartbeat)
    report = report_of(HOST, 2)
    taken = environment.losing(
        lambda: environment.cases.report_applier.report(HOST, reply.epoch, report)
    )
    assert (environment.count("devices"), environment.count(HANDLES)) == (2, 4)
    again = environment.heartbeat(reply.epoch)
    assert (again.epoch, again.digest) == (reply.epoch, report.digest())
    assert again.desired_generation == taken.desired_generation
