# SPDX-License-Identifier: Apache-2.0
"""Deployables: the parts of devices that Placement offers, and how to program them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import answers, parsing, types
from cyborg.api.answers import Answer, Member, Source
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
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


DEPLOYABLE_VIEW = Answer[deployables.Detail](
    "DeployableView",
    "A deployable: a part of a device that Placement offers.",
    Source(row=lambda detail: detail.row),
    uuid=Member(types.UUID_TYPE),
    parent_id=Member(answers.Nullable(types.INTEGER)),
    root_id=Member(answers.Nullable(types.INTEGER)),
    name=Member(answers.PLACED_TEXT),
    num_accelerators=Member(types.INTEGER),
    device_id=Member(types.INTEGER),
    # Clients expect JSON in a string.
    attributes_list=Member(
        answers.STRING,
        lambda detail: json.dumps([{key: value} for key, value in detail.attributes]),
    ),
    rp_uuid=Member(answers.PLACED_UUID),
    driver_name=Member(answers.TEXT_OR_NULL),
    bitstream_id=Member(
        answers.TEXT_OR_NULL, lambda detail: detail.row.bitstream_id if detail.held else None
    ),
    created_at=Member(answers.TIME_OR_NULL),
    updated_at=Member(answers.TIME_OR_NULL),
    links=Member(answers.Links("deployables", bookmark=True), lambda detail: detail.row.uuid),
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
    def index(self, call: Call, query: Mapping[str, Any]) -> Sequence[deployables.Detail]:
        """Return a page of deployables."""
        call.check_places(query, "name")
        with self.reader.reader() as tx:
            return deployables.page(tx, parsing.page(query), call.scope, query.get("name"))

    @expose("cyborg:deployable:get_one", types.UUID_TYPE, answer=DEPLOYABLE_VIEW)
    def show(self, call: Call, uuid: str) -> deployables.Detail:
        """Return a deployable."""
        return self._show(call, uuid)

    @expose(
        "cyborg:deployable:program",
        types.UUID_TYPE,
        body=types.Items(types.Object(ProgramOp, closed=True), 1, 1),
        answer=DEPLOYABLE_VIEW,
    )
    def program(
        self, call: Call, uuid: str, body: Sequence[Mapping[str, Any]]
    ) -> deployables.Detail:
        """Request that the host loads an image; answers before the host has finished."""
        image_uuid = body[0]["value"][0]["image_uuid"]
        if not call.scope.everywhere:
            with self.reader.reader() as tx:
                if deployables.show(tx, uuid, call.held) is None:
                    raise exception.NotFound(noun="Deployable", key=uuid)
        self.conductor.write(ProgramDeployable(*call.origin, uuid, image_uuid))
        return self._show(call, uuid)

    def _show(self, call: Call, uuid: str) -> deployables.Detail:
        with self.reader.reader() as tx:
            record = deployables.show(tx, uuid, call.scope)
        if record is None:
            raise exception.NotFound(noun="Deployable", key=uuid)
        return record
