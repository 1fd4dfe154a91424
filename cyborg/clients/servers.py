# SPDX-License-Identifier: Apache-2.0
"""Which servers Nova still has, asked so that a wrong "no" cannot come of our own poor rights."""

from collections.abc import Collection
from urllib.parse import urlencode

from keystoneauth1.adapter import Adapter

from cyborg import exception
from cyborg.clients import http
from cyborg.clients.nova import MICROVERSION, Nova

_PEER = "Nova"
#: Nova's own ``[api] max_limit`` by default; it cuts larger pages silently.
_PAGE = 1000


class Servers:
    """Calls over a keystoneauth adapter for the service type ``compute``.

    The account must see the servers of all projects, as the role ``admin`` does.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._nova = Nova(adapter)

    def vanished(self, uuids: Collection[str]) -> frozenset[str]:
        """Those of ``uuids`` that are no server, of no project and in no state.

        To an account that sees only its own project, everybody else's server would seem to be
        gone. So the list of all projects' servers is read first, page by page until all of
        ``uuids`` are found; Nova refuses it to such an account. What is not in the list (it
        leaves out what is soft-deleted, or in a cell that is away) is asked for one by one.

        Raises exception.Unavailable when Nova does not say.
        """
        missing = set(uuids)
        marker = None
        while True:
            page = self._page(marker, _PAGE if uuids else 1)
            missing.difference_update(page)
            if not missing or not page:
                break
            marker = page[-1]
        return frozenset(one for one in missing if self._nova.server_project(one) is None)

    def _page(self, marker: str | None, limit: int) -> list[str]:
        query = {"all_tenants": "True", "limit": str(limit)}
        if marker is not None:
            query["marker"] = marker
        path = f"/servers?{urlencode(query)}"
        answer = http.ask(_PEER, self._adapter, "GET", path, microversion=MICROVERSION)
        if answer.status_code != 200:
            raise exception.Unavailable(
                peer=_PEER, reason=f"GET /servers was answered {answer.status_code}"
            )
        return [str(one["id"]) for one in http.document(_PEER, answer)["servers"]]
