# SPDX-License-Identifier: Apache-2.0
"""Hosts that lose cards or parts of them, and what is left of those in the database."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.conductor.context import Conductor
from cyborg.conductor.hosts import lost_devices
from cyborg.conductor.reports import apply, desired_state
from cyborg.db.engine import Database
from cyborg.db.models import Deployable, Event, Work
from cyborg.drivers.scan import Scan
from cyborg.model import device as facts
from cyborg.model.report import Desired, DriverReport, DriverState, Report
from cyborg.rpc.verbs import FetchDesired, SendProvidersRemoved, SendReport
from cyborg.tests.fixtures.contexts import SECONDS_PER_DAY, changed
from cyborg.tests.fixtures.host_reports import report_of
from cyborg.tests.functional.audit.cloud import RETENTION, SmallCloud, age_lost
from cyborg.tests.functional.life.cards import CardDriver


class DividedCards(CardDriver):
    """Each unit of a card is a deployable of its own."""

    name = "divided_driver"

    def discover(self, scan: Scan) -> list[facts.Device]:
        """See Driver."""
        return [divided(one) for one in super().discover(scan)]


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


@dataclass
class LosingHost:
    """A host that has lost something too long ago; its agent does what it is told to.

    ``report_of`` makes its report of so many of these; ``lost`` is the deployable that is told of.
    """

    cloud: SmallCloud
    name: str
    lost: str
    report_of: Callable[[int], Report]

    @property
    def ctx(self) -> Conductor:
        return changed(self.cloud.cases.ctx, lost_retention=RETENTION / 1000 / SECONDS_PER_DAY)

    @property
    def db(self) -> Database:
        return self.cloud.cases.db

    @property
    def generation(self) -> int:
        """That of what is desired of it."""
        return self.cloud.cases.generation(self.name)

    def report(self, number: int) -> None:
        """Its agent shows so many."""
        apply.store(
            self.ctx,
            SendReport(self.name, self.cloud.cases.epochs[self.name], self.report_of(number)),
        )

    def desired(self, retention: int = RETENTION) -> Desired:
        ctx = changed(self.ctx, lost_retention=retention / 1000 / SECONDS_PER_DAY)
        return desired_state.desired(
            ctx, FetchDesired(self.name, self.cloud.cases.epochs[self.name])
        )

    def leaving(self) -> list[str]:
        return [one.name for one in self.desired().obsolete_providers]

    def answer(self, *names: str) -> None:
        epoch = self.cloud.cases.epochs[self.name]
        lost_devices.confirm_removal(self.ctx, SendProvidersRemoved(self.name, epoch, list(names)))

    def change(self, model: Any, *terms: sa.ColumnElement[bool], **values: Any) -> None:
        self.cloud.cases.execute(sa.update(model).where(*terms).values(**values))

    def work(self, **values: Any) -> None:
        """Work that is about its newest deployable."""
        deployable = sa.select(sa.func.max(Deployable.id)).scalar_subquery()
        row = {"uuid": str(uuid4()), "not_before_ms": 0, "created_ms": 0, **values}
        self.cloud.cases.execute(sa.insert(Work).values(deployable_id=deployable, **row))


def whole_host(cloud: SmallCloud) -> LosingHost:
    """Its only card has been lost for too long."""
    name = cloud.host()
    host = LosingHost(cloud, name, f"{name}_0", lambda cards: report_of(name, cards, handles=4))
    host.report(0)
    age_lost(cloud.cases.db)
    return host


def divided_host(cloud: SmallCloud, *, parts: bool) -> LosingHost:
    """Its card once had four units, in four deployables (``parts``) or in one; one is lost."""
    name = cloud.compute("divided")

    def report(units: int) -> Report:
        (driver,) = report_of(name, 1, handles=4).drivers
        (device,) = driver.devices
        (whole,) = device.deployables
        device = replace(device, deployables=(replace(whole, handles=whole.handles[:units]),))
        shown = (divided(device) if parts else device,)
        return Report((DriverReport(driver.driver, DriverState.READY, shown),))

    host = LosingHost(cloud, name, f"{name}_0_3" if parts else f"{name}_0", report)
    host.report(4)
    host.report(3)
    age_lost(cloud.cases.db)
    return host
