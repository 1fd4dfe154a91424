# SPDX-License-Identifier: Apache-2.0
"""Requests with several ARQs: of two instances, hosts, projects, resource classes or images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import device_profiles
from cyborg.db import work
from cyborg.db.models import Arq, AttachHandle, Deployable, DeviceProfile, Instance, Work
from cyborg.db.projects import of_class
from cyborg.model.arq import Binding, State
from cyborg.model.cleaning import HostClean
from cyborg.model.device_profile import DeviceProfile as Profile
from cyborg.model.device_profile import ProfileChange
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import (
    CreateDeviceProfile,
    DeleteDeviceProfiles,
    DesiredChanged,
    UpdateDeviceProfile,
)
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.fixtures.use_cases import NOVA, UseCases
from cyborg.tests.functional.races.arena import sound
from cyborg.tests.functional.rules.pair import FIRST, SECOND, both, slice_of, sliced

HERE, THERE = provider_of(FIRST, 0), provider_of(SECOND, 0)
IMAGE = {"accel:bitstream_id": "5b0c9f3e-71d2-4f0c-9c0e-2f1a6f3f7c01"}
FPGAS = of_class(RESOURCE_CLASS)
OTHER_IMAGE = {"accel:bitstream_id": "5b0c9f3e-71d2-4f0c-9c0e-2f1a6f3f7c02"}


@dataclass(frozen=True)
class LimitsByProject:
    """Limits by project and resource; whatever has none is unlimited."""

    limits: Mapping[str, Mapping[str, int]]

    def of_project(self, project_id: str, resources: Sequence[str]) -> Mapping[str, int]:
        return {name: self.limits.get(project_id, {}).get(name, -1) for name in resources}

    def registered(self) -> Sequence[str]:
        return sorted({name for limits in self.limits.values() for name in limits})


def uuids(count: int = 2) -> list[str]:
    return [str(uuid4()) for _ in range(count)]


def test_each_instance_keeps_its_project_and_its_host(pair: UseCases) -> None:
    """An administrator rebuilds two servers of different projects in one request."""
    both(pair, handles=2)
    instances = uuids()
    places = list(zip(instances, ("compute-1", "compute-10"), (HERE, THERE), strict=True))
    for named in (("alpha", "beta"), (None, None)):
        arqs = pair.arqs_for({}, {})
        pair.patch(
            *(
                Binding(arq, host, provider, instance, project)
                for arq, (instance, host, provider), project in zip(
                    arqs, places, named, strict=True
                )
            )
        )
        assert [arq.project_id for arq in pair.arqs(arqs)] == ["alpha", "beta"]
        stored = [pair_instance(pair, instance) for instance in instances]
        assert stored == [("alpha", "compute-1", True), ("beta", "compute-10", True)]
        pair.delete(arqs)
        # Both can be bound again.
        assert [pair_instance(pair, instance)[2] for instance in instances] == [False, False]


def pair_instance(pair: UseCases, uuid: str) -> tuple[str | None, str | None, bool]:
    """Project and host of an instance, and whether an ARQ has it."""
    is_bound = sa.exists().where(Arq.instance_uuid == Instance.uuid)
    columns = sa.select(Instance.project_id, Instance.hostname, is_bound)
    with pair.db.reader() as tx:
        project, host, bound = tx.execute(columns.where(Instance.uuid == uuid)).one()
    return project, host, bool(bound)


def test_unbind_of_two_instances_lets_both_be_bound_again(pair: UseCases) -> None:
    both(pair)
    (one, first), (two, second) = pair.boot(HERE), pair.boot(THERE)
    pair.unbind([*one, *two])
    assert not pair_instance(pair, first)[2]
    assert not pair_instance(pair, second)[2]


def test_repetition_is_refused_if_another_request_has_bound_one_of_its_instances(
    pair: UseCases,
) -> None:
    both(pair, handles=3)
    arqs, instances, key = pair.arqs_for({}, {}), uuids(), str(uuid4())
    bindings = [
        Binding(arq, "compute", HERE, instance)
        for arq, instance in zip(arqs, instances, strict=True)
    ]
    pair.patch(*bindings, request_key=key)
    pair.delete(arqs[1:])
    (newer,) = pair.arqs_for()
    pair.patch(Binding(newer, "compute", HERE, instances[1]))
    with pytest.raises(exception.InstanceAlreadyBound):
        pair.patch(*bindings, request_key=key)


@pytest.mark.parametrize("both", [True, False])
def test_bind_publishes_each_host_whose_cards_share_capacity(pair: UseCases, both: bool) -> None:
    """The hosts are those of one request; a host without such cards keeps its generation."""
    pair.report(FIRST, sliced(FIRST))
    pair.report(SECOND, sliced(SECOND) if both else report_of(SECOND, 1))
    before = [pair.generation(host) for host in (FIRST, SECOND)]
    there = slice_of(SECOND, 0, "half") if both else THERE
    (one, two), instances = pair.arqs_for({}, {}), uuids()
    pair.patch(
        Binding(one, FIRST, slice_of(FIRST, 0, "half"), instances[0]),
        Binding(two, SECOND, there, instances[1]),
    )
    changes = [
        pair.generation(host) - one for host, one in zip((FIRST, SECOND), before, strict=True)
    ]
    assert changes == [1, int(both)]
    expected = [(FIRST, DesiredChanged())] + [(SECOND, DesiredChanged())] * both
    assert pair.agents.told == expected
    assert pair.reserved(FIRST) == {
        f"{FIRST}_0_big": 1,
        f"{FIRST}_0_half": 0,
        f"{FIRST}_0_small": 4,
    }


def test_slices_of_one_card_in_one_request_count_together(pair: UseCases) -> None:
    """Each of two sizes fits alone; a second card has room for one of them."""
    pair.report(FIRST, sliced(FIRST, 2))
    arqs, instance = pair.arqs_for({}, {}), str(uuid4())
    big, half = (slice_of(FIRST, 0, name) for name in ("big", "half"))
    both = zip(arqs, (big, half), strict=True)
    with pytest.raises(exception.NoFreeHandle, match=r"memory \(\d of 8 used, \d needed"):
        pair.patch(*(Binding(arq, FIRST, place, instance) for arq, place in both))
    elsewhere = zip(arqs, (big, slice_of(FIRST, 1, "half")), strict=True)
    pair.patch(*(Binding(arq, FIRST, place, instance) for arq, place in elsewhere))
    sound(pair.db)


def test_unit_that_is_being_released_needs_no_further_room(pair: UseCases) -> None:
    """The refusal names the pool only if one has no room for the units that are not there yet."""
    pair.report(FIRST, sliced(FIRST, slices={"half": 4, "small": 1}))
    arqs, _ = pair.boot(slice_of(FIRST, 0, "half"), {}, {})
    pair.delete(arqs)
    with pytest.raises(exception.NoFreeHandle) as refusal:
        pair.boot(slice_of(FIRST, 0, "half"), {}, {}, {})
    assert "memory (8 of 8 used, 4 needed" in str(refusal.value)
    pair.do(WorkKind.RELEASE)
    # The units that are locked for this request use nothing yet.
    with pytest.raises(exception.NoFreeHandle) as refusal:
        pair.boot(slice_of(FIRST, 0, "half"), {}, {}, {})
    assert "memory (0 of 8 used, 4 needed" in str(refusal.value)
    pair.change(AttachHandle, AttachHandle.handle_key == "half-1", lost_ms=1)
    with pytest.raises(exception.NoFreeHandle) as refusal:
        pair.boot(slice_of(FIRST, 0, "half"), {}, {})
    assert "memory" not in str(refusal.value)
    arqs, _ = pair.boot(slice_of(FIRST, 0, "half"))
    pair.delete(arqs)
    with pytest.raises(exception.NoFreeHandle) as refusal:
        pair.boot(slice_of(FIRST, 0, "half"), {}, {})
    assert "memory" not in str(refusal.value)


def test_group_of_units_belongs_to_one_instance(pair: UseCases) -> None:
    """Two instances of one request do not make a whole group together."""
    both(pair, handles=4)
    pair.change(Deployable, Deployable.rp_uuid == HERE, group_size=2)
    arqs, instances = pair.arqs_for({}, {}, {}, {}), uuids()
    with pytest.raises(exception.Invalid, match="in groups of 2 units"):
        pair.patch(
            *(
                Binding(arq, FIRST, HERE, instance)
                for arq, instance in zip(arqs[:2], instances, strict=True)
            )
        )
    pair.patch(*(Binding(arq, FIRST, HERE, instances[i // 2]) for i, arq in enumerate(arqs)))
    sound(pair.db)


def test_all_arqs_of_a_request_count_against_the_quota(pair: UseCases) -> None:
    both(pair, handles=4)
    pair.ctx = replace(pair.ctx, limits=LimitsByProject({"project": {FPGAS: 2}}))
    with pytest.raises(exception.OverLimit) as refusal:
        pair.boot(HERE, {}, {}, {})
    assert refusal.value.fields["requested"] == 3
    pair.boot(HERE, {}, {})


@pytest.mark.parametrize("scarce", ["alpha", "beta"])
def test_each_project_of_a_request_has_its_own_quota(pair: UseCases, scarce: str) -> None:
    both(pair, handles=4)
    pair.ctx = replace(
        pair.ctx,
        limits=LimitsByProject({"alpha": {FPGAS: 5}, "beta": {FPGAS: 5}} | {scarce: {FPGAS: 1}}),
    )
    arqs, instances = pair.arqs_for({}, {}, {}), uuids(3)

    def bind(*projects: str) -> None:
        pair.patch(
            *(
                Binding(arq, FIRST, HERE, instance, project)
                for arq, instance, project in zip(arqs, instances, projects, strict=True)
            )
        )

    with pytest.raises(exception.OverLimit, match=f"of project {scarce}"):
        bind(scarce, {"alpha": "beta", "beta": "alpha"}[scarce], scarce)
    other = {"alpha": "beta", "beta": "alpha"}[scarce]
    bind(scarce, other, other)


@pytest.mark.parametrize("scarce", ["FPGA", "GPU"])
def test_each_resource_class_of_a_request_has_its_own_quota(pair: UseCases, scarce: str) -> None:
    pair.report(FIRST, report_of(FIRST, 1))
    pair.report(SECOND, report_of(SECOND, 1, resource_class="GPU"))
    limits = {of_class("FPGA"): 5, of_class("GPU"): 5}
    pair.ctx = replace(
        pair.ctx, limits=LimitsByProject({"project": limits | {of_class(scarce): 0}})
    )
    arqs = pair.create(pair.profile({"resources:FPGA": "1"}, {"resources:GPU": "1"}))
    instance = str(uuid4())
    with pytest.raises(exception.OverLimit, match=f"class:{scarce} of project"):
        pair.patch(
            Binding(arqs[0], FIRST, HERE, instance), Binding(arqs[1], FIRST, THERE, instance)
        )


def test_each_preparation_has_its_own_requirements(pair: UseCases) -> None:
    both(pair, prepare=True)
    arqs, _ = pair.boot(HERE, {"accel:mode": "fast"}, {"accel:mode": "small"})
    rows = pair.rows(Work, Work.kind == WorkKind.PREPARE.value)
    modes = {row.arq_uuid: row.spec["mode"] for row in rows}
    assert modes == dict(zip(arqs, ("fast", "small"), strict=True))


def test_only_the_arq_that_gets_a_unit_in_release_waits(pair: UseCases) -> None:
    both(pair, handles=2)
    (unit, _) = pair.units(f"{FIRST}_0")
    pair.change(AttachHandle, AttachHandle.id == unit.id, state="releasing")
    arqs, _ = pair.boot(HERE, {}, {})
    assert sorted(arq.state for arq in pair.arqs(arqs)) == [State.BIND_STARTED, State.BOUND]
    (waiting,) = (arq for arq in pair.arqs(arqs) if arq.state == State.BIND_STARTED)
    assert pair.handle(waiting.uuid).id == unit.id


def programmable(pair: UseCases, *providers: str) -> None:
    pair.change(Deployable, Deployable.rp_uuid.in_(providers), programmable=True)


def test_two_devices_of_one_request_load_two_images(pair: UseCases) -> None:
    both(pair, 2)
    places = [provider_of(FIRST, index) for index in range(2)]
    programmable(pair, *places)
    arqs, instance = pair.arqs_for(IMAGE, OTHER_IMAGE), str(uuid4())
    pair.patch(
        *(Binding(arq, FIRST, place, instance) for arq, place in zip(arqs, places, strict=True))
    )
    pair.do(WorkKind.PREPARE)
    images = {command.image.bitstream_id for _, command in pair.agents.asked}
    assert images == {IMAGE["accel:bitstream_id"], OTHER_IMAGE["accel:bitstream_id"]}
    assert all(command.image.exclusive for _, command in pair.agents.asked)
    assert {arq.state for arq in pair.arqs(arqs)} == {State.BOUND}


def test_one_device_does_not_load_two_images_of_a_request(pair: UseCases) -> None:
    both(pair)
    programmable(pair, HERE)
    with pytest.raises(exception.DeviceUnavailable, match="used by accelerator requests"):
        pair.boot(HERE, IMAGE, OTHER_IMAGE)


def test_image_is_loaded_once_for_two_arqs_of_a_request(pair: UseCases) -> None:
    """The first ARQ does not wait for the second, which waits for the image."""
    both(pair)
    programmable(pair, HERE)
    arqs, _ = pair.boot(HERE, IMAGE, IMAGE)
    (older, younger) = pair.claim(WorkKind.PREPARE)
    pair.do(rows=[younger])
    assert pair.agents.asked == []
    first = pair.handle(str(older.arq_uuid)).handle_key
    pair.agents.answers[first] = {"image": IMAGE["accel:bitstream_id"]}
    pair.do(rows=[older])
    ((_, command),) = pair.agents.asked
    assert command.image.exclusive
    pair.do(WorkKind.PREPARE)
    assert len(pair.agents.asked) == 1
    assert {arq.state for arq in pair.arqs(arqs)} == {State.BOUND}


def test_image_is_not_loaded_under_a_guest_that_has_a_unit(pair: UseCases) -> None:
    """One guest has the image, two more ask for it, and it is not known any more what is loaded."""
    both(pair, handles=3)
    programmable(pair, HERE)
    (guest,), _ = pair.boot(HERE, IMAGE)
    pair.agents.answers[pair.handle(guest).handle_key] = {"image": IMAGE["accel:bitstream_id"]}
    pair.do(WorkKind.PREPARE)
    assert pair.arq(guest).state == State.BOUND
    pair.change(Deployable, Deployable.rp_uuid == HERE, bitstream_id=None)
    pair.agents.received.clear()
    pair.boot(HERE, IMAGE, IMAGE)
    (older, _) = pair.claim(WorkKind.PREPARE)
    pair.do(rows=[older])
    ((_, command),) = pair.agents.asked
    assert not command.image.exclusive


def test_bind_waits_for_an_image_that_younger_work_loads(pair: UseCases) -> None:
    """The oldest work on the device loads nothing."""
    both(pair, handles=4)
    programmable(pair, HERE)
    deployable = pair.row(Deployable, Deployable.rp_uuid == HERE)
    (plain, *_), _ = pair.boot(HERE)
    with pair.db.writer() as tx:
        idle = {"kind": WorkKind.RELEASE, "deployable_id": deployable.id}
        work.add(tx, [idle, {"kind": WorkKind.PROGRAM, "deployable_id": deployable.id}])
    (waiting,), _ = pair.boot(HERE)
    states = [pair.arq(arq).state for arq in (plain, waiting)]
    assert states == [State.BOUND, State.BIND_STARTED]


def test_image_of_one_device_does_not_concern_the_other_one(pair: UseCases) -> None:
    """A guest has a unit of the first device, and an operator's image is loaded into it."""
    both(pair, 2)
    places = [provider_of(FIRST, index) for index in range(2)]
    programmable(pair, *places)
    pair.boot(places[0])
    deployable = pair.row(Deployable, Deployable.rp_uuid == places[0])
    with pair.db.writer() as tx:
        work.add(tx, [{"kind": WorkKind.PROGRAM, "deployable_id": deployable.id}])
    (plain,), _ = pair.boot(places[1])
    assert pair.arq(plain).state == State.BOUND
    pair.delete([plain])
    (arq,), _ = pair.boot(places[1], IMAGE)
    pair.do(WorkKind.PREPARE)
    assert pair.agents.asked[-1][1].image.exclusive
    assert pair.arq(arq).state == State.BOUND


