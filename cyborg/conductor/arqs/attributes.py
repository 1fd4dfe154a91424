# SPDX-License-Identifier: Apache-2.0
"""Attributes that operators add to deployables; reports leave them alone."""

from datetime import UTC, datetime
from uuid import UUID, uuid5

from cyborg import exception
from cyborg.db import attributes, events
from cyborg.db.engine import Database, retried
from cyborg.model.attribute import Attribute
from cyborg.model.caller import Caller

_NOUN = "attribute"
_CREATED = "created"
_DELETED = "deleted"


class Attributes:
    """Creates and deletes attributes."""

    def __init__(self, *, db: Database) -> None:
        self._db = db

    def create(
        self,
        caller: Caller,
        operation: str,
        *,
        deployable: int | str,
        key: str,
        value: str,
        uuid: str | None,
    ) -> Attribute:
        """Add an attribute to a deployable, named by its id or uuid.

        Raises NotFound for an unknown deployable, Duplicate for a uuid that is taken. Without a
        uuid the attribute gets one that follows from the operation, so that repeating it makes
        no second one.
        """
        made = uuid or str(uuid5(UUID(operation), _NOUN))
        now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
        with self._db.reader() as tx:
            found = attributes.deployable_id(tx, deployable)
        if found is None:
            raise exception.NotFound(noun="Deployable", key=str(deployable))
        attribute = Attribute(made, found, key, value, now)
        try:
            self._store(caller, operation, attribute)
        except exception.Conflict:
            with self._db.reader() as tx:
                if not events.done_by(tx, operation, _CREATED, [made]):
                    raise exception.Duplicate(noun="Attribute", field="uuid", value=made) from None
                return attributes.show(tx, made) or attribute
        return attribute

    @retried
    def _store(self, caller: Caller, operation: str, attribute: Attribute) -> None:
        with self._db.writer() as tx:
            attributes.insert(tx, attribute)
            entry = events.Entry(_NOUN, attribute.uuid, _CREATED)
            events.record(tx, self._db.now, [entry], caller=caller, operation=operation)

    @retried
    def delete(self, caller: Caller, operation: str, uuid: str) -> None:
        """Remove an attribute; raises NotFound."""
        with self._db.writer() as tx:
            if not attributes.delete(tx, uuid):
                if events.done_by(tx, operation, _DELETED, [uuid]):
                    return
                raise exception.NotFound(noun="Attribute", key=uuid)
            entry = events.Entry(_NOUN, uuid, _DELETED)
            events.record(tx, self._db.now, [entry], caller=caller, operation=operation)
