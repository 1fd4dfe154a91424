# SPDX-License-Identifier: Apache-2.0
"""The caller and the IDs of the request that a thread processes, for log lines and outgoing calls.

Only the IDs of a request are passed between processes: in headers, in the context of a call over
the bus, and in the history of deferred work. No other part of the caller's identity is passed.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Final, ParamSpec, TypeVar

from oslo_context import context

from cyborg import tracing

P = ParamSpec("P")
T = TypeVar("T")

REQUEST_ID: Final = "request_id"
#: The ID that the client uses for the request that caused its own call.
GLOBAL_ID: Final = "global_request_id"


class RequestContext(context.RequestContext):
    """The identity of a request; oslo.log uses the latest context of a thread in its log lines."""

    def is_for_compute(self, service_roles: Set[str], compute_users: Set[str]) -> bool:
        """Return whether the service token of the request is one of Nova.

        It has one of ``service_roles`` and belongs to one of ``compute_users``, or, if there are
        none, to another user than the request: no account can vouch for itself.
        """
        if service_roles.isdisjoint(self.service_roles):
            return False
        user = self.service_user_id, self.service_user_name, self.service_user_domain_id
        return self.service_user_id != self.user_id and (
            not compute_users or _is_one_of(compute_users, *user)
        )

    def is_compute(self, service_roles: Set[str], compute_users: Set[str]) -> bool:
        """Return whether the user of the request is Nova itself.

        The user has one of ``service_roles``, and is one of ``compute_users`` or sends a service
        token of Nova.
        """
        user = self.user_id, self.user_name, self.user_domain_id
        return not service_roles.isdisjoint(self.roles) and (
            _is_one_of(compute_users, *user) or self.is_for_compute(service_roles, compute_users)
        )


def _is_one_of(users: Set[str], id_: str | None, name: str | None, domain_id: str | None) -> bool:
    """Return whether a user is listed by id, or by name if its domain has the id ``default``."""
    return id_ in users or (domain_id == "default" and name in users)


@contextmanager
def working_for(ids: Mapping[str, Any]) -> Iterator[None]:
    """Assign this thread to the request with these IDs, in the form of the function ``ids``.

    Work without a request ID gets a new ID, so that its log lines can be related. At the end the
    thread returns to its previous request.
    """
    before = context.get_current()
    RequestContext(request_id=ids.get(REQUEST_ID), global_request_id=ids.get(GLOBAL_ID))
    try:
        yield
    finally:
        # ``before`` is None if the thread had no context; the library has no method to remove one.
        context.RequestContext.update_store(before)  # type: ignore[arg-type]


def ids() -> dict[str, str]:
    """Return the IDs and the trace of this thread's request; empty if it has no request.

    Other processes and the history of deferred work get these values.
    """
    current = context.get_current()
    if current is None:
        return {}
    values = {REQUEST_ID: current.request_id, GLOBAL_ID: current.global_request_id}
    return {name: value for name, value in values.items() if value} | tracing.carrier()


def headers() -> dict[str, str]:
    """Return the request ID and the trace as headers of a request to another service."""
    current = context.get_current()
    request = {} if current is None else {"X-OpenStack-Request-ID": current.global_id}
    return request | tracing.carrier()


def carried(call: Callable[P, T]) -> Callable[P, T]:
    """Return ``call`` bound to the request of this thread, to be run once in another thread."""
    origin, variables = ids(), copy_context()

    def carry(*arguments: P.args, **named: P.kwargs) -> T:
        with working_for(origin):
            return variables.run(call, *arguments, **named)

    return carry
