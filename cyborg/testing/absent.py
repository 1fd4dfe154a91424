# SPDX-License-Identifier: Apache-2.0
"""A service that is not there, for those who must be able to ask it and are not meant to."""

from keystoneauth1.adapter import Adapter
from keystoneauth1.noauth import NoAuth
from keystoneauth1.session import Session

#: The discard port, on which nobody listens.
_NOWHERE = "http://127.0.0.1:9"


def absent() -> Adapter:
    """An adapter whose every request fails: nobody takes the connection."""
    return Adapter(Session(auth=NoAuth(endpoint=_NOWHERE)))
