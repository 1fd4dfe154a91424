# SPDX-License-Identifier: Apache-2.0
"""Providers that an ARQ may be bound to, and its owner after the bind, case by case."""

from collections.abc import Callable

import pytest

from cyborg import exception
from cyborg.conductor.arqs.bind import _deployable, _owner
from cyborg.conductor.arqs.claims import TooFewHandles, repeated
from cyborg.db.arqs import LockedArq
from cyborg.db.deployables import Offer
from cyborg.db.instances import LockedInstance
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller
from cyborg.tests.fixtures.stored import stored

BINDING = Binding("arq", "compute", "provider", "instance")
ARQ = stored(LockedArq, uuid="arq", group_spec={"resources:FPGA": "1"}, project_id="own")
NOVA_FOR_USER = Caller("own", "user", "req-1", service=True)
NOVA_FOR_ADMIN = Caller("admins", "admin", "req-1", all_projects=True, service=True)


def test_an_unknown_provider_is_not_found() -> None:
    with pytest.raises(exception.NotFound, match="provider"):
        _deployable(ARQ, BINDING, {"another": stored(Offer)})


def test_a_resource_class_that_was_not_requested_is_refused() -> None:
    with pytest.raises(exception.Invalid, match="offers GPU"):
        _deployable(ARQ, BINDING, {"provider": stored(Offer, resource_class="GPU")})


@pytest.mark.parametrize(
    ("caller", "remembered", "named", "owner"),
    [
        pytest.param(NOVA_FOR_USER, None, None, "own", id="first bind"),
        pytest.param(NOVA_FOR_ADMIN, "former", None, "former", id="an administrator acts"),
        pytest.param(NOVA_FOR_ADMIN, None, None, "own", id="nobody is remembered"),
        pytest.param(
            NOVA_FOR_USER, "former", None, "own", id="a project binds for itself and nobody else"
        ),
        pytest.param(NOVA_FOR_ADMIN, "former", "named", "named", id="the request names the owner"),
    ],
)
def test_the_owner_of_a_bound_arq(
    caller: Caller, remembered: str | None, named: str | None, owner: str
) -> None:
    binding = Binding("arq", "compute", "provider", "instance", named)
    assert _owner(caller, binding, ARQ, stored(LockedInstance, project_id=remembered)) == owner
    if remembered is None:
        assert _owner(caller, binding, ARQ, None) == owner


def losing(*errors: Exception) -> tuple[list[bool], Callable[[], str]]:
    """A use case that loses these races, and whether each of its runs waited for handles."""
    runs: list[bool] = []
    left = list(errors)

    @repeated
    def use_case(*, wait: bool = False) -> str:
        runs.append(wait)
        if left:
            raise left.pop(0)
        return "done"

    return runs, use_case


@pytest.mark.parametrize("races", [0, 1, 9])
def test_a_use_case_that_loses_races_runs_again(races: int) -> None:
    runs, use_case = losing(*[exception.Conflict(reason="another was faster")] * races)
    assert use_case() == "done"
    assert runs == [False] * (races + 1)


def test_a_use_case_gives_up_after_ten_races() -> None:
    runs, use_case = losing(*[exception.Conflict(reason="another was faster")] * 10)
    with pytest.raises(exception.Conflict):
        use_case()
    assert len(runs) == 10


def test_a_final_conflict_is_not_tried_again() -> None:
    runs, use_case = losing(exception.NoFreeHandle(provider="provider", requested=1))
    with pytest.raises(exception.NoFreeHandle):
        use_case()
    assert len(runs) == 1


def test_a_use_case_that_skipped_handles_waits_for_them() -> None:
    runs, use_case = losing(TooFewHandles())
    assert use_case() == "done"
    assert runs == [False, True]
