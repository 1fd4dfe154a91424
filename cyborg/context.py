# SPDX-License-Identifier: Apache-2.0
"""Who is asking: the identity that the authentication middleware put into a request."""

from collections.abc import Set
from typing import Any

from oslo_context import context


class RequestContext(context.RequestContext):
    """One request's identity; oslo.log finds the latest one of its thread for its lines."""

    @classmethod
    def of_request(cls, environ: dict[str, Any], request_id: str) -> "RequestContext":
        """Read the headers that the middleware wrote; clients' own copies were removed there."""
        return cls.from_environ(environ, request_id=request_id)

    def is_service(self, service_roles: Set[str]) -> bool:
        """Whether a valid service token with one of these roles came along."""
        return not service_roles.isdisjoint(self.service_roles)
