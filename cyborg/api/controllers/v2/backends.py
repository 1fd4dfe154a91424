# SPDX-License-Identifier: Apache-2.0
"""Backends: the devices and systems that drivers attach to each host."""

from collections.abc import Mapping
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import microversion, parsing, types
from cyborg.api.expose import Call, Rules, expose
from cyborg.api.rendering import since
from cyborg.api.routing import Noun, Routes
from cyborg.db import drivers
from cyborg.db.engine import Reader
from cyborg.policies import backends as policies

COLLECTION = "backends"


class BackendQuery(types.Listing):
    """Filters of the list; ``capability`` names a member of the backend's capabilities."""

    host = wsme.wsattr(types.NAME)
    driver = wsme.wsattr(types.NAME)
    name = wsme.wsattr(types.NAME)
    capability = types.Field(types.MEMBER, since=microversion.OPERATOR_VIEWS)


class Backends(Noun):
    """``/v2/backends``."""

    routes: ClassVar[Routes] = {"": {"GET": "index"}, "*": {"GET": "show"}}

    def __init__(self, rules: Rules, reader: Reader) -> None:
        self.rules = rules
        self._reader = reader

    @expose(policies.GET_ALL, query=BackendQuery, since=microversion.OPERATORS)
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of backends."""
        with self._reader.reader() as tx:
            rows = drivers.page(tx, drivers.BACKENDS, parsing.page(query), query)
        return {COLLECTION: [render(row) for row in rows]}

    @expose(policies.GET_ONE, types.UUID_TYPE, since=microversion.OPERATORS)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a backend."""
        with self._reader.reader() as tx:
            row = drivers.show(tx, drivers.BACKENDS, uuid)
        if row is None:
            raise exception.NotFound(noun="Backend", key=uuid)
        return render(row)


def render(row: drivers.Row) -> dict[str, Any]:
    """Return the JSON of a backend."""
    return {
        "uuid": row.uuid,
        "host": row.host,
        "driver": row.driver,
        "name": row.name,
        "state": row.state,
        "services": row.services or [],
        "capabilities": row.capabilities or {},
        "creates": row.creates,
        "discovered_at": since(row.discovered_ms),
    }
