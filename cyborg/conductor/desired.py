# SPDX-License-Identifier: Apache-2.0
"""The desired state of a host: what Placement shall show, derived from the rows alone."""

from collections import defaultdict
from collections.abc import Iterable

from cyborg.conductor.services import check_epoch
from cyborg.db import hosts, trees
from cyborg.db.bulk import Record
from cyborg.db.engine import Database
from cyborg.model.device import DeviceStatus, HandleState
from cyborg.model.provider import Provider, ProviderTree
from cyborg.model.report import Desired, DriverState


class Wishes:
    """Computes desired states."""

    def __init__(self, *, db: Database) -> None:
        self._db = db

    def desired(self, service_host: str, epoch: int) -> Desired:
        """The provider tree of an agent's host; raises NotFound, StaleEpoch.

        ``total`` counts every unit known, lost ones too, because allocations may hang on them;
        ``reserved`` takes back what must not be given out: everything of a device that is not
        enabled, is lost or has a driver in trouble, else units lost or in quarantine.
        """
        with self._db.writer() as tx:
            host = hosts.lock_for_agent(tx, service_host)
            check_epoch(host, service_host, epoch)
            devices = {row.id: row for row in trees.devices(tx, host.id)}
            deployables = trees.deployables(tx, host.id)
            handles = defaultdict(list)
            for row in trees.handles(tx, host.id):
                handles[row.deployable_id].append(row)
            traits = defaultdict(set)
            for row in trees.attributes(tx, host.id):
                if row.key.startswith("trait"):
                    traits[row.deployable_id].add(row.value)
            drivers = trees.drivers(tx, host.id)
        providers = tuple(
            Provider(
                uuid=one.rp_uuid,
                name=one.name,
                resource_class=one.resource_class,
                total=len(handles[one.id]),
                reserved=_reserved(
                    one,
                    devices[one.device_id],
                    drivers.get(devices[one.device_id].driver),
                    handles[one.id],
                ),
                traits=frozenset(traits[one.id]),
            )
            for one in sorted(deployables, key=lambda row: str(row.name))
        )
        refused = {
            one.name: one.publish_error for one in deployables if one.publish_error is not None
        }
        return Desired(host.desired_generation, ProviderTree(host.name, providers), refused)


def _reserved(deployable: Record, device: Record, driver: Record, handles: Iterable[Record]) -> int:
    handles = list(handles)
    offered = (
        device.status == DeviceStatus.ENABLED
        and device.lost_ms is None
        and deployable.lost_ms is None
        and (driver is None or driver.state == DriverState.READY)
    )
    if not offered:
        return len(handles)
    return sum(
        1 for one in handles if one.lost_ms is not None or one.state == HandleState.QUARANTINED
    )
