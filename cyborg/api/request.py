# SPDX-License-Identifier: Apache-2.0
"""A request as the controllers see it."""

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
    """pecan's request, whose body is read by ``cyborg.api.parsing`` alone.

    pecan itself would parse each body to guess arguments from it, and fail on the odd ones.
    """

    # pecan's own logs a stack trace for each URL that is not UTF-8.
    __getattribute__ = webob.Request.__getattribute__

    @property
    def json(self) -> NoReturn:
        """Refused, so that pecan falls back to ``params``."""
        raise ValueError

    @property
    def params(self) -> Any:
        """The query string alone."""
        return self.GET

    @property
    def request_id(self) -> str:
        """The id under which the middleware answers; made here where there is no middleware."""
        request_id = self.environ.setdefault(REQUEST_ID, None) or context.generate_request_id()
        self.environ[REQUEST_ID] = request_id
        return str(request_id)

    def negotiate(self) -> None:
        """Settle the microversion; raises NotAcceptable."""
        self.environ[_MINOR] = None
        self.environ[_MINOR] = microversion.negotiate(self.headers.get(microversion.HEADER))

    def check_accept(self, content_type: str) -> None:
        """Raise 406 when the client does not take this content type."""
        if not self.accept.acceptable_offers([content_type]):
            raise webob.exc.HTTPNotAcceptable(f"Answers are {content_type}.")

    @property
    def versioned(self) -> bool:
        """Whether the request went below /v2, and so has version headers in its answer."""
        return _MINOR in self.environ

    @property
    def minor(self) -> int | None:
        """The microversion settled on; None: the client asked for one that there is not."""
        minor: int | None = self.environ.get(_MINOR)
        return minor

    def identity(self) -> RequestContext:
        """Who is asking, as the authentication middleware found."""
        return RequestContext.of_request(self.environ, self.request_id)
