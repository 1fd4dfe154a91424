# SPDX-License-Identifier: Apache-2.0
"""Operations: the progress and results of long verbs, host by host."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import answers, microversion, parsing, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.operations import OPERATION_VIEW, OPERATIONS
from cyborg.db import operations
from cyborg.model.operation import Operation, OperationState


class OperationQuery(types.Listing):
    """Filters of the list; all compare for equality."""

    verb = wsme.wsattr(types.NAME)
    state = wsme.wsattr(types.Word(*(state.value for state in OperationState)))


class Operations(Controller):
    """``/v2/operations``."""

    collection = OPERATIONS
    routes: ClassVar[Routes] = {"": {"GET": "index"}, "*": {"GET": "show"}}

    @expose(
        "cyborg:operation:get_all",
        query=OperationQuery,
        since=microversion.EXTENDED,
        answer=answers.listing(OPERATIONS, OPERATION_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> Sequence[Operation]:
        """Return a page of operations."""
        equal = {name: query[name] for name in ("verb", "state") if query.get(name)}
        with self.reader.reader() as tx:
            return operations.page(tx, parsing.page(query), call.scope, equal)

    @expose(
        "cyborg:operation:get_one",
        types.UUID_TYPE,
        since=microversion.EXTENDED,
        answer=OPERATION_VIEW,
    )
    def show(self, call: Call, uuid: str) -> Operation:
        """Return an operation."""
        with self.reader.reader() as tx:
            operation = operations.show(tx, uuid, call.scope)
        if operation is None:
            raise exception.NotFound(noun="Operation", key=uuid)
        return operation
