# SPDX-License-Identifier: Apache-2.0
"""Binding over the whole service, all or none (check list, 52 to 65, 70 and 71)."""

import time
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any
from uuid import uuid4

import pytest

from cyborg.db.engine import Database
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.functional.life.cards import CARD, OTHER
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client, bind_body, unbind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    FPGA,
    bind,
    create,
    delete_arqs,
    everything,
    handle_states,
    of_instance,
    states,
)

Computes = Callable[..., ComputeHost]
Profiles = Callable[..., str]


def test_bind_ignores_the_order_of_patch_operations(
    compute: Computes, profile: Profiles, nova: Client
) -> None:
    host = compute()
    name = profile(FPGA)
    for order in permutations(range(3)):
        arqs = create(nova, name)
        body = bind_body(arqs, host.compute, host.fake_provider, str(uuid4()))
        ops = body[arqs[0]["uuid"]]
        assert nova.patch(ARQS, {arqs[0]["uuid"]: [ops[index] for index in order]}) is None
        assert states(nova, arqs) == ["Bound"]


def test_bind_without_service_token_is_refused(
    compute: Computes, profile: Profiles, member: Client, admin: Client
) -> None:
    host = compute()
    arqs = create(member, profile(FPGA))
    body = bind_body(arqs, host.compute, host.fake_provider, str(uuid4()))
    for one in (member, admin):
        fault = one.patch(ARQS, body, status=403)
        assert "requires a service token" in str(fault)
    assert states(member, arqs) == ["Initial"]


def test_bind_ignores_the_uuid_in_the_path(
    compute: Computes, profile: Profiles, nova: Client
) -> None:
    host = compute()
    name = profile(FPGA)
    for other in (None, str(uuid4())):
        arqs = create(nova, name)
        body = bind_body(arqs, host.compute, host.fake_provider, str(uuid4()))
        nova.patch(f"{ARQS}/{other or arqs[0]['uuid']}", body)
        assert states(nova, arqs) == ["Bound"]


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


def test_bind_assigns_distinct_handles_and_fails_when_none_is_free(
    racked: Callable[..., RackedCompute],
    resource_class: str,
    profile: Profiles,
    nova: Client,
    database: Database,
) -> None:
    host = racked(cards={CARD: 2})
    name = profile({f"resources:{resource_class}": "1"})
    seen = set()
    for _ in range(2):
        instance = bind(nova, create(nova, name), host.provider())
        seen |= {one["attach_handle_uuid"] for one in of_instance(nova, instance)}
    assert len(seen) == 2
    arqs = create(nova, name)
    before = everything(database, but=["work"])
    bind(nova, arqs, host.provider(), status=409)
    assert everything(database, but=["work"]) == before


def test_invalid_bind_body_changes_no_row(
    compute: Computes, profile: Profiles, nova: Client, database: Database
) -> None:
    host = compute()
    arqs = create(nova, profile({**FPGA, "resources:FPGA": "2"}))
    before = everything(database)
    for body in _odd_bodies(arqs, host):
        assert 400 <= nova.answer("PATCH", ARQS, body) < 500, body
        assert everything(database) == before, body
    bind(nova, arqs, str(uuid4()), status=404)
    assert everything(database) == before


def _odd_bodies(arqs: list[dict[str, Any]], host: ComputeHost) -> Iterator[Any]:
    uuid = arqs[0]["uuid"]
    good = bind_body(arqs[:1], host.compute, host.fake_provider, str(uuid4()))[uuid]
    yield from ({}, [], None, {uuid: []}, {uuid: {}}, {uuid: None}, {"no-uuid": good})
    for missing in range(3):
        yield {uuid: [one for index, one in enumerate(good) if index != missing]}
    yield {uuid: [*good, {"path": "/state", "op": "add", "value": "Bound"}]}
    yield {uuid: [{**one, "op": "replace"} for one in good]}
    yield {uuid: [good[0], good[1], {**good[2], "op": "remove"}]}
    yield {uuid: good, uuid.upper(): good}
    for place, value in ((0, 1), (0, ""), (0, "x" * 256), (1, "no-uuid"), (2, None), (2, [])):
        yield {uuid: [{**one, "value": value} if i == place else one for i, one in enumerate(good)]}


