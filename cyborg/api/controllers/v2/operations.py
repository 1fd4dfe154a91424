# SPDX-License-Identifier: Apache-2.0
"""Operations: the progress and results of long verbs, host by host."""

from collections.abc import Mapping
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import answers, microversion, parsing, rendering, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.db import operations
from cyborg.model.operation import OperationState


class OperationQuery(types.Listing):
    """Filters of the list; all compare for equality."""

    verb = wsme.wsattr(types.NAME)
    state = wsme.wsattr(types.Word(*(state.value for state in OperationState)))


class Operations(Controller):
    """``/v2/operations``."""

    collection = rendering.OPERATIONS
    routes: ClassVar[Routes] = {"": {"GET": "index"}, "*": {"GET": "show"}}

    @expose(
        "cyborg:operation:get_all",
        query=OperationQuery,
        since=microversion.OPERATORS,
        answer=answers.listing(rendering.OPERATIONS, rendering.OPERATION_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of operations."""
        equal = {name: query[name] for name in ("verb", "state") if query.get(name)}
        with self.reader.reader() as tx:
            page = operations.page(tx, parsing.page(query), call.scope, equal)
        prefix = call.links.self_of(self.collection)
        return {
            self.collection: [
                rendering.operation(operation, prefix, call.minor, call.scope) for operation in page
            ]
        }

    @expose(
        "cyborg:operation:get_one",
        types.UUID_TYPE,
        since=microversion.OPERATORS,
        answer=rendering.OPERATION_VIEW,
    )
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return an operation."""
        with self.reader.reader() as tx:
            operation = operations.show(tx, uuid, call.scope)
        if operation is None:
            raise exception.NotFound(noun="Operation", key=uuid)
        prefix = call.links.self_of(self.collection)
        return rendering.operation(operation, prefix, call.minor, call.scope)
