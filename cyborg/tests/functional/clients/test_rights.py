# SPDX-License-Identifier: Apache-2.0
"""What accounts may do, asked of the real Placement and a simulated Nova; nothing changes there."""

import pytest
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token

from cyborg.clients import permissions
from cyborg.clients.permissions import Answer, Permission
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService


def adapter(url: str, token: str) -> Adapter:
    return Adapter(Session(auth=Token(url, token)), service_type="placement")


def test_permissions_are_granted_to_accounts_with_roles(
    nova: SimulatedNova, placement: PlacementService
) -> None:
    before = placement.call("GET", "/resource_providers")
    granted = Permission(Answer.GRANTED)
    assert permissions.to_write_providers(placement.adapter()) == granted
    assert permissions.to_send_events(nova.adapter()) == granted
    assert permissions.to_list_servers(nova.adapter()) == granted
    assert placement.call("GET", "/resource_providers") == before


@pytest.mark.parametrize("status", [401, 403])
def test_permission_to_send_events_is_refused_by_nova(nova: SimulatedNova, status: int) -> None:
    nova.answer_calls(status)
    right = permissions.to_send_events(nova.adapter())
    assert right.answer is Answer.REFUSED
    assert str(status) in right.reason
    nova.hide_servers()
    assert permissions.to_list_servers(nova.adapter()).answer is Answer.REFUSED


@pytest.mark.parametrize(
    ("status", "words"), [(406, "compute 2.82 is needed"), (503, "503"), (429, "busy")]
)
def test_permission_is_unknown_when_nova_gives_no_answer(
    nova: SimulatedNova, status: int, words: str
) -> None:
    nova.answer_calls(status)
    right = permissions.to_send_events(nova.adapter())
    assert right.answer is Answer.UNKNOWN
    assert words in right.reason


def test_permission_to_publish_is_refused_by_placement(
    nova: SimulatedNova, placement: PlacementService
) -> None:
    right = permissions.to_write_providers(adapter(placement.url, "nobody"))
    assert (right.answer, right.roles) == (Answer.REFUSED, ())
    right = permissions.to_write_providers(adapter(f"{nova.url}/elsewhere", "admin"))
    assert right == Permission(
        Answer.UNKNOWN, "Placement is not available: something else answers at its endpoint"
    )


def test_permission_is_unknown_when_nothing_listens() -> None:
    gone = adapter("http://127.0.0.1:1", "admin")
    for ask in (
        permissions.to_write_providers,
        permissions.to_send_events,
        permissions.to_list_servers,
    ):
        assert ask(gone).answer is Answer.UNKNOWN
