# SPDX-License-Identifier: Apache-2.0
"""Create and delete the attributes that operators add to deployables.

Reports of agents do not change these attributes.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid5

from cyborg import exception
from cyborg.db import attributes, events
from cyborg.db.engine import Database, retried
from cyborg.model.attribute import Attribute
from cyborg.model.caller import Caller
from cyborg.model.scope import EVERYWHERE

_NOUN = "attribute"
_CREATED = "created"
_DELETED = "deleted"


@dataclass(frozen=True, kw_only=True)
class Attributes:
    """Creates and deletes attributes."""

    db: Database

    def create(
        self,
        caller: Caller,
        request_key: str,
        *,
        deployable: int | str,
        key: str,
        value: str,
        uuid: str | None,
    ) -> Attribute:
        """Add an attribute to a deployable, named by its id or uuid, and return the attribute.

        Raises NotFound for an unknown deployable, Duplicate for a uuid that is taken. Without a
        uuid the attribute gets one that is derived from the request key, so that a repeated
        request does not create a second attribute.
        """
        new_uuid = uuid or str(uuid5(UUID(request_key), _NOUN))
        now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
        with self.db.reader() as tx:
            deployable_id = attributes.deployable_id(tx, deployable)
        if deployable_id is None:
            raise exception.NotFound(noun="Deployable", key=str(deployable))
        attribute = Attribute(new_uuid, deployable_id, key, value, now)
        try:
            self._store(caller, request_key, attribute)
        except exception.Conflict:
            with self.db.reader() as tx:
                if not events.subjects_of(tx, request_key, _CREATED, [new_uuid]):
                    raise exception.Duplicate(
                        noun="Attribute", field="uuid", value=new_uuid
                    ) from None
                return attributes.show(tx, new_uuid, EVERYWHERE) or attribute
        return attribute

    @retried
    def _store(self, caller: Caller, request_key: str, attribute: Attribute) -> None:
        with self.db.writer(caller, request_key) as tx:
            attributes.insert(tx, attribute)
            entry = events.Entry(_NOUN, attribute.uuid, _CREATED)
            events.record(tx, [entry])

    @retried
    def delete(self, caller: Caller, request_key: str, uuid: str) -> None:
        """Remove an attribute; raises NotFound."""
        with self.db.writer(caller, request_key) as tx:
            if not attributes.remove(tx, uuid):
                if events.subjects_of(tx, request_key, _DELETED, [uuid]):
                    return
                raise exception.NotFound(noun="Attribute", key=uuid)
            entry = events.Entry(_NOUN, uuid, _DELETED)
            events.record(tx, [entry])
