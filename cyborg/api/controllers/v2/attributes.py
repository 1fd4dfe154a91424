# SPDX-License-Identifier: Apache-2.0
"""Attributes of deployables: read discovered facts; add and remove operators' labels."""

from collections.abc import Mapping
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import answers, parsing, references, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.api.rendering import link, moment
from cyborg.db import attributes
from cyborg.model.attribute import Attribute
from cyborg.rpc.verbs import CreateAttribute, DeleteAttribute

#: As many characters of any kind as fit in a TEXT column of MySQL.
_VALUE = types.Text(16_000, lines=True)


class AttributeQuery(types.Listing):
    """Filters of the list."""

    deployable_id = wsme.wsattr(references.DEPLOYABLE)
    key = wsme.wsattr(types.NAME)


class AttributeBody(types.Declared):
    """A new attribute; ``deployable_id`` is the deployable's number or its uuid."""

    deployable_id = wsme.wsattr(references.DEPLOYABLE, mandatory=True)
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


ATTRIBUTE_VIEW = answers.Answer(
    "AttributeView",
    "An attribute of a deployable.",
    uuid=answers.Shown(types.UUID_TYPE),
    deployable_id=answers.Shown(types.INTEGER),
    key=answers.Shown(answers.STRING),
    value=answers.Shown(answers.STRING),
    created_at=answers.Shown(answers.TIME_OR_NULL),
    updated_at=answers.Shown(answers.TIME_OR_NULL),
    links=answers.Shown(answers.LINKS),
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
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of attributes; ``deployable_id=0`` does not filter."""
        with self.reader.reader() as tx:
            rows = attributes.page(
                tx,
                parsing.page(query),
                call.scope,
                deployable=query.get("deployable_id") or None,
                key=query.get("key"),
            )
        prefix = call.links.self_of(self.collection)
        return {self.collection: [render(row, prefix) for row in rows]}

    @expose("cyborg:attribute:get_one", types.UUID_TYPE, answer=ATTRIBUTE_VIEW)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return an attribute."""
        with self.reader.reader() as tx:
            row = attributes.show(tx, uuid, call.scope)
        if row is None:
            raise exception.NotFound(noun="Attribute", key=uuid)
        return render(row, call.links.self_of(self.collection))

    @expose(
        "cyborg:attribute:create",
        body=FlatOrWrapped(AttributeBody),
        strict=FlatOrWrapped(AttributeBody, closed=True),
        status=201,
        answer=ATTRIBUTE_VIEW,
    )
    def create(self, call: Call, body: Mapping[str, Any]) -> dict[str, Any]:
        """Add an attribute to a deployable."""
        call.check_everywhere()
        created = self.conductor.write(
            CreateAttribute(
                *call.origin,
                deployable=body["deployable_id"],
                key=body["key"],
                value=body["value"],
                uuid=body.get("uuid"),
            )
        )
        return render(created, call.links.self_of(self.collection))

    @expose("cyborg:attribute:delete", types.UUID_TYPE, status=204)
    def delete(self, call: Call, uuid: str) -> None:
        """Remove an attribute."""
        call.check_everywhere()
        self.conductor.write(DeleteAttribute(*call.origin, uuid))

    @expose("cyborg:attribute:delete", status=204)
    def delete_none(self, call: Call) -> None:
        """Refuse a DELETE without a uuid."""
        raise exception.Invalid(field="uuid", reason="it is missing")


def render(attribute: Attribute, prefix: str) -> dict[str, Any]:
    """Return the JSON of an attribute; ``prefix`` starts its self link."""
    return {
        "uuid": attribute.uuid,
        "deployable_id": attribute.deployable_id,
        "key": attribute.key,
        "value": attribute.value,
        "created_at": moment(attribute.created_at),
        "updated_at": moment(attribute.updated_at),
        "links": [link(prefix, attribute.uuid)],
    }
