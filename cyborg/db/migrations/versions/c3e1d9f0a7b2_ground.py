# SPDX-License-Identifier: Apache-2.0
"""From the existing service's schema to ours: unique by constraint, with all tables we need.

May be run again after it was killed anywhere. Services must be stopped meanwhile.
"""

from alembic import op

from cyborg import exception
from cyborg.db.migrations import ground_fill, ground_preflight, ground_tables, steps

revision = "c3e1d9f0a7b2"
down_revision = "b47c8f2d1e3a"

#: Columns that go at once: an old and a new truth about who holds a handle must not stand beside
#: each other.
DROPPED = {"attach_handles": {"in_use"}}


def upgrade() -> None:
    """Refuse (SchemaError, nothing changed) or do all of it."""
    connection = op.get_bind()
    found = ground_preflight.problems(connection)
    if found:
        raise exception.SchemaError(reason=ground_preflight.report(found))
    steps.create_tables(ground_tables.METADATA, ground_tables.NEW)
    for table in ground_tables.OLD:
        steps.add_columns(table)
    ground_fill.fill(connection)
    for table in ground_tables.OLD:
        steps.reshape(table, drop=DROPPED.get(table.name, ()))
    for table in (*ground_tables.OLD, *ground_tables.NEW):
        # The last name is that of a database made by the existing service's create_schema.
        steps.settle_keys(table, obsolete={"uniq_device_profiles0uuid0name"})
