# SPDX-License-Identifier: Apache-2.0
"""Compare the revision of the schema that a database records with that of this release.

The services need no more of the revisions than this, so only ``cyborg-dbsync`` and the checks of
upgrades import alembic (``cyborg.db.schema``).
"""

from typing import Final

import sqlalchemy as sa

from cyborg import exception
from cyborg.db.engine import Reader

#: The newest revision of this release.
HEAD: Final = "c58e1f7a3b92"


def version(db: Reader) -> str | None:
    """Return the revision that the database records, of any service; None if it records none."""
    with db.reader() as tx:
        if not sa.inspect(tx.connection).has_table("alembic_version"):
            return None
        recorded: str | None = tx.scalar(sa.text("SELECT version_num FROM alembic_version"))
        return recorded


def check(db: Reader) -> None:
    """Raise SchemaError, with the command to run, unless the schema is that of this release."""
    current = version(db)
    if current != HEAD:
        raise exception.SchemaError(
            reason=f"The schema is at revision {current}, but this release needs {HEAD}: run "
            "'cyborg-dbsync upgrade'."
        )
