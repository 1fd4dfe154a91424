# SPDX-License-Identifier: Apache-2.0
"""Binds over the whole service: all or none, told to Nova, at once, and by other conductors."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.tasks import queue
from cyborg.conductor.tasks.queue import Fenced
from cyborg.db import work
from cyborg.db.engine import Database
from cyborg.db.models import Service, Work
from cyborg.db.services import Process
from cyborg.model.caller import Caller
from cyborg.model.process import CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually, joined
from cyborg.tests.functional.life.cards import CARD, OTHER
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client, bind_body, unbind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    FPGA,
    Arqs,
    bind,
    create,
    create_many,
    delete_arqs,
    eventually_bound,
    eventually_idle,
    eventually_offered,
    everything,
    handle_states,
    meddle,
    of_instance,
    states,
    work_left,
)
from cyborg.tests.functional.races.arena import at_once, sound

Computes = Callable[..., ComputeHost]
Profiles = Callable[..., str]
THREE = {**FPGA, "resources:FPGA": "3"}
CALLER = Caller("project", "user", "req-change")
PATH = "/device_profiles"
OTHERS = {"resources:CUSTOM_OTHER": "3"}


def test_bound_arqs_are_complete_when_bind_returns(
    racked: Callable[..., RackedCompute], resource_class: str, profile: Profiles, nova: Client
) -> None:
    host = racked(cards={CARD: 3})
    arqs = create(nova, profile({f"resources:{resource_class}": "3"}))
    instance = bind(nova, arqs, host.provider(), host="node.as.libvirt.says")
    bound = of_instance(nova, instance)
    assert {one["uuid"] for one in bound} == {one["uuid"] for one in arqs}
    for one in bound:
        assert one["state"] == "Bound"
        assert one["hostname"] == "node.as.libvirt.says"
        assert one["device_rp_uuid"] == host.provider()
        assert one["attach_handle_type"] == "PCI"
    addresses = [one["attach_handle_info"] for one in bound]
    assert addresses == [
        {"domain": "0000", "bus": "81", "device": "00", "function": str(unit)} for unit in (1, 2, 3)
    ]


def test_each_group_is_bound_on_its_own_provider(
    racked: Callable[..., RackedCompute],
    compute: Computes,
    resource_class: str,
    profile: Profiles,
    nova: Client,
) -> None:
    cards, fake = racked(cards={CARD: 1, OTHER: 2}), compute()
    name = profile(FPGA, {f"resources:{resource_class}": "2"}, {f"resources:{resource_class}": "1"})
    arqs = create(nova, name)
    places = [fake.fake_provider, cards.provider(OTHER), cards.provider(OTHER), cards.provider()]
    instance = str(uuid4())
    body: dict[str, Any] = {}
    for arq, place in zip(arqs, places, strict=True):
        body |= bind_body([arq], "compute", place, instance)
    nova.patch(ARQS, body)
    bound = of_instance(nova, instance)
    assert [one["device_rp_uuid"] for one in bound] == places
    assert [one["attach_handle_info"]["bus"] for one in bound] == ["0c", "82", "82", "81"]


@pytest.mark.parametrize("flaw", ["provider", "class", "handles", "state", "line 63: foreign"])
def test_bind_changes_nothing_when_its_last_arq_fails(
    compute: Computes,
    racked: Callable[..., RackedCompute],
    profile: Profiles,
    nova: Client,
    database: Database,
    *,
    resource_class: str,
    flaw: str,
) -> None:
    host, cards = compute(), racked(cards={CARD: 1})
    name, other = profile(FPGA), profile({f"resources:{resource_class}": "1"})
    arqs = create(nova, profile({**FPGA, "resources:FPGA": "3"}))
    last, place, status = create(nova, name), host.fake_provider, 0
    if flaw == "provider":
        place, status = str(uuid4()), 404
    elif flaw == "class":
        place, status = cards.provider(), 400
    elif flaw == "handles":
        bind(nova, create(nova, other), cards.provider())
        last, place, status = create(nova, other), cards.provider(), 409
    elif flaw == "state":
        bind(nova, last, place)
        status = 409
    else:
        last, status = create(Client(nova.app, project="another"), name), 404
    instance = str(uuid4())
    body = bind_body(arqs, host.compute, host.fake_provider, instance)
    before = everything(database, but=["work"])
    nova.patch(ARQS, body | bind_body(last, host.compute, place, instance), status=status)
    assert everything(database, but=["work"]) == before
    assert states(nova, arqs) == ["Initial"] * 3


def test_one_request_binds_and_unbinds(
    compute: Computes, profile: Profiles, nova: Client, database: Database
) -> None:
    host = compute()
    name = profile({**FPGA, "resources:FPGA": "10"})
    old, new = create(nova, name), create(nova, name)
    bind(nova, old, host.fake_provider)
    instance = str(uuid4())
    mixed = bind_body(new, host.compute, host.fake_provider, instance) | unbind_body(old)
    before = everything(database, but=["work"])
    nova.patch(ARQS, mixed, status=409)
    assert everything(database, but=["work"]) == before
    fewer = bind_body(new[:6], host.compute, host.fake_provider, instance) | unbind_body(old)
    nova.patch(ARQS, fewer)
    assert states(nova, old) == ["Unbound"] * 10
    assert states(nova, new) == ["Bound"] * 6 + ["Initial"] * 4


def test_project_of_instance_is_kept_when_admin_binds(
    compute: Computes, profile: Profiles, nova: Client, admin: Client
) -> None:
    """An administrator who evacuates or unshelves a server does it in its owner's name."""
    host, elsewhere = compute(), compute()
    name = profile(FPGA)
    instance = bind(nova, create(nova, name), host.fake_provider)
    theirs = admin.with_service_token()
    delete_arqs(theirs, instance)
    assert of_instance(nova, instance) == []
    arqs = create(admin, name)
    bind(theirs, arqs, elsewhere.fake_provider, instance=instance)
    (arq,) = of_instance(nova, instance)
    assert (arq["project_id"], arq["uuid"]) == (nova.project, arqs[0]["uuid"])
    # With a service token, a delete by instance reaches every project.
    Client(nova.app, project="another", service=True).delete(f"{ARQS}?instance={instance}")
    assert of_instance(nova, instance) == []


