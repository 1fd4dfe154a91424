# SPDX-License-Identifier: Apache-2.0
"""Steps that many lives have in common, and looks at the rows behind them."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db.engine import Database, Reader, retried
from cyborg.db.models import METADATA, AttachHandle, Deployable, Service, Work
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.http import Client, bind_body

#: When rows were last written or looked at, which is no fact about the cloud.
_WHEN = ("updated_ms", "discovered_ms", "seen_ms")
#: What agents tell of Placement once they have written it.
PUBLISHED = ("published_total", "published_reserved")

Arqs = list[dict[str, Any]]
ARQS = "/accelerator_requests"
#: What the fake driver offers.
FPGA = {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}


def create(client: Client, profile: str) -> Arqs:
    """New ARQs for a profile."""
    arqs: Arqs = client.post(ARQS, {"device_profile_name": profile})["arqs"]
    return arqs


def create_many(client: Client, profile: Callable[..., str], name: str, count: int) -> list[Arqs]:
    """Lists of one ARQ each, for one unit of a resource class each."""
    return [[one] for one in create(client, profile({f"resources:{name}": str(count)}))]


def bind(
    nova: Client,
    arqs: Arqs,
    provider: str,
    *,
    host: str = "compute",
    instance: str | None = None,
    status: int = 202,
) -> str:
    """Bind ARQs to one provider for one instance (a new one unless given), and give its uuid."""
    server = instance or str(uuid4())
    nova.patch(ARQS, bind_body(arqs, host, provider, server), status=status)
    return server


def of_instance(client: Client, instance: str) -> Arqs:
    """The ARQs of an instance as its owner sees them."""
    arqs: Arqs = client.get(ARQS, instance=instance)["arqs"]
    return arqs


def delete_arqs(nova: Client, instance: str) -> None:
    """Delete the ARQs of an instance, as Nova does when the server is deleted."""
    nova.delete(f"{ARQS}?instance={instance}")


def states(client: Client, arqs: Arqs) -> list[str]:
    """The states of ARQs now, in their order."""
    return [client.get(f"{ARQS}/{one['uuid']}")["state"] for one in arqs]


def eventually_offered(placement: PlacementService, provider: str, units: int) -> None:
    """Wait until Placement would give out just so many units of a provider."""
    eventually(lambda: offered(placement, provider) == units)


def eventually_published(operator: Client) -> None:
    """Wait until conductors know that Placement has what is desired of all devices."""

    def known() -> bool:
        providers = [
            provider
            for device in operator.get("/devices")["devices"]
            for provider in device["providers"]
        ]
        return bool(providers) and all(
            provider["published"] == {name: provider[name] for name in ("total", "reserved")}
            for provider in providers
        )

    eventually(known)


def eventually_bound(client: Client, instance: str) -> None:
    """Wait until the first ARQ of an instance is Bound."""
    eventually(lambda: of_instance(client, instance)[0]["state"] == "Bound")


def eventually_idle(reader: Reader) -> None:
    """Wait until no work waits or is being done."""
    eventually(lambda: not work_left(reader))


def ended(operator: Client, begun: dict[str, Any]) -> dict[str, Any]:
    """An operation when it is over."""
    path = f"/operations/{begun['uuid']}"
    eventually(lambda: operator.get(path)["state"] != "running")
    over: dict[str, Any] = operator.get(path)
    return over


def everything(reader: Reader, *, but: Sequence[str] = ()) -> dict[str, list[Any]]:
    """All rows by table; what processes say about themselves, and when, is left out.

    So is what they tell of Placement (see ``published``): it comes after what a test waits for.
    """
    left_out = {"services", "alembic_version", *but}
    tables = [one for one in METADATA.sorted_tables if one.name not in left_out]
    with reader.reader() as tx:
        return {
            table.name: [
                tuple(row)
                for row in tx.execute(
                    sa.select(
                        *(one for one in table.c if one.name not in (*_WHEN, *PUBLISHED))
                    ).order_by(*table.primary_key)
                )
            ]
            for table in tables
        }


def published(reader: Reader) -> dict[str, tuple[int | None, int | None]]:
    """The total and the reserved units of each deployable that agents say Placement has."""
    query = sa.select(
        Deployable.name, Deployable.published_total, Deployable.published_reserved
    ).where(Deployable.published_total.is_not(None))
    with reader.reader() as tx:
        return {row[0]: (row[1], row[2]) for row in tx.execute(query)}


def handle_states(reader: Reader) -> dict[str, str]:
    """The state of every attach handle by its key."""
    with reader.reader() as tx:
        rows = tx.execute(sa.select(AttachHandle.handle_key, UNIT))
        return dict(rows.all())


@retried
def meddle(database: Database, change: sa.Update) -> None:
    """Change rows that conductors are at work on: whoever meets a deadlock there tries again."""
    with database.writer() as tx:
        tx.execute(change)


def hasten(database: Database) -> None:
    """Work that waits for its next attempt is due: the pause is over as far as it can tell."""
    meddle(database, sa.update(Work).where(Work.owner_id.is_(None)).values(not_before_ms=0))


def orphan(database: Database) -> None:
    """Whoever is at any work has died, and its lease is over."""
    with database.writer() as tx:
        dead = sa.insert(Service).values(
            uuid=str(uuid4()),
            host=f"dead-{uuid4().hex[:12]}",
            binary="cyborg-conductor",
            process="1",
            status="READY",
            epoch=1,
            last_seen_ms=1,
        )
        owner = (tx.execute(dead).inserted_primary_key or (0,))[0]
        tx.execute(sa.update(Work).values(owner_id=owner, owner_epoch=1, fence=Work.fence + 1))


def work_left(reader: Reader) -> list[str]:
    """The kinds of the work that waits or is being done."""
    with reader.reader() as tx:
        return list(tx.execute(sa.select(Work.kind).order_by(Work.id)).scalars())
