# SPDX-License-Identifier: Apache-2.0
"""Run the revisions on the connection that ``cyborg.db.schema`` passes."""

from alembic import context

from cyborg.db.models import METADATA
from cyborg.db.schema import is_of_models, same_type

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transaction_per_migration=True,
    compare_type=same_type,
    include_name=is_of_models,
)
with context.begin_transaction():
    context.run_migrations()
