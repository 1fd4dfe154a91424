# SPDX-License-Identifier: Apache-2.0
"""What our accounts may do at Nova and Placement, learned by asking about what is not there.

Names of roles tell little, because a policy file may say anything. So each question is one that
this service asks in its daily work, about a server or a provider whose uuid was just made up: who
may ask is told that there is none, who may not is refused, and nothing changes.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from uuid import uuid4

from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter
from keystoneauth1.identity.base import BaseIdentityPlugin

from cyborg import exception
from cyborg.clients.nova import MICROVERSION, BindEvent, EventVerdict, Nova, Servers
from cyborg.clients.placement import Placement

_REFUSALS = frozenset({401, 403})


class Answer(Enum):
    """What a peer said; UNKNOWN when it said nothing of use."""

    GRANTED = auto()
    REFUSED = auto()
    UNKNOWN = auto()


@dataclass(frozen=True)
class Permission:
    """An answer, and why it is not GRANTED, as a sentence.

    ``roles`` are those of the account's token, as far as Keystone gave it and it was refused.
    """

    answer: Answer
    reason: str = ""
    roles: tuple[str, ...] = ()


def telling(adapter: Adapter) -> Permission:
    """Whether Nova takes our events: without them it never hears how a bind ended."""

    def ask() -> None:
        event = BindEvent(str(uuid4()), str(uuid4()), succeeded=True)
        (verdict,) = Nova(adapter).send_events([event])
        if verdict is EventVerdict.REFUSED:
            raise exception.Unavailable(
                peer="Nova",
                reason=f"it does not know accelerator events; compute {MICROVERSION} is needed",
            )

    return _right(adapter, ask)


def listing(adapter: Adapter) -> Permission:
    """Whether Nova lists all projects' servers to us: else none can be known to be gone."""
    return _right(adapter, lambda: Servers(adapter).vanished(()))


def publishing(adapter: Adapter) -> Permission:
    """Whether Placement lets us read and write providers: else no device is ever offered."""
    placement, nobody = Placement(adapter), str(uuid4())

    def ask() -> None:
        # A wrong endpoint answers 404 to everything; here that would be no answer.
        try:
            placement.find_by_uuid(nobody)
        except exception.NotFound:
            raise exception.Unavailable(
                peer="Placement", reason="something else answers at its endpoint"
            ) from None
        with contextlib.suppress(exception.NotFound):
            placement.set_traits(nobody, 0, ())

    return _right(adapter, ask)


def _right(adapter: Adapter, ask: Callable[[], object]) -> Permission:
    try:
        ask()
    except exception.CyborgError as error:
        cause = error.__cause__
        status = error.fields.get("http")
        if isinstance(cause, ks_exceptions.HttpError):
            # Keystone itself does not let us in.
            status = cause.http_status
        if status in _REFUSALS:
            return Permission(Answer.REFUSED, str(error), _roles(adapter))
        return Permission(Answer.UNKNOWN, str(error))
    return Permission(Answer.GRANTED)


def _roles(adapter: Adapter) -> tuple[str, ...]:
    plugin = adapter.session.auth
    if isinstance(plugin, BaseIdentityPlugin):
        with contextlib.suppress(ks_exceptions.ClientException):
            return tuple(sorted(plugin.get_access(adapter.session).role_names or ()))
    return ()
