# SPDX-License-Identifier: Apache-2.0
"""Hardware: the hardware that drivers report for each host, whether it is offered or not."""

from collections.abc import Mapping
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import microversion, parsing, types
from cyborg.api.expose import Call, Rules, expose
from cyborg.api.routing import Noun, Routes
from cyborg.db import drivers
from cyborg.db.engine import Reader
from cyborg.policies import hardware as policies

COLLECTION = "hardware"


class HardwareQuery(types.Listing):
    """Filters of the list; ``type`` compares with the free capability word.

    ``remote`` is true for hardware with units that are not local to the host; ``capability`` names
    a member of ``acc_capability``.
    """

    host = wsme.wsattr(types.NAME)
    driver = wsme.wsattr(types.NAME)
    type = wsme.wsattr(types.NAME)
    setup_required = wsme.wsattr(types.FLAG)
    remote = types.Field(types.FLAG, since=microversion.OPERATOR_VIEWS)
    capability = types.Field(types.MEMBER, since=microversion.OPERATOR_VIEWS)


class Hardware(Noun):
    """``/v2/hardware``."""

    routes: ClassVar[Routes] = {"": {"GET": "index"}, "*": {"GET": "show"}}

    def __init__(self, rules: Rules, reader: Reader) -> None:
        self.rules = rules
        self._reader = reader

    @expose(policies.GET_ALL, query=HardwareQuery, since=microversion.OPERATORS)
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of hardware."""
        with self._reader.reader() as tx:
            rows = drivers.page(tx, drivers.HARDWARE, parsing.page(query), query)
        return {COLLECTION: [render(row) for row in rows]}

    @expose(policies.GET_ONE, types.UUID_TYPE, since=microversion.OPERATORS)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a piece of hardware; if it becomes a device, the device has the same uuid."""
        with self._reader.reader() as tx:
            row = drivers.show(tx, drivers.HARDWARE, uuid)
        if row is None:
            raise exception.NotFound(noun="Hardware", key=uuid)
        return render(row)


def render(row: drivers.Row) -> dict[str, Any]:
    """Return the JSON of a piece of hardware."""
    return {
        "uuid": row.uuid,
        "hostname": row.host,
        "driver": row.driver,
        "key": row.hardware_key,
        "acc_specs": row.acc_specs,
        "acc_status": row.acc_status,
        "offered": row.offered,
    }
