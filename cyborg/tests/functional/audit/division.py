# SPDX-License-Identifier: Apache-2.0
"""Cards whose units are deployables of their own, and what is left of them in the database."""

from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Event
from cyborg.drivers.base import EMPTY_CONTEXT, DriverContext
from cyborg.model import device as facts
from cyborg.tests.functional.life.cards import CardDriver


class DividedCards(CardDriver):
    """Each unit of a card is a deployable of its own."""

    name = "divided_driver"

    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[facts.Device]:
        """See Driver."""
        return [divided(one) for one in super().discover(context)]


def divided(device: facts.Device) -> facts.Device:
    """The same device, each of its units a deployable of its own."""
    (whole,) = device.deployables
    parts = (
        replace(whole, name=f"{whole.name}_{index}", handles=(handle,))
        for index, handle in enumerate(whole.handles)
    )
    return replace(device, deployables=tuple(parts))


def count(db: Database, model: Any, *terms: sa.ColumnElement[bool]) -> int:
    with db.reader() as tx:
        return int(tx.execute(sa.select(sa.func.count(model.id)).where(*terms)).scalar_one())


def retirements(db: Database) -> list[tuple[str, str]]:
    """What was given up, and why."""
    query = sa.select(Event.noun, Event.reason).where(Event.action == "retired")
    with db.reader() as tx:
        return sorted((row.noun, row.reason) for row in tx.execute(query.order_by(Event.id)))
