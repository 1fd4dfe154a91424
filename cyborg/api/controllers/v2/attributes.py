# SPDX-License-Identifier: Apache-2.0
"""Attributes of deployables: read discovered facts; add and remove operators' labels."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import answers, parsing, types
from cyborg.api.answers import Answer, Member
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.db import attributes
from cyborg.model.attribute import Attribute
from cyborg.rpc.verbs import CreateAttribute, DeleteAttribute

#: As many characters of any kind as fit in a TEXT column of MySQL.
_VALUE = types.Text(16_000, lines=True)


class AttributeQuery(types.Listing):
    """Filters of the list."""

    deployable_id = wsme.wsattr(types.IntegerOrUuid())
    key = wsme.wsattr(types.NAME)


class AttributeBody(types.Declared):
    """A new attribute; ``deployable_id`` is the deployable's number or its uuid."""

    deployable_id = wsme.wsattr(types.IntegerOrUuid(), mandatory=True)
    key = wsme.wsattr(types.Text(255, minimum=1), mandatory=True)
    value = wsme.wsattr(_VALUE, mandatory=True)
    uuid = wsme.wsattr(types.UUID_TYPE)


class FlatOrWrapped(types.Object):
    """The attribute as a bare object or, as the SDK sends it, as ``{"attribute": {…}}``."""

    def read(self, value: Any) -> dict[str, Any]:
        """Return the members of the attribute; raises ValidationError."""
        if isinstance(value, Mapping) and set(value) == {"attribute"}:
            members: dict[str, Any] = types.located("attribute", super().read, value["attribute"])
            return members
        return super().read(value)

    @property
    def schema(self) -> types.Schema:
        """See the parent."""
        bare = super().schema
        return {"anyOf": [bare, answers.Envelope(types.Anything(bare), "attribute").schema]}


ATTRIBUTE_VIEW = Answer[Attribute](
    "AttributeView",
    "An attribute of a deployable.",
    uuid=Member(types.UUID_TYPE),
    deployable_id=Member(types.INTEGER),
    key=Member(answers.STRING),
    value=Member(answers.STRING),
    created_at=Member(answers.TIME_OR_NULL),
    updated_at=Member(answers.TIME_OR_NULL),
    links=Member(answers.Links("attributes"), lambda attribute: attribute.uuid),
)


class Attributes(Controller):
    """``/v2/attributes``."""

    collection = "attributes"
    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "create", "DELETE": "delete_none"},
        "*": {"GET": "show", "DELETE": "delete"},
    }

    @expose(
        "cyborg:attribute:get_all",
        query=AttributeQuery,
        answer=answers.listing("attributes", ATTRIBUTE_VIEW),
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> Sequence[Attribute]:
        """Return a page of attributes; ``deployable_id=0`` does not filter."""
        with self.reader.reader() as tx:
            return attributes.page(
                tx,
                parsing.page(query),
                call.scope,
                deployable=query.get("deployable_id") or None,
                key=query.get("key"),
            )

    @expose("cyborg:attribute:get_one", types.UUID_TYPE, answer=ATTRIBUTE_VIEW)
    def show(self, call: Call, uuid: str) -> Attribute:
        """Return an attribute."""
        with self.reader.reader() as tx:
            row = attributes.show(tx, uuid, call.scope)
        if row is None:
            raise exception.NotFound(noun="Attribute", key=uuid)
        return row

    @expose(
        "cyborg:attribute:create",
        body=FlatOrWrapped(AttributeBody),
        strict=FlatOrWrapped(AttributeBody, closed=True),
        status=201,
        answer=ATTRIBUTE_VIEW,
    )
    def create(self, call: Call, body: Mapping[str, Any]) -> Attribute:
        """Add an attribute to a deployable."""
        call.check_everywhere()
        return self.conductor.write(
            CreateAttribute(
                *call.origin,
                deployable=body["deployable_id"],
                key=body["key"],
                value=body["value"],
                uuid=body.get("uuid"),
            )
        )

    @expose("cyborg:attribute:delete", types.UUID_TYPE, status=204)
    def delete(self, call: Call, uuid: str) -> None:
        """Remove an attribute."""
        call.check_everywhere()
        self.conductor.write(DeleteAttribute(*call.origin, uuid))

    @expose("cyborg:attribute:delete", status=204)
    def delete_none(self, call: Call) -> None:
        """Refuse a DELETE without a uuid."""
        raise exception.Invalid(field="uuid", reason="it is missing")
