# SPDX-License-Identifier: Apache-2.0
"""Create and delete the attributes that operators add to deployables.

Reports of agents do not change these attributes.
"""

from datetime import UTC, datetime
from uuid import UUID, uuid5

from cyborg import exception
from cyborg.conductor.context import Conductor, handles
from cyborg.db import attributes, events
from cyborg.db.engine import retried
from cyborg.model.attribute import Attribute
from cyborg.model.scope import EVERYWHERE
from cyborg.rpc.verbs import CreateAttribute, DeleteAttribute

_NOUN = "attribute"
_CREATED = "created"
_DELETED = "deleted"


@handles(CreateAttribute)
def create(ctx: Conductor, c: CreateAttribute) -> Attribute:
    """Add an attribute to a deployable, named by its id or uuid, and return the attribute.

    Raises NotFound for an unknown deployable, Duplicate for a uuid that is taken. Without a
    uuid the attribute gets one that is derived from the request key, so that a repeated
    request does not create a second attribute.
    """
    uuid = c.uuid or str(uuid5(UUID(c.request_key), _NOUN))
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    with ctx.db.reader() as tx:
        deployable_id = attributes.deployable_id(tx, c.deployable)
    if deployable_id is None:
        raise exception.NotFound(noun="Deployable", key=str(c.deployable))
    attribute = Attribute(uuid, deployable_id, c.key, c.value, now)
    try:
        _store(ctx, c, attribute)
    except exception.Conflict:
        with ctx.db.reader() as tx:
            if not events.subjects_of(tx, c.request_key, _CREATED, [uuid]):
                raise exception.Duplicate(noun="Attribute", field="uuid", value=uuid) from None
            return attributes.show(tx, uuid, EVERYWHERE) or attribute
    return attribute


@retried
def _store(ctx: Conductor, c: CreateAttribute, attribute: Attribute) -> None:
    with ctx.db.writer(*c.origin) as tx:
        attributes.insert(tx, attribute)
        entry = events.Entry(_NOUN, attribute.uuid, _CREATED)
        events.record(tx, [entry])


@handles(DeleteAttribute)
@retried
def delete(ctx: Conductor, c: DeleteAttribute) -> None:
    """Remove an attribute; raises NotFound."""
    with ctx.db.writer(*c.origin) as tx:
        if not attributes.remove(tx, c.uuid):
            if events.subjects_of(tx, c.request_key, _DELETED, [c.uuid]):
                return
            raise exception.NotFound(noun="Attribute", key=c.uuid)
        entry = events.Entry(_NOUN, c.uuid, _DELETED)
        events.record(tx, [entry])
