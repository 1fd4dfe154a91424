# SPDX-License-Identifier: Apache-2.0
"""${message}.

Expand only: what this release no longer needs is dropped by the next one.
"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
