# SPDX-License-Identifier: Apache-2.0
"""The request class of the API: request id, microversion, content negotiation and identity."""

from typing import Any, NoReturn

import pecan
import webob
import webob.exc
from oslo_context import context

from cyborg.api import microversion
from cyborg.api.middleware.request_log import REQUEST_ID
from cyborg.context import RequestContext

_MINOR = "cyborg.microversion"


class Request(pecan.Request):
    """A pecan request whose body only ``cyborg.api.parsing`` reads.

    pecan itself parses each body to find arguments, and fails on malformed bodies.
    """

    # pecan's own method logs a stack trace for each URL that is not UTF-8.
    __getattribute__ = webob.Request.__getattribute__

    @property
    def json(self) -> NoReturn:
        """Raise ValueError, so that pecan uses ``params`` instead."""
        raise ValueError

    @property
    def params(self) -> Any:
        """The parameters of the query string, without those of the body."""
        return self.GET

    @property
    def request_id(self) -> str:
        """The request id that the middleware set; generated here if there is no middleware."""
        request_id = self.environ.setdefault(REQUEST_ID, None) or context.generate_request_id()
        self.environ[REQUEST_ID] = request_id
        return str(request_id)

    def negotiate(self) -> None:
        """Set the microversion from the header; raises NotAcceptable."""
        self.environ[_MINOR] = None
        self.environ[_MINOR] = microversion.negotiate(self.headers.get(microversion.HEADER))

    def check_accept(self, content_type: str) -> None:
        """Raise 406 if the client does not accept this content type."""
        if not self.accept.acceptable_offers([content_type]):
            raise webob.exc.HTTPNotAcceptable(f"Answers are {content_type}.")

    @property
    def versioned(self) -> bool:
        """Whether the path is below /v2, so that the answer has version headers."""
        return _MINOR in self.environ

    @property
    def minor(self) -> int | None:
        """The negotiated minor version; None if the requested microversion does not exist."""
        minor: int | None = self.environ.get(_MINOR)
        return minor

    def identity(self) -> RequestContext:
        """Return the caller's identity as the authentication middleware set it."""
        return RequestContext.of_request(self.environ, self.request_id)
