# SPDX-License-Identifier: Apache-2.0
"""Every verb that writes may be repeated with its operation id: it answers the same, no more."""

from collections.abc import Callable
from uuid import uuid4

import pytest

from cyborg import exception
from cyborg.db.engine import Database
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.device_profile import DeviceProfile
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import (
    CreateArqs,
    CreateAttribute,
    CreateDeviceProfile,
    DeleteArqs,
    DeleteAttribute,
    DeleteDeviceProfiles,
    DeleteInstanceArqs,
    PatchArqs,
    ProgramDeployable,
    SetDeviceStatus,
)
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.functional.life.cards import Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    FPGA,
    eventually_idle,
    everything,
    work_left,
)

Computes = Callable[..., ComputeHost]
Profiles = Callable[..., str]

CALLER = Caller("project", "user", "req-repeat", service=True)
TWO = {**FPGA, "resources:FPGA": "2"}


class Twice:
    """Do something twice; the second time nothing in the database may change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __call__(self, verb: Callable[[], object]) -> object:
        first = verb()
        eventually_idle(self._database)
        before = everything(self._database)
        assert verb() == first
        assert everything(self._database) == before
        return first


@pytest.fixture
def twice(database: Database) -> Twice:
    return Twice(database)


def request_key() -> str:
    return str(uuid4())


def test_repeated_create_runs_once(
    conductor: ConductorClient, profile: Profiles, twice: Twice
) -> None:
    name, once = profile(TWO), request_key()
    twice(lambda: conductor.write(CreateArqs(CALLER, once, name)))
    assert len(conductor.write(CreateArqs(CALLER, request_key(), name))) == 2


def test_late_repeated_create_restores_nothing(
    conductor: ConductorClient, profile: Profiles, database: Database
) -> None:
    name, once = profile(TWO), request_key()
    made = [one.uuid for one in conductor.write(CreateArqs(CALLER, once, name))]
    conductor.write(DeleteArqs(CALLER, request_key(), made))
    before = everything(database)
    assert [one.uuid for one in conductor.write(CreateArqs(CALLER, once, name))] == made
    assert everything(database) == before


def test_late_repeated_bind_does_not_undo_an_unbind(
    conductor: ConductorClient, compute: Computes, profile: Profiles, database: Database
) -> None:
    host, name, once = compute(), profile(FPGA), request_key()
    (arq,) = conductor.write(CreateArqs(CALLER, request_key(), name))
    binds = [Binding(arq.uuid, host.compute, host.fake_provider, str(uuid4()))]
    conductor.write(PatchArqs(CALLER, once, binds, []))
    conductor.write(PatchArqs(CALLER, request_key(), [], [arq.uuid]))
    eventually_idle(database)
    before = everything(database)
    conductor.write(PatchArqs(CALLER, once, binds, []))
    assert everything(database) == before


@pytest.mark.parametrize("found", ["something", "nothing"])
def test_late_repeated_delete_keeps_later_binds(
    conductor: ConductorClient,
    compute: Computes,
    profile: Profiles,
    database: Database,
    found: str,
) -> None:
    host, name, instance, once = compute(), profile(FPGA), str(uuid4()), request_key()

    def boot() -> None:
        (arq,) = conductor.write(CreateArqs(CALLER, request_key(), name))
        bind = Binding(arq.uuid, host.compute, host.fake_provider, instance)
        conductor.write(PatchArqs(CALLER, request_key(), [bind], []))

    if found == "something":
        boot()
    conductor.write(DeleteInstanceArqs(CALLER, once, instance))
    boot()
    eventually_idle(database)
    before = everything(database)
    conductor.write(DeleteInstanceArqs(CALLER, once, instance))
    assert everything(database) == before


def test_repeated_bind_unbind_and_delete_run_once(
    conductor: ConductorClient, compute: Computes, profile: Profiles, twice: Twice
) -> None:
    host, name = compute(), profile(TWO)
    arqs = conductor.write(CreateArqs(CALLER, request_key(), name))
    uuids = [one.uuid for one in arqs]
    instance = str(uuid4())
    binds = [Binding(one, host.compute, host.fake_provider, instance) for one in uuids]
    once, again, thrice = request_key(), request_key(), request_key()
    twice(lambda: conductor.write(PatchArqs(CALLER, once, binds, [])))
    twice(lambda: conductor.write(PatchArqs(CALLER, again, [], uuids)))
    # What was done since is not undone by a late repetition.
    conductor.write(PatchArqs(CALLER, request_key(), binds, []))
    twice(lambda: conductor.write(PatchArqs(CALLER, again, [], uuids)))
    twice(lambda: conductor.write(DeleteArqs(CALLER, thrice, uuids)))
    with pytest.raises(exception.NotFound):
        conductor.write(DeleteArqs(CALLER, request_key(), uuids))


def test_repeated_bind_with_unbind_runs_once(
    conductor: ConductorClient, compute: Computes, profile: Profiles, twice: Twice
) -> None:
    host, name = compute(), profile(TWO)
    old, new = (conductor.write(CreateArqs(CALLER, request_key(), name)) for _ in range(2))
    conductor.write(
        PatchArqs(
            CALLER,
            request_key(),
            [Binding(one.uuid, host.compute, host.fake_provider, str(uuid4())) for one in old[:1]],
            [],
        )
    )
    instance, once = str(uuid4()), request_key()
    binds = [Binding(one.uuid, host.compute, host.fake_provider, instance) for one in new]
    twice(lambda: conductor.write(PatchArqs(CALLER, once, binds, [old[0].uuid])))


def test_repeated_delete_by_instance_runs_once(
    conductor: ConductorClient, compute: Computes, profile: Profiles, twice: Twice
) -> None:
    host = compute()
    (arq, _) = conductor.write(CreateArqs(CALLER, request_key(), profile(TWO)))
    instance, once = str(uuid4()), request_key()
    bind = Binding(arq.uuid, host.compute, host.fake_provider, instance)
    conductor.write(PatchArqs(CALLER, request_key(), [bind], []))
    twice(lambda: conductor.write(DeleteInstanceArqs(CALLER, once, instance)))


def test_repeated_profile_requests_run_once(conductor: ConductorClient, twice: Twice) -> None:
    wanted = DeviceProfile(str(uuid4()), f"profile-{uuid4().hex}", (FPGA,))
    once, again = request_key(), request_key()
    twice(lambda: conductor.write(CreateDeviceProfile(CALLER, once, wanted)))
    with pytest.raises(exception.Duplicate):
        conductor.write(CreateDeviceProfile(CALLER, request_key(), wanted))
    twice(lambda: conductor.write(DeleteDeviceProfiles(CALLER, again, [wanted.name, wanted.uuid])))
    with pytest.raises(exception.NotFound):
        conductor.write(DeleteDeviceProfiles(CALLER, request_key(), [wanted.name]))


def test_repeated_device_status_change_runs_once(
    conductor: ConductorClient, compute: Computes, admin: Client, twice: Twice
) -> None:
    compute()
    uuid = admin.get("/devices")["devices"][0]["uuid"]
    once = request_key()
    twice(lambda: conductor.write(SetDeviceStatus(CALLER, once, uuid, DeviceStatus.MAINTAINING)))
    conductor.write(SetDeviceStatus(CALLER, request_key(), uuid, DeviceStatus.ENABLED))
    twice(lambda: conductor.write(SetDeviceStatus(CALLER, once, uuid, DeviceStatus.MAINTAINING)))
    newest = Client(admin.app, role="admin", version="2.3")
    assert newest.get(f"/devices/{uuid}")["status"] == "enabled"


@pytest.mark.parametrize("uuid", [None, "5c0f6f5e-6a56-4d1c-9d0c-6f2f3a2be1d7"])
def test_repeated_attribute_requests_run_once(
    conductor: ConductorClient, compute: Computes, admin: Client, twice: Twice, uuid: str | None
) -> None:
    compute()
    deployable = admin.get("/deployables")["deployables"][0]["uuid"]
    once, again = request_key(), request_key()
    made = twice(
        lambda: conductor.write(
            CreateAttribute(CALLER, once, deployable=deployable, key="rack", value="7", uuid=uuid)
        )
    )
    mine = str(getattr(made, "uuid"))  # noqa: B009
    with pytest.raises(exception.Duplicate):
        conductor.write(
            CreateAttribute(
                CALLER, request_key(), deployable=deployable, key="rack", value="7", uuid=mine
            )
        )
    twice(lambda: conductor.write(DeleteAttribute(CALLER, again, mine)))
    with pytest.raises(exception.NotFound):
        conductor.write(DeleteAttribute(CALLER, request_key(), mine))


def test_repeated_program_is_recorded_once(
    conductor: ConductorClient,
    racked: Callable[..., RackedCompute],
    resource_class: str,
    admin: Client,
    database: Database,
) -> None:
    host = racked(Traits(resource_class, programmable=True))
    host.stop()
    uuid = admin.get("/deployables")["deployables"][0]["uuid"]
    once, image = request_key(), str(uuid4())
    for _ in range(2):
        conductor.write(ProgramDeployable(CALLER, once, uuid, image))
        assert work_left(database) == ["program"]
