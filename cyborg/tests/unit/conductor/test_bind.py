# SPDX-License-Identifier: Apache-2.0
"""Providers that an ARQ may be bound to, and its owner after the bind, case by case."""

from types import SimpleNamespace

import pytest

from cyborg import exception
from cyborg.conductor.arqs.bind import _deployable, _owner
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller

BINDING = Binding("arq", "compute", "provider", "instance")
ARQ = SimpleNamespace(uuid="arq", group_spec={"resources:FPGA": "1"}, project_id="own")
NOVA_FOR_USER = Caller("own", "user", "req-1", service=True)
NOVA_FOR_ADMIN = Caller("admins", "admin", "req-1", all_projects=True, service=True)


def test_an_unknown_provider_is_not_found() -> None:
    with pytest.raises(exception.NotFound, match="provider"):
        _deployable(ARQ, BINDING, {"another": SimpleNamespace()})


def test_a_resource_class_that_was_not_requested_is_refused() -> None:
    with pytest.raises(exception.Invalid, match="offers GPU"):
        _deployable(ARQ, BINDING, {"provider": SimpleNamespace(resource_class="GPU")})


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
    assert _owner(caller, binding, ARQ, SimpleNamespace(project_id=remembered)) == owner
    if remembered is None:
        assert _owner(caller, binding, ARQ, None) == owner
