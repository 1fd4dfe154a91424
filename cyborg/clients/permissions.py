# SPDX-License-Identifier: Apache-2.0
"""Test what our accounts may do at Nova and Placement, without any change there.

The names of roles are not enough, because a policy file can define anything. Each test therefore
sends a request that this service also sends in normal operation, with the random UUID of a server
or a provider that does not exist. An account with permission gets "not found", an account without
permission is refused.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final
from uuid import uuid4

from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter

from cyborg import exception
from cyborg.clients.http import account_roles
from cyborg.clients.nova import MICROVERSION, BindEvent, EventVerdict, Nova, Servers
from cyborg.clients.placement import Placement

#: The role that no account on a compute host needs.
ADMIN: Final = "admin"
_REFUSALS = frozenset({401, 403})


class Answer(Enum):
    """The answer of a peer; UNKNOWN if it did not give a usable one."""

    GRANTED = auto()
    REFUSED = auto()
    UNKNOWN = auto()


@dataclass(frozen=True)
class Permission:
    """An answer, and a sentence that tells why it is not GRANTED.

    ``roles`` are the roles of the account's token, if Keystone issued one and a peer refused it.
    """

    answer: Answer
    reason: str = ""
    roles: tuple[str, ...] = ()


def to_send_events(adapter: Adapter) -> Permission:
    """Test whether Nova accepts our events, which tell it the results of binds."""

    def ask() -> None:
        event = BindEvent(str(uuid4()), str(uuid4()), succeeded=True)
        (verdict,) = Nova(adapter).send_events([event])
        if verdict is EventVerdict.REFUSED:
            raise exception.Unavailable(
                peer="Nova",
                reason=f"it does not know accelerator events; compute {MICROVERSION} is needed",
            )

    return _permission(adapter, ask)


def to_list_servers(adapter: Adapter) -> Permission:
    """Test whether Nova lists the servers of all projects: needed to detect deleted ones."""
    return _permission(adapter, lambda: Servers(adapter).vanished(()))


def to_write_providers(adapter: Adapter) -> Permission:
    """Test whether we may read and write providers in Placement: needed to offer devices."""
    placement, missing = Placement(adapter), str(uuid4())

    def ask() -> None:
        # A wrong endpoint answers 404 to every request; find_by_uuid tells it from Placement.
        try:
            placement.find_by_uuid(missing)
        except exception.NotFound:
            raise exception.Unavailable(
                peer="Placement", reason="something else answers at its endpoint"
            ) from None
        with contextlib.suppress(exception.NotFound):
            placement.set_traits(missing, 0, ())

    return _permission(adapter, ask)


def _permission(adapter: Adapter, ask: Callable[[], object]) -> Permission:
    try:
        ask()
    except exception.CyborgError as error:
        cause = error.__cause__
        status = error.fields.get("http")
        if isinstance(cause, ks_exceptions.HttpError):
            # Keystone itself refuses the account.
            status = cause.http_status
        if status in _REFUSALS:
            return Permission(Answer.REFUSED, str(error), account_roles(adapter))
        return Permission(Answer.UNKNOWN, str(error))
    return Permission(Answer.GRANTED)
