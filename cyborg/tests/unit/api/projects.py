# SPDX-License-Identifier: Apache-2.0
"""A cloud of two projects, in which every value tells whose it is."""

import json
import re
from typing import Any, Final

import sqlalchemy as sa

from cyborg.db import models, services
from cyborg.db.engine import Database
from cyborg.db.services import Process
from cyborg.db.transaction import Transaction
from cyborg.model.process import AGENT
from cyborg.tests.unit.api import people
from cyborg.tests.unit.api.world import insert, uuid_of

#: Letter → the project that holds a unit of its host's device; nobody has a unit of the last.
OWNERS: Final = {"a": people.OWN, "b": people.OTHER, "c": None}
#: An instance of the other project that shares the device of the first letter.
SHARING: Final = "s"
#: A heartbeat in the year 2100: the agents are up however long a test takes.
_ALWAYS_UP: Final = 4_102_444_800_000
#: On 2 January 2020.
_IN_2020: Final = 1_577_923_200_000
#: A project that has nothing but a private device profile.
_THIRD: Final = "d" * 32
_BUSES: Final = {"a": "a1", "b": "b1", "c": "c1"}
#: What an answer may tell → the form of the text that tells it.
TELLS: Final[dict[str, re.Pattern[str]]] = {
    **{f"host-{x}": re.compile(rf"\bhost-{x}\b") for x in OWNERS},
    **{f"address-{x}": re.compile(rf'0000:{bus}:00|"{bus}"') for x, bus in _BUSES.items()},
    **{f"provider-{x}": re.compile(uuid_of(f"provider-{x}")) for x in OWNERS},
    **{f"vm-{x}": re.compile(rf"\bvm-{x}\b|{uuid_of(f'instance-{x}')}") for x in "abs"},
    **{f"label-{x}": re.compile(rf"\blabel-{x}\b") for x in OWNERS},
    **{f"option-{x}": re.compile(rf"\boption-{x}\b") for x in OWNERS},
    **{f"profile-{x}": re.compile(rf"\bonly-{x}\b|{uuid_of(f'profile-{x}')}") for x in OWNERS},
    "project-a": re.compile(people.OWN),
    "project-b": re.compile(people.OTHER),
    "administrator": re.compile("user-of-root"),
}


def populate(db: Database) -> dict[str, str]:
    """Store a host with a device, a driver and the like for each letter; return the facts.

    The names of the facts are those of the objects with the letter, such as ``device-a``.
    """
    with db.writer() as tx:
        group = {"resources:FPGA": "1"}
        text = json.dumps({"groups": [group]})
        profile = insert(tx, models.DeviceProfile, "profile", name="gpu", profile_json=text)
        insert(tx, models.DeviceProfile, "unused", name="pair", profile_json=text)
        for x, owner in OWNERS.items():
            _private(tx, f"profile-{x}", f"only-{x}", [owner or _THIRD])
        _private(tx, "profile-both", "both", [people.OWN, people.OTHER])
        plain = {"device_profile_group_id": 0, "device_profile_id": profile, "group_spec": group}
        for x, owner in OWNERS.items():
            deployable, handles = _host(tx, x)
            _operation(tx, x, owner or people.SERVICES)
            if owner is None:
                continue
            insert(tx, models.Arq, f"free-{x}", **plain, project_id=owner, state="Initial")
            place = {"hostname": f"host-{x}", "device_rp_uuid": uuid_of(f"provider-{x}")}
            bound = {**plain, **place, "deployable_id": deployable, "state": "Bound"}
            holders = {x: owner}
            if x == "a":
                holders[SHARING] = people.OTHER
            for (name, project), handle in zip(holders.items(), handles, strict=False):
                _bind(tx, name, {**bound, "project_id": project}, handle)
    names = ("device", "deployable", "attribute", "arq", "free", "instance", "provider", "profile")
    more = ("driver", "backend", "hardware", "agent", "operation")
    facts = {f"{name}-{x}": uuid_of(f"{name}-{x}") for name in (*names, *more) for x in OWNERS}
    return facts | {"image": uuid_of("image")}


def _private(tx: Transaction, key: str, name: str, projects: list[str]) -> None:
    """Store a device profile that these projects may use."""
    text = json.dumps({"groups": [{"resources:FPGA": "1"}]})
    id_ = insert(tx, models.DeviceProfile, key, name=name, profile_json=text, private=True)
    for project in projects:
        row = {"device_profile_id": id_, "project_id": project}
        tx.execute(sa.insert(models.ProfileProject).values(row))


