# SPDX-License-Identifier: Apache-2.0
"""Telling Nova how a bind ended (check list, 66 to 68)."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from cyborg.db.engine import Database
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    FPGA,
    bind,
    create,
    delete_arqs,
    eventually,
    eventually_idle,
    of_instance,
    states,
)

Computes = Callable[..., ComputeHost]
Profiles = Callable[..., str]
THREE = {**FPGA, "resources:FPGA": "3"}


def test_one_event_request_has_an_entry_for_each_arq(
    compute: Computes, profile: Profiles, nova: Client, nova_api: SimulatedNova
) -> None:
    host = compute()
    arqs = create(nova, profile(THREE))
    before = len(nova_api.calls)
    instance = bind(nova, arqs, host.fake_provider)
    nova_api.wait_for_events([one["uuid"] for one in arqs], timeout=5)
    (call,) = nova_api.calls[before:]
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
        nova_api.wait_for_calls(before + 1, timeout=5)
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
    instance = bind(nova, arqs, host.fake_provider)
    eventually(lambda: any(one.server_uuid == instance for one in nova_api.events))
    delete_arqs(nova, instance)
    eventually_idle(database)
    assert [one.code for one in nova_api.events if one.server_uuid == instance] == [429]