def test_project_of_arq_is_set_only_by_admin_from_2_1(
    compute: Computes, profile: Profiles, member: Client, admin: Client
) -> None:
    host = compute()
    arqs = create(admin, profile(FPGA))
    body = bind_body(arqs, host.compute, host.fake_provider, str(uuid4()))
    body[arqs[0]["uuid"]].append({"path": "/project_id", "op": "add", "value": member.project})
    nova = admin.with_service_token()
    nova.patch(ARQS, body, status=406)
    own = create(member, profile(FPGA))
    mine = {own[0]["uuid"]: body[arqs[0]["uuid"]]}
    newer = Client(member.app, "member", member.project, service=True, version="2.1")
    newer.patch(ARQS, mine, status=403)
    Client(admin.app, "admin", admin.project, service=True, version="2.1").patch(ARQS, body)
    assert member.get(f"{ARQS}/{arqs[0]['uuid']}")["state"] == "Bound"


def test_second_bind_of_an_instance_is_refused(
    compute: Computes, profile: Profiles, nova: Client, database: Database
) -> None:
    host = compute()
    name = profile(FPGA)
    instance = bind(nova, create(nova, name), host.fake_provider)
    more = create(nova, name)
    before = everything(database, but=["work"])
    bind(nova, more, host.fake_provider, instance=instance, status=400)
    bind(nova, more, host.fake_provider, instance=instance.upper(), status=400)
    assert everything(database, but=["work"]) == before


def test_unbound_arqs_can_be_bound_again(
    compute: Computes, profile: Profiles, nova: Client, database: Database
) -> None:
    host = compute()
    arqs = create(nova, profile({**FPGA, "resources:FPGA": "16"}))
    for _ in range(2):
        instance = bind(nova, arqs, host.fake_provider)
        nova.patch(ARQS, unbind_body(arqs))
        assert states(nova, arqs) == ["Unbound"] * 16
        assert of_instance(nova, instance) == []
        assert set(handle_states(database).values()) == {"free"}
    one = nova.get(f"{ARQS}/{arqs[0]['uuid']}")
    assert (one["hostname"], one["device_rp_uuid"], one["attach_handle_uuid"]) == (None,) * 3


def test_eight_arqs_of_a_bind_finish_in_10_seconds(
    compute: Computes, profile: Profiles, nova: Client
) -> None:
    host = compute()
    arqs = create(nova, profile({**FPGA, "resources:FPGA": "8"}))
    begun = time.monotonic()
    bind(nova, arqs, host.fake_provider)
    assert time.monotonic() - begun < 10
    assert states(nova, arqs) == ["Bound"] * 8


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


def test_invalid_unbind_fails_the_binds_of_its_request(
    compute: Computes, profile: Profiles, nova: Client, database: Database
) -> None:
    host = compute()
    arqs = create(nova, profile(FPGA))
    before = everything(database)
    body = bind_body(arqs, host.compute, host.fake_provider, str(uuid4()))
    nova.patch(ARQS, body | unbind_body([{"uuid": str(uuid4())}]), status=404)
    assert everything(database) == before


def test_bind_on_disabled_device_is_refused(
    compute: Computes, profile: Profiles, nova: Client, admin: Client, database: Database
) -> None:
    host = compute()
    (device,) = admin.get("/devices")["devices"]
    admin.post(f"/devices/{device['uuid']}/disable", status=204)
    arqs = create(nova, profile(FPGA))
    before = everything(database)
    fault = nova.patch(
        ARQS, bind_body(arqs, host.compute, host.fake_provider, str(uuid4())), status=409
    )
    assert "maintaining" in str(fault)
    assert everything(database) == before
    admin.post(f"/devices/{device['uuid']}/enable", status=204)
    bind(nova, arqs, host.fake_provider)


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
