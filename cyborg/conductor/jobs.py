# SPDX-License-Identifier: Apache-2.0
"""What a conductor does from time to time, as jobs of its daemon."""

from collections.abc import Callable
from typing import Final

from cyborg.clients.nova import Nova
from cyborg.clients.reconcile import Publisher
from cyborg.conductor.audit import Auditor
from cyborg.conductor.housekeeping import Housekeeper
from cyborg.conductor.instances import Inquirer
from cyborg.conductor.reconciler import Reconciler
from cyborg.conductor.repairs import Repairs
from cyborg.conductor.retirement import Retirement
from cyborg.conductor.services import Lease
from cyborg.conductor.settings import Settings
from cyborg.conductor.withholding import Withholder
from cyborg.db.engine import Database
from cyborg.service import PeriodicTask

#: How often the conductor looks for agents that are silent for too long, in seconds.
_AGENTS_INTERVAL: Final = 60.0


def audit(
    settings: Settings, lease: Lease, auditor: Callable[[], Auditor], repairs: Repairs
) -> PeriodicTask:
    """The job that compares everything with everything."""
    reconciler = Reconciler(
        lease=lease,
        auditor=auditor,
        repairs=repairs,
        lease_ms=int(settings.lease * 1000),
        limit=settings.audit_changes,
    )
    return PeriodicTask("audit", reconciler.run_once, interval=settings.audit_interval)


def keep_house(
    settings: Settings, db: Database, lease: Lease, retirement: Retirement
) -> PeriodicTask:
    """The job that gives up what is past its time."""
    housekeeper = Housekeeper(
        db=db,
        lease=lease,
        retirement=retirement,
        lease_ms=int(settings.lease * 1000),
        history_retention=int(settings.history_retention * 1000),
    )
    return PeriodicTask(
        "housekeeping", housekeeper.run_once, interval=settings.housekeeping_interval
    )


def look_for_agents(
    settings: Settings, db: Database, lease: Lease, publisher: Callable[[], Publisher]
) -> PeriodicTask:
    """The job that takes back what dead agents offered."""
    withholder = Withholder(
        db=db,
        lease=lease,
        publisher=publisher,
        grace=int(settings.agent_grace * 1000),
        lease_ms=int(settings.lease * 1000),
    )
    interval = min(_AGENTS_INTERVAL, settings.agent_grace)
    return PeriodicTask("agents", withholder.run_once, interval=interval)


def look_instances_up(settings: Settings, db: Database, lease: Lease, nova: Nova) -> PeriodicTask:
    """The job that keeps what instances are called and how they are."""
    inquirer = Inquirer(
        db=db,
        lease=lease,
        nova=nova,
        refresh=int(settings.instance_refresh * 1000),
        lease_ms=int(settings.lease * 1000),
        patience=settings.instance_turn,
    )
    return PeriodicTask("instances", inquirer.run_once, interval=settings.instance_turn)
