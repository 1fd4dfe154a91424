# SPDX-License-Identifier: Apache-2.0
"""Usage: how many units there are of what, where, and whose."""

from collections.abc import Mapping
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import microversion, types
from cyborg.api.expose import Call, Rules, expose
from cyborg.api.routing import Noun, Routes
from cyborg.db import usage
from cyborg.db.engine import Reader
from cyborg.policies import usage as policies

COLLECTION = "usage"


class UsageQuery(types.Declared):
    """Which rows are wanted; all compare for equality."""

    type = wsme.wsattr(types.NAME)
    host = wsme.wsattr(types.NAME)
    project_id = wsme.wsattr(types.NAME)


class Usage(Noun):
    """``/v2/usage``."""

    routes: ClassVar[Routes] = {"": {"GET": "index"}}

    def __init__(self, rules: Rules, reader: Reader) -> None:
        self.rules = rules
        self._reader = reader

    @expose(policies.GET, query=UsageQuery, since=microversion.OPERATORS)
    def index(self, call: Call, asked: Mapping[str, Any]) -> dict[str, Any]:
        """All counts that the caller may see; those of one project come without hosts."""
        scope = None if call.caller.everywhere else call.caller.project_id
        if scope is not None and "host" in asked:
            # Where a project's accelerators are is not for its members to find out.
            raise exception.Forbidden(reason="Only operators may ask for the usage of a host.")
        with self._reader.reader() as tx:
            found = usage.count(tx, asked, scope)
        return {COLLECTION: [render(one) for one in found]}


def render(row: usage.Row) -> dict[str, Any]:
    """The JSON of one line of counts."""
    return {
        "type": row.type,
        "host": row.host,
        "project_id": row.project_id,
        # A database may answer a sum with a decimal number.
        **{state: int(getattr(row, state)) for state in usage.STATES},
    }