def test_one_event_request_has_an_entry_for_each_arq(
    compute: Computes, profile: Profiles, nova: Client, nova_api: SimulatedNova
) -> None:
    host = compute()
    arqs = create(nova, profile(THREE))
    instance = bind(nova, arqs, host.fake_provider)
    nova_api.wait_for_events([one["uuid"] for one in arqs])
    # A conductor may still tell what an earlier test has bound.
    (call,) = (one for one in nova_api.calls if one.events[0].server_uuid == instance)
    # That it holds allowed keys only the simulated Nova has checked, as the real one does.
    assert call.microversion == "compute 2.82"
    assert {(one.server_uuid, one.status) for one in call.events} == {(instance, "completed")}
    assert {one.tag for one in call.events} == {one["uuid"] for one in arqs}


def test_each_event_has_its_own_code_in_mixed_response(
    compute: Computes,
    profile: Profiles,
    nova: Client,
    nova_api: SimulatedNova,
    database: Database,
) -> None:
    host = compute()
    name = profile(FPGA)
    codes = {str(uuid4()): code for code in (200, 404, 422)}
    body: dict[str, Any] = {}
    for instance, code in codes.items():
        nova_api.answer_instance(instance, code)
        body |= bind_body(create(nova, name), host.compute, host.fake_provider, instance)
    nova.patch(ARQS, body)
    eventually_idle(database)
    answered = {one.server_uuid: one.code for one in nova_api.events if one.server_uuid in codes}
    assert answered == codes
    for instance in codes:
        assert [one["state"] for one in of_instance(nova, instance)] == ["Bound"]