def _host(tx: Transaction, x: str) -> tuple[Any, list[Any]]:
    """Store a host with a device of two units, and all that its agent reported."""
    name, address = f"host-{x}", f"0000:{_BUSES[x]}:00.0"
    services.register(tx, Process(name, AGENT, "18.0.0", f"tcp://{name}"), "READY")
    tx.execute(
        sa.update(models.Service)
        .where(models.Service.host == name)
        .values(uuid=uuid_of(f"agent-{x}"), last_seen_ms=_ALWAYS_UP)
    )
    host = insert(tx, models.Host, name, name=name, service_host=name, updated_ms=0)
    driver = insert(
        tx,
        models.Driver,
        f"driver-{x}",
        host_id=host,
        name=f"driver_{x}",
        state="READY",
        enabled=True,
        endpoint=f"tcp://{name}",
        options={"o": f"option-{x}"},
    )
    service = {"name": "target", "state": "up"}
    offer = {"name": f"backend-of-{name}", "state": "READY", "services": [service]}
    insert(tx, models.Backend, f"backend-{x}", driver_id=driver, **offer)
    insert(
        tx,
        models.Hardware,
        f"hardware-{x}",
        host_id=host,
        driver=f"driver_{x}",
        hardware_key=address,
        offered=True,
        setup_required=False,
        reboot_required=False,
        acc_specs={"pci": address},
        acc_status={"state": f"state-{x}"},
        seen_ms=0,
    )
    device = insert(
        tx,
        models.Device,
        f"device-{x}",
        host_id=host,
        driver=f"driver_{x}",
        device_key=address,
        type="FPGA",
        vendor="0xABCD",
        model="m",
        std_board_info=json.dumps({"address": address}),
        vendor_board_info=name,
        hostname=name,
        status="enabled",
        status_reason=f"by user-of-root on {name}",
        labels={"rack": f"label-{x}"},
    )
    deployable = insert(
        tx,
        models.Deployable,
        f"deployable-{x}",
        name=f"{name}_Fake",
        num_accelerators=2,
        device_id=device,
        rp_uuid=uuid_of(f"provider-{x}"),
        driver_name=f"driver_{x}",
        resource_class="FPGA",
        programmable=True,
    )
    value = {"deployable_id": deployable, "key": "rack", "value": f"fact-{x}"}
    insert(tx, models.Attribute, f"attribute-{x}", **value)
    path = {"device_id": device, "cpid_type": "PCI", "cpid_info": "{}"}
    unit = {
        "deployable_id": deployable,
        "cpid_id": insert(tx, models.ControlpathId, f"path-{x}", **path),
        "attach_type": "PCI",
    }
    handles = []
    for number in range(2):
        info = {"domain": "0000", "bus": _BUSES[x], "device": f"{number:02x}", "function": "0"}
        place = {"attach_info": json.dumps(info), "handle_key": str(number)}
        handles.append(insert(tx, models.AttachHandle, f"{x}-{number}", **unit, **place))
    return deployable, handles


def _bind(tx: Transaction, x: str, values: dict[str, Any], handle: int) -> None:
    """Store a bound ARQ with its handle, its instance, an event and an earlier use of a unit."""
    instance, host = uuid_of(f"instance-{x}"), values["hostname"]
    arq = insert(tx, models.Arq, f"arq-{x}", **values, instance_uuid=instance)
    held = sa.update(models.AttachHandle).where(models.AttachHandle.id == handle)
    tx.execute(held.values(arq_id=arq))
    tx.execute(
        sa.insert(models.Instance).values(
            uuid=instance,
            name=f"vm-{x}",
            status="ACTIVE",
            project_id=values["project_id"],
            hostname=host,
            updated_ms=0,
        )
    )
    tx.execute(
        sa.insert(models.UsageRecord).values(
            instance_uuid=instance,
            project_id=values["project_id"],
            profile="gpu",
            resource_class="FPGA",
            type="FPGA",
            hostname=host,
            began_ms=_IN_2020,
            ended_ms=_IN_2020 + 1000,
        )
    )
    device = host.removeprefix("host-")
    tx.execute(
        sa.insert(models.Event).values(
            at_ms=0,
            noun="arq",
            subject_uuid=uuid_of(f"arq-{x}"),
            action="Bound",
            project_id=people.SERVICES,
            user_id="user-of-root",
            instance_uuid=instance,
            hostname=host,
            reason=f"{host} gave 0000:{_BUSES[device]}:00.0",
            device_uuid=uuid_of(f"device-{device}"),
        )
    )


def _operation(tx: Transaction, x: str, project: str) -> None:
    id_ = insert(
        tx,
        models.Operation,
        f"operation-{x}",
        verb="discover",
        state="failed",
        project_id=project,
        user_id=f"user-of-{x}",
        steps=[],
        error=f"host-{x}: failed",
        created_ms=0,
        subject={"host": f"host-{x}", "driver": f"driver_{x}"},
    )
    insert(
        tx,
        models.OperationResult,
        f"result-{x}",
        operation_id=id_,
        host=f"host-{x}",
        state="failed",
        result={"devices": [f"0000:{_BUSES[x]}:00.0"]},
        error=f"host-{x} has no 0000:{_BUSES[x]}:00.0",
    )
