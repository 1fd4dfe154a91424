# SPDX-License-Identifier: Apache-2.0
"""Operations: the progress and results of long verbs, host by host."""

from collections.abc import Mapping
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import microversion, parsing, rendering, types
from cyborg.api.expose import Call, Rules, expose
from cyborg.api.routing import Noun, Routes
from cyborg.db import operations
from cyborg.db.engine import Reader
from cyborg.model.operation import OperationState
from cyborg.policies import operations as policies

COLLECTION = rendering.OPERATIONS


class OperationQuery(types.Listing):
    """Filters of the list; all compare for equality."""

    verb = wsme.wsattr(types.NAME)
    state = wsme.wsattr(types.Word(*(state.value for state in OperationState)))


class Operations(Noun):
    """``/v2/operations``."""

    routes: ClassVar[Routes] = {"": {"GET": "index"}, "*": {"GET": "show"}}

    def __init__(self, rules: Rules, reader: Reader) -> None:
        self.rules = rules
        self._reader = reader

    @expose(policies.GET_ALL, query=OperationQuery, since=microversion.OPERATORS)
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of operations."""
        equal = {name: query[name] for name in ("verb", "state") if query.get(name)}
        with self._reader.reader() as tx:
            page = operations.page(tx, parsing.page(query), _scope(call), equal)
        prefix = call.links.self_of(COLLECTION)
        return {
            COLLECTION: [rendering.operation(operation, prefix, call.minor) for operation in page]
        }

    @expose(policies.GET_ONE, types.UUID_TYPE, since=microversion.OPERATORS)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return an operation."""
        with self._reader.reader() as tx:
            operation = operations.show(tx, uuid, _scope(call))
        if operation is None:
            raise exception.NotFound(noun="Operation", key=uuid)
        return rendering.operation(operation, call.links.self_of(COLLECTION), call.minor)


def _scope(call: Call) -> str | None:
    """Return the project whose operations the caller may see; None: all projects."""
    return None if call.caller.all_projects else call.caller.project_id