@pytest.mark.parametrize("answers", [[404], [500, 200], [429, 429, 200]])
def test_event_request_is_repeated_only_when_nova_is_busy_or_fails(
    compute: Computes,
    profile: Profiles,
    nova: Client,
    nova_api: SimulatedNova,
    database: Database,
    *,
    answers: list[int],
) -> None:
    """A refusal is an answer; a Nova that is unwell or busy is asked again, until it answers."""
    host = compute()
    arqs = create(nova, profile(FPGA))
    nova_api.answer_calls(*(one for one in answers if one != 200))
    instance = bind(nova, arqs, host.fake_provider)
    eventually_idle(database)
    codes = [one.code for one in nova_api.events if one.server_uuid == instance]
    assert codes == answers
    assert states(nova, arqs) == ["Bound"]


def test_arqs_are_bound_before_nova_receives_the_event(
    compute: Computes, profile: Profiles, nova: Client, nova_api: SimulatedNova
) -> None:
    host = compute()
    arqs = create(nova, profile(FPGA))
    before = len(nova_api.calls)
    nova_api.hold()
    try:
        instance = bind(nova, arqs, host.fake_provider)
        nova_api.wait_for_calls(before + 1)
        # Nova has the event and has not answered yet.
        assert [one["state"] for one in of_instance(nova, instance)] == ["Bound"]
    finally:
        nova_api.release()


def test_no_event_is_sent_for_an_unbound_arq(
    compute: Computes,
    profile: Profiles,
    nova: Client,
    nova_api: SimulatedNova,
    database: Database,
) -> None:
    host = compute()
    nova_api.answer_calls(429)
    arqs = create(nova, profile(FPGA))
    nova_api.hold()
    try:
        instance = bind(nova, arqs, host.fake_provider)
        eventually(lambda: any(one.server_uuid == instance for one in nova_api.events))
        delete_arqs(nova, instance)
    finally:
        # Now the conductor hears that it has to repeat the request.
        nova_api.release()
    eventually_idle(database)
    assert [one.code for one in nova_api.events if one.server_uuid == instance] == [429]


def seen(host: RackedCompute) -> None:
    """Wait until the agent has looked at its machine from now on."""
    scans = host.driver.scans
    eventually(lambda: host.driver.scans > scans + 1)


def asked(client: Client, method: str, path: str, body: Any = None) -> Callable[[], int]:
    return lambda: client.answer(method, path, body)


def test_concurrent_reports_and_binds(
    racked: Callable[..., RackedCompute],
    resource_class: str,
    profile: Profiles,
    nova: Client,
    *,
    database: Database,
    placement: PlacementService,
) -> None:
    host = racked(cards={CARD: 8})
    rounds = create_many(nova, profile, resource_class, 16)

    def lifecycle(arqs: Arqs) -> int:
        body = bind_body(arqs, host.compute, host.provider(), str(uuid4()))
        answer = nova.answer("PATCH", ARQS, body)
        if answer == 202:
            nova.patch(ARQS, unbind_body(arqs))
        return answer

    def wiggle() -> int:
        for units in (3, 9, 8):
            host.plug(CARD, units)
            seen(host)
        return 0

    verbs: list[Callable[[], int]] = [wiggle, *(partial(lifecycle, arqs) for arqs in rounds)]
    answers = at_once(verbs)
    assert set(answers[1:]) <= {202, 409}
    sound(database)
    eventually(lambda: set(handle_states(database).values()) == {"free"})
    host.plug(CARD, 9)
    eventually_offered(placement, host.provider(), 9)


def test_concurrent_enable_disable_and_reports(
    racked: Callable[..., RackedCompute], admin: Client, placement: PlacementService
) -> None:
    host = racked(cards={CARD: 2})
    uuid = admin.get("/devices")["devices"][0]["uuid"]
    for units in (3, 4, 5):
        host.plug(CARD, units)
        verbs = [
            asked(admin, "POST", f"/devices/{uuid}/{one}") for one in ("disable", "enable") * 3
        ]
        assert set(at_once(verbs)) == {204}
    admin.post(f"/devices/{uuid}/disable", status=204)
    eventually_offered(placement, host.provider(), 0)
    admin.post(f"/devices/{uuid}/enable", status=204)
    eventually_offered(placement, host.provider(), 5)


