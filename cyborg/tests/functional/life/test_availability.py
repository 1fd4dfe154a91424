# SPDX-License-Identifier: Apache-2.0
"""Which units may be given out: every view and every claim follows the one rule."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.conductor.reports import desired_state
from cyborg.db import audit, bulk, metrics
from cyborg.db.engine import Database
from cyborg.db.models import (
    Arq,
    AttachHandle,
    ControlpathId,
    Deployable,
    Device,
    DeviceProfile,
    Driver,
    Host,
    Service,
)
from cyborg.model.process import AGENT
from cyborg.model.provider import provider_uuid
from cyborg.rpc.verbs import FetchDesired
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.fixtures.placement import fresh_host
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.steps import ARQS, create
from cyborg.tests.oracle.availability import Standing, Unit, claimable, reserved, word

#: The values of each fact; the first one lets units be given out.
VALUES: Mapping[str, tuple[Any, ...]] = {
    "status": ("enabled", "inactive", "installing", "maintaining", "draining", "failed"),
    "lost": (None, "device", "deployable", "unit"),
    "host": ("enabled", "disabled", "draining"),
    "driver": ("READY", None, "FAILED"),
    "health": (None, "degraded", "drain"),
    "error": (None, "its name is taken"),
    "unit": ("free", "used", "releasing", "quarantined", "blocked"),
}


@dataclass(frozen=True)
class Case:
    """A device with one unit; ``driver`` None: its state was never reported."""

    status: str
    lost: str | None
    host: str
    driver: str | None
    health: str | None
    error: str | None
    unit: str

    @property
    def standing(self) -> Standing:
        return Standing(
            self.status,
            lost=self.lost in ("device", "deployable"),
            driver=self.driver,
            host=self.host,
            health=self.health,
            refused=self.error is not None,
        )

    @property
    def handle(self) -> Unit:
        state = self.unit if self.unit in ("releasing", "quarantined") else "ready"
        return Unit(
            state,
            lost=self.lost == "unit",
            blocked=self.unit == "blocked",
            used=self.unit == "used",
        )

    @property
    def word(self) -> str:
        return word(self.standing, self.handle)

    @property
    def reserved(self) -> int:
        return reserved(self.standing, [self.handle])

    @property
    def claimable(self) -> bool:
        return claimable(self.standing, [self.handle]) == 1

    @property
    def differences(self) -> int:
        """How many facts differ from those of a free unit in service."""
        return sum(getattr(self, one.name) != VALUES[one.name][0] for one in fields(self))


CASES = [Case(**dict(zip(VALUES, each, strict=True))) for each in product(*VALUES.values())]


@dataclass(frozen=True)
class Cloud:
    """A host of each status, with a device for each case."""

    database: Database
    resource_class: str
    #: Its status → name of the host.
    hosts: Mapping[str, str]

    def name(self, index: int) -> str:
        return f"{self.hosts[CASES[index].host]}_{index}"

    def write(self) -> None:
        """Write the rows as reports, binds and operators would have left them."""
        with self.database.writer() as tx:
            ids = {}
            for status, name in self.hosts.items():
                tx.execute(
                    sa.insert(Host).values(
                        name=name,
                        service_host=name,
                        generation=1,
                        desired_generation=1,
                        updated_ms=self.database.now,
                    )
                )
                ids[status] = tx.scalar(sa.select(Host.id).where(Host.name == name))
                tx.execute(
                    sa.insert(Service).values(
                        uuid=str(uuid4()),
                        host=name,
                        binary=AGENT,
                        status="READY",
                        host_status=status,
                        epoch=1,
                        last_seen_ms=self.database.now,
                    )
                )
            drivers = [
                {"uuid": str(uuid4()), "host_id": host, "name": f"{state}_driver", "state": state}
                for host, state in product(ids.values(), VALUES["driver"])
                if state is not None
            ]
            bulk.insert(tx, Driver, drivers)
            uuids = [str(uuid4()) for _ in CASES]
            devices = bulk.insert_ids(
                tx,
                Device,
                [
                    {
                        "uuid": uuid,
                        "host_id": ids[case.host],
                        "hostname": self.hosts[case.host],
                        "driver": f"{case.driver}_driver",
                        "device_key": f"key-{index}",
                        "type": "FPGA",
                        "vendor": "0xABCD",
                        "model": str(index),
                        "status": case.status,
                        "lost_ms": 1 if case.lost == "device" else None,
                        "health": case.health,
                    }
                    for index, (uuid, case) in enumerate(zip(uuids, CASES, strict=True))
                ],
            )
            deployables = bulk.insert_ids(
                tx,
                Deployable,
                [
                    {
                        "uuid": uuid,
                        "name": self.name(index),
                        "rp_uuid": provider_uuid(self.name(index)),
                        "num_accelerators": 1,
                        "device_id": devices[uuid],
                        "resource_class": self.resource_class,
                        "lost_ms": 1 if case.lost == "deployable" else None,
                        "publish_error": case.error,
                    }
                    for index, (uuid, case) in enumerate(zip(uuids, CASES, strict=True))
                ],
            )
            path = {"uuid": uuids[0], "device_id": devices[uuids[0]], "cpid_type": "PCI"}
            (path_id,) = bulk.insert_ids(tx, ControlpathId, [{**path, "cpid_info": "{}"}]).values()
            handles = bulk.insert_ids(
                tx,
                AttachHandle,
                [
                    {
                        "uuid": uuid,
                        "deployable_id": deployables[uuid],
                        "cpid_id": path_id,
                        "attach_type": "PCI",
                        "attach_info": "{}",
                        "state": case.handle.state,
                        "handle_key": "0",
                        "lost_ms": 1 if case.lost == "unit" else None,
                        "blocked": case.unit == "blocked",
                    }
                    for uuid, case in zip(uuids, CASES, strict=True)
                ],
            )
            profile = {"uuid": str(uuid4()), "name": str(uuid4()), "profile_json": '{"groups": []}'}
            (profile_id,) = bulk.insert_ids(tx, DeviceProfile, [profile]).values()
            users = {
                uuid: str(uuid4())
                for uuid, case in zip(uuids, CASES, strict=True)
                if case.unit == "used"
            }
            held = [
                {
                    "uuid": arq,
                    "state": "Bound",
                    "device_profile_id": profile_id,
                    "device_profile_group_id": 0,
                    "deployable_id": deployables[uuid],
                    "instance_uuid": str(uuid4()),
                }
                for uuid, arq in users.items()
            ]
            used = bulk.insert_ids(tx, Arq, held)
            bulk.change(
                tx,
                AttachHandle,
                [(handles[uuid], {"arq_id": used[arq]}) for uuid, arq in users.items()],
            )


@pytest.fixture
def cloud(database: Database, resource_class: str) -> Iterator[Cloud]:
    cloud = Cloud(database, resource_class, {name: fresh_host(name) for name in VALUES["host"]})
    cloud.write()
    yield cloud
    with database.writer() as tx:
        tx.execute(sa.delete(Service).where(Service.host.in_(cloud.hosts.values())))


def test_binds_follow_the_rule(cloud: Cloud, nova: Client, profile: Any) -> None:
    """All devices of which at most one fact differs from those of a free unit in service."""
    name = profile({f"resources:{cloud.resource_class}": "1"})
    for index, case in enumerate(CASES):
        if case.differences > 1:
            continue
        provider = provider_uuid(cloud.name(index))
        body = bind_body(create(nova, name), cloud.hosts[case.host], provider, str(uuid4()))
        if case.claimable:
            nova.patch(ARQS, body, status=202)
            continue
        reason = case.standing.reason
        answer = nova.patch(ARQS, body, status=409)
        refusal = "too few free" if reason is None else f"it is out of service ({reason})"
        assert refusal in str(answer), case


def test_views_follow_the_rule(cloud: Cloud, operator: Client) -> None:
    """Devices, drivers, usage, metrics, audit and desired state agree on all combinations."""
    words = {
        host: Counter(case.word for case in CASES if case.host == status)
        for status, host in cloud.hosts.items()
    }
    devices: list[Any] = []
    while not devices or len(devices) % 1000 == 0:
        marker = {"marker": devices[-1]["uuid"]} if devices else {}
        devices += operator.get("/devices", limit=1000, **marker)["devices"]
    assert len(devices) == len(CASES)
    for device in devices:
        case = CASES[int(device["model"])]
        units, (provider,) = device["units"], device["providers"]
        shown = dict(units["reasons"]) | {
            name: units[name] for name in ("used", "free") if units[name]
        }
        assert shown == {case.word: 1}, case
        assert provider["reserved"] == case.reserved, case
    for host, counts in words.items():
        (row,) = operator.get("/usage", host=host, group_by="host")["usage"]
        assert Counter(row["reasons"], used=row["used"], free=row["free"]) == counts
        for driver in operator.get("/drivers", host=host)["drivers"]:
            offered = [
                case
                for case in CASES
                if cloud.hosts[case.host] == host
                and f"{case.driver}_driver" == driver["name"]
                and case.standing.reason is None
                and not case.reserved
            ]
            assert driver["devices"]["offered"] == len(offered)
        desired = desired_state.desired(context(cloud.database), FetchDesired(host, 1))
        reserved_units = {one.uuid: one.reserved for one in desired.tree.providers}
        assert reserved_units == {
            provider_uuid(cloud.name(index)): case.reserved
            for index, case in enumerate(CASES)
            if cloud.hosts[case.host] == host
        }
    with cloud.database.reader() as tx:
        counted = metrics.totals(tx).units
    assert counted == {
        (host, cloud.resource_class, word): amount
        for host, counts in words.items()
        for word, amount in counts.items()
    }
    audited = {
        row.desired.name: (row.desired.reserved, row.claimable)
        for page in audit.host_pages(cloud.database)
        for audited_host in page
        for row in audited_host.deployables
    }
    assert audited == {
        cloud.name(index): (case.reserved, int(case.claimable)) for index, case in enumerate(CASES)
    }
