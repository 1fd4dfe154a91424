# SPDX-License-Identifier: Apache-2.0
"""A database that is set back to its backup while agents run on."""

from collections.abc import Callable

import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.tests.functional.life.cards import CARD, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    ARQS,
    bind,
    create,
    delete_arqs,
    eventually,
    eventually_bound,
    eventually_idle,
    handle_states,
)

#: The ids of work begin again, as after a restore.
BEGIN_AGAIN = {
    "sqlite": "UPDATE sqlite_sequence SET seq = 0 WHERE name = 'work'",
    "mysql": "ALTER TABLE work AUTO_INCREMENT = 1",
    "postgresql": "SELECT setval(pg_get_serial_sequence('work', 'id'), 1)",
}


def test_agents_follow_a_restored_database(
    racked: Callable[..., RackedCompute],
    resource_class: str,
    profile: Callable[..., str],
    member: Client,
    *,
    database: Database,
) -> None:
    nova = member.with_service_token()
    host = racked(Traits(resource_class, prepare=True), cards={CARD: 1})
    name = profile({f"resources:{resource_class}": "1"})

    def boot() -> str:
        instance = bind(nova, create(nova, name), host.provider())
        eventually_bound(nova, instance)
        eventually_idle(database)
        return instance

    nova.delete(f"{ARQS}?instance={boot()}")
    instance = boot()
    with database.writer() as tx:
        tx.execute(sa.text(BEGIN_AGAIN[tx.dialect.name]))
    delete_arqs(nova, instance)
    eventually(lambda: set(handle_states(database).values()) == {"free"})
    assert host.driver.ready == set()
