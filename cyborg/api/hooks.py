# SPDX-License-Identifier: Apache-2.0
"""What happens around every request inside pecan: its errors' answer, and the common headers."""

from typing import Any

import pecan.hooks
import webob

from cyborg.api import expose, microversion

REQUEST_ID_HEADER = "x-openstack-request-id"


class Envelope(pecan.hooks.PecanHook):
    """Turns every exception into an error answer, and puts id and versions on all answers."""

    def on_route(self, state: Any) -> None:
        """Keep pecan from choosing a content type; there is one only (see ``Root``)."""
        state.request.pecan["content_type"] = expose.JSON

    def on_error(self, state: Any, error: Exception) -> webob.Response:
        """Answer for what a handler or the routing raised."""
        return expose.fault(error, state.request.request_id)

    def after(self, state: Any) -> None:
        """Add the headers that clients look for."""
        headers = state.response.headers
        headers[REQUEST_ID_HEADER] = state.request.request_id
        if state.request.versioned:
            microversion.stamp(headers, state.request.minor)
