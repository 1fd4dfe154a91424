# SPDX-License-Identifier: Apache-2.0
"""Who is asking, and for which request a thread works: log lines and outgoing calls tell it.

The ids of a request go from process to process (headers, the context of a call over the bus, the
history of what is done later), and nothing else of its identity does.
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
#: What whoever asked us calls the request that made it ask.
GLOBAL_ID: Final = "global_request_id"


class RequestContext(context.RequestContext):
    """One request's identity; oslo.log finds the latest one of its thread for its lines."""

    @classmethod
    def of_request(cls, environ: dict[str, Any], request_id: str) -> "RequestContext":
        """Read the headers that the middleware wrote; clients' own copies were removed there."""
        return cls.from_environ(environ, request_id=request_id)

    def is_service(self, service_roles: Set[str]) -> bool:
        """Whether a valid service token with one of these roles came along."""
        return not service_roles.isdisjoint(self.service_roles)


@contextmanager
def working_for(ids: Mapping[str, Any]) -> Iterator[None]:
    """Have this thread work for the request with these ids, as ``ids`` gives them.

    Work without a request id gets one of its own, so that its lines belong together. What the
    thread worked for before it works for again after that.
    """
    before = context.get_current()
    RequestContext(request_id=ids.get(REQUEST_ID), global_request_id=ids.get(GLOBAL_ID))
    try:
        yield
    finally:
        # No context at all is one, too: the library has no other word for it.
        context.RequestContext.update_store(before)  # type: ignore[arg-type]


def ids() -> dict[str, str]:
    """The ids and the trace of the request that this thread works for; empty while for none.

    This is what goes along to other processes, and into the history for what is done later.
    """
    current = context.get_current()
    if current is None:
        return {}
    told = {REQUEST_ID: current.request_id, GLOBAL_ID: current.global_request_id}
    return {name: value for name, value in told.items() if value} | tracing.carrier()


def headers() -> dict[str, str]:
    """The same for other services, as headers of a request to them."""
    current = context.get_current()
    known = {} if current is None else {"X-OpenStack-Request-ID": current.global_id}
    return known | tracing.carrier()


def carried(call: Callable[P, T]) -> Callable[P, T]:
    """The same call, which works for this thread's request in whatever thread it is made, once."""
    mine, variables = ids(), copy_context()

    def carry(*arguments: P.args, **named: P.kwargs) -> T:
        with working_for(mine):
            return variables.run(call, *arguments, **named)

    return carry
