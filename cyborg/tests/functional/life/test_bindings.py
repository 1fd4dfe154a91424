# SPDX-License-Identifier: Apache-2.0
"""Binding over the whole service, all or none (check list, 52 to 65, 70 and 71)."""

from collections.abc import Callable
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
    of_instance,
    states,
)

Computes = Callable[..., ComputeHost]
Profiles = Callable[..., str]


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
