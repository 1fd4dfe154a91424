# SPDX-License-Identifier: Apache-2.0
"""Deployables: the parts of devices that Placement offers, and how to program them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import answers, parsing, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.rendering import link, moment
from cyborg.db import deployables
from cyborg.rpc.verbs import ProgramDeployable


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


DEPLOYABLE_VIEW = answers.Answer(
    "DeployableView",
    "A deployable: a part of a device that Placement offers.",
    uuid=answers.Shown(types.UUID_TYPE),
    parent_id=answers.Shown(answers.Nullable(types.INTEGER)),
    root_id=answers.Shown(answers.Nullable(types.INTEGER)),
    name=answers.Shown(answers.TEXT_OR_NULL),
    num_accelerators=answers.Shown(types.INTEGER),
    device_id=answers.Shown(types.INTEGER),
    attributes_list=answers.Shown(answers.STRING),
    rp_uuid=answers.Shown(answers.UUID_OR_NULL),
    driver_name=answers.Shown(answers.TEXT_OR_NULL),
    bitstream_id=answers.Shown(answers.TEXT_OR_NULL),
    created_at=answers.Shown(answers.TIME_OR_NULL),
    updated_at=answers.Shown(answers.TIME_OR_NULL),
    links=answers.Shown(answers.LINKS),
)


class Deployables(Controller):
    """``/v2/deployables``."""

    collection = "deployables"
    routes: ClassVar[Routes] = {
        "": {"GET": "index"},
        "*": {"GET": "show"},
        "*/program": {"PATCH": "program"},
        # The SDK appends the id a second time.
        "*/program/*": {"PATCH": "program"},
    }

    @expose(
        "cyborg:deployable:get_all",
        query=DeployableQuery,
        answer=answers.listing("deployables", DEPLOYABLE_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of deployables."""
        call.check_places(query, "name")
        with self.reader.reader() as tx:
            records = deployables.page(tx, parsing.page(query), call.scope, query.get("name"))
        return {self.collection: render_all(records, call)}

    @expose("cyborg:deployable:get_one", types.UUID_TYPE, answer=DEPLOYABLE_VIEW)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return a deployable."""
        return self._show(call, uuid)

    @expose(
        "cyborg:deployable:program",
        types.UUID_TYPE,
        body=types.Items(types.Object(ProgramOp, closed=True), 1, 1),
        answer=DEPLOYABLE_VIEW,
    )
    def program(self, call: Call, uuid: str, body: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Request that the host loads an image; answers before the host has finished."""
        image_uuid = body[0]["value"][0]["image_uuid"]
        if not call.scope.everywhere:
            with self.reader.reader() as tx:
                if deployables.show(tx, uuid, call.held) is None:
                    raise exception.NotFound(noun="Deployable", key=uuid)
        self.conductor.write(ProgramDeployable(*call.origin, uuid, image_uuid))
        return self._show(call, uuid)

    def _show(self, call: Call, uuid: str) -> dict[str, Any]:
        with self.reader.reader() as tx:
            record = deployables.show(tx, uuid, call.scope)
        if record is None:
            raise exception.NotFound(noun="Deployable", key=uuid)
        return render_all([record], call)[0]


def render_all(records: Sequence[deployables.Detail], call: Call) -> list[dict[str, Any]]:
    """Return the JSON of deployables; clients expect ``attributes_list`` as JSON in a string."""
    prefix = call.links.self_of(Deployables.collection)
    bookmark = f"{call.links.base}/{Deployables.collection}/"
    return [
        {
            "uuid": record.row.uuid,
            "parent_id": record.row.parent_id,
            "root_id": record.row.root_id,
            "name": call.scope.placed(record.row.name),
            "num_accelerators": record.row.num_accelerators,
            "device_id": record.row.device_id,
            "attributes_list": json.dumps([{key: value} for key, value in record.attributes]),
            "rp_uuid": call.scope.placed(record.row.rp_uuid),
            "driver_name": record.row.driver_name,
            "bitstream_id": record.row.bitstream_id if record.held else None,
            "created_at": moment(record.row.created_at),
            "updated_at": moment(record.row.updated_at),
            "links": [
                link(prefix, record.row.uuid),
                link(bookmark, record.row.uuid, "bookmark"),
            ],
        }
        for record in records
    ]
