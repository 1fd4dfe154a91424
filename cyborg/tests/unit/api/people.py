# SPDX-License-Identifier: Apache-2.0
"""Tokens of all personas, for keystonemiddleware's own test fixture: the token is the name."""

from datetime import timedelta
from typing import Any, Final

from keystoneauth1 import fixture as keystone
from oslo_utils import timeutils

OWN: Final = "a" * 32
OTHER: Final = "b" * 32
SERVICES: Final = "c" * 32

#: Persona → (project, roles).
PEOPLE: Final[dict[str, tuple[str, list[str]]]] = {
    "admin": (OWN, ["admin", "manager", "member", "reader"]),
    "elsewhere-admin": (OTHER, ["admin", "manager", "member", "reader"]),
    "bare-admin": (OWN, ["admin"]),
    "manager": (OWN, ["manager", "member", "reader"]),
    "member": (OWN, ["member", "reader"]),
    "reader": (OWN, ["reader"]),
    "operator": (OTHER, ["accelerator_operator", "member", "reader"]),
    "stranger": (OTHER, ["member", "reader"]),
    "elsewhere-manager": (OTHER, ["manager", "member", "reader"]),
    "nobody": (OWN, ["heat_stack_user"]),
    "service": (SERVICES, ["service"]),
    "nova": (SERVICES, ["service"]),
    # A valid token that is no service's, to be sent as a service token.
    "no-service": (SERVICES, ["member"]),
}


def issue(fixture: Any) -> None:
    """Make the tokens known to a ``keystonemiddleware.fixture.AuthTokenFixture``."""
    for name, (project, roles) in PEOPLE.items():
        fixture.add_token_data(
            token_id=name, project_id=project, user_id=f"user-of-{name}", role_list=roles
        )
    fixture.add_token(_scoped(system=True), "system-admin")
    fixture.add_token(_scoped(system=False), "domain-admin")
    expired = timeutils.utcnow() - timedelta(hours=1)
    fixture.add_token_data(
        token_id="expired-member", project_id=OWN, role_list=["member"], expires=expired
    )


def _scoped(*, system: bool) -> keystone.V3Token:
    token = keystone.V3Token(user_id="user-of-admin")
    token.add_role(name="admin")
    if system:
        token.set_system_scope()
    else:
        token.set_domain_scope(id="d" * 32, name="domain")
    return token