def test_work_of_a_dead_conductor_is_taken_over(
    compute: Computes,
    profile: Profiles,
    nova: Client,
    nova_api: SimulatedNova,
    stack: Stack,
    database: Database,
) -> None:
    host = compute()
    (arq,) = create(nova, profile(FPGA))
    instance = bind(nova, [arq], host.fake_provider)
    eventually_idle(database)
    mortal = Process(f"mortal-{uuid4().hex[:8]}", CONDUCTOR, "0", "nowhere", "1")
    lease = ConductorLease(db=database, process=mortal)
    lease.renew()
    assert lease.owner is not None
    task = {"kind": WorkKind.NOTIFY, "instance_uuid": instance, "arq_uuid": arq["uuid"]}
    with database.writer() as tx:
        work.add(tx, [task])
        rows = work.claim(tx, owner=lease.owner, lease_ms=1000, limit=1)

    def told() -> int:
        return sum(one.tag == arq["uuid"] for one in nova_api.events)

    past = int(2000 * stack.times.lease)
    due = {"created_ms": Work.created_ms - past, "not_before_ms": Work.not_before_ms - past}
    meddle(database, sa.update(Work).values(due))
    lease.renew()
    # As long as it lives, however long it takes, nobody else touches it: the other conductor does
    # what became due later.
    eventually_bound(nova, bind(nova, create(nova, profile(FPGA)), host.fake_provider))
    eventually(lambda: work_left(database) == ["notify"])
    assert told() == 1
    # It shows no more signs of life.
    silent = sa.update(Service).where(Service.host == mortal.host)
    meddle(database, silent.values(last_seen_ms=Service.last_seen_ms - past))
    eventually(lambda: told() == 2)
    eventually_idle(database)
    # It comes to itself, and finds that what it does counts no more.
    ctx = context(database)
    for transaction in (queue.complete, queue.checkpoint):
        with pytest.raises(Fenced), transaction(ctx, rows) as tx:
            tx.execute(sa.update(Service).values(host_status="disabled"))
    with database.reader() as tx:
        assert set(tx.scalars(sa.select(Service.host_status))) == {"enabled"}
    queue.reschedule(ctx, rows, "too late")
    assert (work_left(database), told()) == ([], 2)


def served(answers: Counter[int]) -> None:
    """Wait until some more requests have been answered."""
    count = answers.total()
    eventually(lambda: answers.total() > count + 4)


def test_stopping_conductor_fails_no_request(
    beside: Callable[..., Stack], profile: Profiles, member: Client
) -> None:
    """What reached it in its last moment is asked again, of another."""
    ending = beside().start_conductor("control-2")
    name = profile(FPGA)
    over = threading.Event()
    answers: Counter[int] = Counter()

    def ask() -> None:
        while not over.is_set():
            answers[member.answer("POST", ARQS, {"device_profile_name": name})] += 1

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    served(answers)
    ending.stop()
    served(answers)
    over.set()
    joined(*threads)
    assert set(answers) == {201}


def test_arqs_keep_groups_of_the_former_profile(
    compute: Callable[..., ComputeHost],
    profile: Callable[..., str],
    operator: Client,
    member: Client,
    nova: Client,
) -> None:
    host, name = compute(), profile(FPGA)
    bound, unbound = create(member, name), create(member, name)
    bind(nova, bound, host.fake_provider, host=host.compute)
    uuid = member.get(f"{PATH}/{name}")["device_profile"]["uuid"]
    new = f"profile-{uuid4().hex}"
    body = {"name": new, "description": "others", "groups": [OTHERS]}
    changed = operator.patch(f"{PATH}/{uuid}", body, status=200)
    assert {**changed, **body} == changed
    assert changed["updated_at"] is not None
    shown = replace(member, version=operator.version).get(f"{PATH}/{new}")["device_profile"]
    assert {**shown, "warnings": changed["warnings"]} == changed
    assert member.get(f"{PATH}/{name}", status=404)
    assert states(member, bound) == ["Bound"]
    # What was asked for before is bound to what it was for then.
    bind(nova, unbound, host.fake_provider, host=host.compute)
    assert states(member, unbound) == ["Bound"]
    fresh = create(member, new)
    assert len(fresh) == 3
    bind(nova, fresh, host.fake_provider, host=host.compute, status=400)