def test_each_unit_is_cleaned_as_its_own_profile_requires(pair: UseCases) -> None:
    """Two ARQs that end together: neither was prepared, and the agent cleans both units."""
    both(pair)
    pair.change(Deployable, Deployable.rp_uuid == HERE, clean=HostClean.DEFAULT.value)
    arqs, instance = pair.boot(HERE, {"accel:clean": "reset"}, {"accel:clean": "full"})
    pair.delete_of(instance)
    rows = pair.rows(Work, Work.kind == WorkKind.RELEASE.value)
    levels = {row.arq_uuid: row.spec for row in rows}
    assert levels == dict(zip(arqs, ({"clean": "reset"}, {"clean": "full"}), strict=True))
    assert {unit.state for unit in pair.units(f"{FIRST}_0")} == {"releasing"}


def test_profiles_are_deleted_together_or_not_at_all(pair: UseCases) -> None:
    unused, used, other = (pair.profile({"resources:FPGA": "1"}) for _ in range(3))
    pair.create(used)
    with pytest.raises(exception.ProfileInUse, match=used):
        device_profiles.delete(pair.ctx, DeleteDeviceProfiles(NOVA, str(uuid4()), [unused, used]))
    assert len(pair.rows(DeviceProfile)) == 3
    device_profiles.delete(pair.ctx, DeleteDeviceProfiles(NOVA, str(uuid4()), [unused, other]))
    assert [row.name for row in pair.rows(DeviceProfile)] == [used]


def test_uuid_of_a_profile_goes_before_the_name_of_another(pair: UseCases) -> None:
    mine = str(uuid4())
    group = {"resources:FPGA": "1"}
    device_profiles.create(
        pair.ctx, CreateDeviceProfile(NOVA, str(uuid4()), Profile(str(uuid4()), mine, (group,)))
    )
    device_profiles.create(
        pair.ctx, CreateDeviceProfile(NOVA, str(uuid4()), Profile(mine, "mine", (group,)))
    )
    change = ProfileChange(description="changed", sets_description=True)
    assert (
        device_profiles.update(pair.ctx, UpdateDeviceProfile(NOVA, str(uuid4()), mine, change)).name
        == "mine"
    )
    assert [row.description for row in pair.rows(DeviceProfile)] == [None, "changed"]
