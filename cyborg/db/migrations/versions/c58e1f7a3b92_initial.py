# SPDX-License-Identifier: Apache-2.0
"""Change the existing service's schema to that of this service: unique keys and new tables.

The revision can be run again after it was interrupted at any point. Services must not run.
"""

from alembic import op

from cyborg.db.migrations import (
    initial_facts,
    initial_fill,
    initial_preflight,
    initial_tables,
    steps,
)

revision = "c58e1f7a3b92"
down_revision = "b47c8f2d1e3a"

#: Columns that are dropped at once: only one column records which ARQ has a handle.
DROPPED = {
    "attach_handles": {"in_use"},
    "extended_accelerator_requests": {initial_facts.HOLDER},
}


def upgrade() -> None:
    """Make all changes, or raise SchemaError before any change if rows violate unique keys."""
    connection = op.get_bind()
    initial_preflight.check(connection)
    steps.create_tables(initial_tables.METADATA, initial_tables.NEW)
    for table in initial_tables.OLD:
        steps.add_columns(table)
    initial_fill.fill(connection)
    for table in initial_tables.OLD:
        steps.reshape(table, drop=DROPPED.get(table.name, ()))
    for table in (*initial_tables.OLD, *initial_tables.NEW):
        # The existing service's create_schema command uses this name of the key.
        steps.settle_keys(table, obsolete={"uniq_device_profiles0uuid0name"})
