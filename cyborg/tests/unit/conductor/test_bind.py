# SPDX-License-Identifier: Apache-2.0
"""Providers that an ARQ may be bound to, and its owner after the bind, case by case."""

from types import SimpleNamespace
from typing import Any

import pytest

from cyborg import exception
from cyborg.conductor.arqs.bind import _check, _owner
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller

BINDING = Binding("arq", "compute", "provider", "instance")
ARQ = SimpleNamespace(uuid="arq", group_spec={"resources:FPGA": "1"}, project_id="own")
NOVA_FOR_USER = Caller("own", "user", "req-1", service=True)
NOVA_FOR_ADMIN = Caller("admins", "admin", "req-1", all_projects=True, service=True)


def deployable(**changes: Any) -> Any:
    """The row of the provider's deployable: its device is in service."""
    values: dict[str, Any] = {
        "device_uuid": "device",
        "resource_class": "FPGA",
        "status": "enabled",
        "lost_ms": None,
        "device_lost_ms": None,
        "publish_error": None,
        "host_disabled": False,
        "health": None,
    }
    return SimpleNamespace(**{**values, **changes})


def test_a_device_in_service_is_bound() -> None:
    _check(ARQ, BINDING, {"provider": deployable()})


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"lost_ms": 1}, "lost"),
        ({"lost_ms": 0}, "lost"),
        ({"device_lost_ms": 1}, "lost"),
        ({"publish_error": "its name is taken"}, "refused by Placement"),
        ({"host_disabled": True}, "out of service with its host"),
        ({"health": "drain"}, "not healthy (drain)"),
        ({"health": "dead"}, "not healthy (dead)"),
        ({"status": "maintaining"}, "maintaining"),
        ({"status": "inactive"}, "inactive"),
        ({"status": "installing"}, "installing"),
    ],
)
def test_a_device_out_of_service_is_not_bound(changes: dict[str, Any], status: str) -> None:
    with pytest.raises(exception.DeviceUnavailable) as caught:
        _check(ARQ, BINDING, {"provider": deployable(**changes)})
    assert caught.value.fields == {"uuid": "device", "provider": "provider", "status": status}


def test_an_unknown_provider_is_not_found() -> None:
    with pytest.raises(exception.NotFound, match="provider"):
        _check(ARQ, BINDING, {"another": deployable()})


def test_a_resource_class_that_was_not_requested_is_refused() -> None:
    with pytest.raises(exception.Invalid, match="offers GPU"):
        _check(ARQ, BINDING, {"provider": deployable(resource_class="GPU")})


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
    existing = {"instance": SimpleNamespace(project_id=remembered)}
    assert _owner(caller, binding, {"arq": ARQ}, existing) == owner
    if remembered is None:
        assert _owner(caller, binding, {"arq": ARQ}, {}) == owner
