# SPDX-License-Identifier: Apache-2.0
"""Which device is meant when an agent tells what its devices measure; no figure is ever stored."""

from collections.abc import Sequence

import sqlalchemy as sa

from cyborg.db.bulk import Record
from cyborg.db.hosts import AGENT_EPOCH
from cyborg.db.models import Device, Host


def devices_of(tx: sa.Connection, service_host: str) -> Sequence[Record]:
    """(epoch, driver, device_key, uuid, type) of each device of an agent's host.

    One row without a device where there is none, no row where there is no host.
    """
    return tx.execute(
        sa.select(
            AGENT_EPOCH.label("epoch"), Device.driver, Device.device_key, Device.uuid, Device.type
        )
        .select_from(Host)
        .outerjoin(Device, Device.host_id == Host.id)
        .where(Host.service_host == service_host)
    ).all()
