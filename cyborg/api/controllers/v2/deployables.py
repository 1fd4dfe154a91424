# SPDX-License-Identifier: Apache-2.0
"""Deployables: the parts of devices that Placement offers, and how to program them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import parsing, types
from cyborg.api.expose import Call, Rules, expose
from cyborg.api.rendering import link, moment
from cyborg.api.routing import Noun, Routes
from cyborg.db import deployables
from cyborg.db.engine import Reader
from cyborg.policies import deployables as policies
from cyborg.rpc.conductor import ConductorClient

COLLECTION = "deployables"


class DeployableQuery(types.Listing):
    """Filters of the list."""

    name = wsme.wsattr(types.NAME)


class Image(types.Declared):
    """The image of Glance to load."""

    image_uuid = wsme.wsattr(types.UUID_TYPE, mandatory=True)


class ProgramOp(types.Declared):
    """The only operation that changes a deployable."""

    path = wsme.wsattr(types.Word("/program"), mandatory=True)
    op = wsme.wsattr(types.Word("replace", "add"), mandatory=True)
    value = wsme.wsattr(types.Items(types.Object(Image), 1, 1), mandatory=True)


class Deployables(Noun):
    """``/v2/deployables``."""

    routes: ClassVar[Routes] = {
        "": {"GET": "index"},
        "*": {"GET": "show"},
        "*/program": {"PATCH": "program"},
        # The SDK appends the id a second time.
        "*/program/*": {"PATCH": "program"},
    }

    def __init__(self, rules: Rules, reader: Reader, conductor: ConductorClient) -> None:
        self.rules = rules
        self._reader = reader
        self._conductor = conductor

    @expose(policies.GET_ALL, query=DeployableQuery)
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of deployables."""
        with self._reader.reader() as tx:
            records = deployables.page(tx, parsing.page(query), name=query.get("name"))
        return {COLLECTION: render_all(records, call)}

    @expose(policies.GET_ONE, types.UUID_TYPE)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a deployable."""
        return self._show(call, uuid)

    @expose(
        policies.PROGRAM,
        types.UUID_TYPE,
        body=types.Items(types.Object(ProgramOp, closed=True), 1, 1),
    )
    def program(self, call: Call, uuid: str, body: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Request that the host loads an image; answers before the host has finished."""
        image_uuid = body[0]["value"][0]["image_uuid"]
        self._conductor.program_deployable(call.caller, call.request_key, uuid, image_uuid)
        return self._show(call, uuid)

    def _show(self, call: Call, uuid: str) -> dict[str, Any]:
        with self._reader.reader() as tx:
            record = deployables.show(tx, uuid)
        if record is None:
            raise exception.NotFound(noun="Deployable", key=uuid)
        return render_all([record], call)[0]


def render_all(records: Sequence[deployables.Found], call: Call) -> list[dict[str, Any]]:
    """Return the JSON of deployables; clients expect ``attributes_list`` as JSON in a string."""
    prefix = call.links.self_of(COLLECTION)
    bookmark = call.links.bookmark_of(COLLECTION)
    return [
        {
            "uuid": record.row.uuid,
            "parent_id": record.row.parent_id,
            "root_id": record.row.root_id,
            "name": record.row.name,
            "num_accelerators": record.row.num_accelerators,
            "device_id": record.row.device_id,
            "attributes_list": json.dumps([{key: value} for key, value in record.attributes]),
            "rp_uuid": record.row.rp_uuid,
            "driver_name": record.row.driver_name,
            "bitstream_id": record.row.bitstream_id,
            "created_at": moment(record.row.created_at),
            "updated_at": moment(record.row.updated_at),
            "links": [
                link(prefix, record.row.uuid),
                link(bookmark, record.row.uuid, "bookmark"),
            ],
        }
        for record in records
    ]
