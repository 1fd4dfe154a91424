# SPDX-License-Identifier: Apache-2.0
"""A small cloud in a database, and a client that talks to the API in front of it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import NAMESPACE_DNS, uuid3, uuid5

import sqlalchemy as sa
import webtest

from cyborg.db import models, services
from cyborg.db.engine import Database
from cyborg.db.services import Process
from cyborg.db.transaction import Transaction
from cyborg.model.caller import Caller
from cyborg.model.process import AGENT
from cyborg.tests.unit.api import described, people
from cyborg.tests.unit.api.conductor import NOW

#: The handles that each of the two deployables has.
HANDLES: Final = 4


def uuid_of(name: str) -> str:
    """A uuid that goes with a name, the same in every run."""
    return str(uuid5(NAMESPACE_DNS, name))


def is_moment(text: str) -> bool:
    """Whether it is a time as answers show it: in UTC, whole seconds, and saying so."""
    return re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", text) is not None


#: The least that describes an accelerator to create.
NEW_DEVICE: Final[Mapping[str, str]] = {
    "host": "host-1",
    "driver": "generic_driver",
    "backend": "b",
    "model": "m",
    "type": "FPGA",
    "resource_class": "CUSTOM_A",
}

#: What tables of requests refer to as ``<name>``.
FACTS: Final[Mapping[str, str]] = {
    name: uuid_of(name)
    for name in (
        *("profile", "unused", "device", "lost", "deployable", "attribute", "arq", "arq-2"),
        *("foreign", "bound", "started", "instance", "busy", "fresh", "image", "random"),
    )
} | {
    "provider": str(uuid3(NAMESPACE_DNS, "host-1_FakeDevice")),
    "own": people.OWN,
    "other": people.OTHER,
}


def populate(db: Database) -> dict[str, str]:
    """Two hosts with a device each (one lost), profiles, and ARQs in several states.

    Returns the facts, with the numbers that the database gave to the deployables.
    """
    with db.writer() as tx:
        group = {"resources:FPGA": "1", "trait:CUSTOM_A": "required"}
        profile = _profile(tx, "profile", "gpu", [group])
        _profile(tx, "unused", "pair", [{"resources:FPGA": "2"}, {"resources:PGPU": "1"}])
        deployable, handles = _device(tx, "device", "host-1")
        other, _ = _device(tx, "lost", "host-2")
        plain = {
            "project_id": people.OWN,
            "state": "Initial",
            "device_profile_group_id": 0,
            "device_profile_id": profile,
            "group_spec": group,
        }
        insert(tx, models.Arq, "arq", **plain)
        insert(tx, models.Arq, "arq-2", **plain)
        insert(tx, models.Arq, "foreign", **{**plain, "project_id": people.OTHER})
        for key, state, name, handle in (
            ("bound", "Bound", "instance", handles[0]),
            ("started", "BindStarted", "busy", handles[1]),
        ):
            bind = {"state": state, "deployable_id": deployable}
            place = {"hostname": "host-1", "device_rp_uuid": FACTS["provider"]}
            arq = insert(tx, models.Arq, key, **plain | bind | place, instance_uuid=FACTS[name])
            held = sa.update(models.AttachHandle).where(models.AttachHandle.id == handle)
            tx.execute(held.values(arq_id=arq))
            guest = {"project_id": people.OWN, "hostname": "host-1"}
            insert(tx, models.Instance, name, **guest, updated_ms=0)
    return {**FACTS, "deployable-id": str(deployable), "other-deployable-id": str(other)}


def run_agent(db: Database) -> None:
    """The agent of host-1 is up: it has card_driver, and generic_driver that creates on b."""
    with db.writer() as tx:
        services.register(tx, Process("host-1", AGENT, "18.0.0", ""), "READY")
        host = tx.scalar(sa.select(models.Host.id).where(models.Host.name == "host-1"))
        tx.execute(
            sa.update(models.Host).where(models.Host.id == host).values(service_host="host-1")
        )
        ready = {"state": "READY", "enabled": True}
        for name in ("card_driver", "generic_driver"):
            driver = insert(tx, models.Driver, name, host_id=host, name=name, **ready)
        offer = {"name": "b", "state": "READY", "creates": "TEST_PCI"}
        insert(tx, models.Backend, "b", driver_id=driver, **offer)


def insert(tx: Transaction, table: Any, key: str, /, **values: Any) -> Any:
    """Store a row whose uuid goes with ``key``; return its id."""
    row = {"uuid": uuid_of(key), "created_at": NOW, **values}
    known = {name: value for name, value in row.items() if hasattr(table, name)}
    made = tx.execute(sa.insert(table).values(**known)).inserted_primary_key
    assert made is not None
    return made[0]


def _profile(tx: Transaction, key: str, name: str, groups: list[Any]) -> Any:
    text = json.dumps({"groups": groups})
    return insert(tx, models.DeviceProfile, key, name=name, profile_json=text)


def _device(tx: Transaction, name: str, host: str) -> tuple[Any, list[Any]]:
    device = insert(
        tx,
        models.Device,
        name,
        host_id=insert(tx, models.Host, host, name=host, updated_ms=0),
        driver="fake_driver",
        device_key="0000:0c:00.0",
        type="FPGA",
        vendor="0xABCD",
        model="miss model info",
        std_board_info=json.dumps({"device_id": "0xabcd", "class": "Fake class"}),
        vendor_board_info="fake_vendor_info",
        hostname=host,
        status="enabled",
        lost_ms=None if name == "device" else 1,
    )
    provider = f"{host}_FakeDevice"
    deployable = insert(
        tx,
        models.Deployable,
        "deployable" if name == "device" else f"deployable-of-{name}",
        name=provider,
        num_accelerators=HANDLES,
        device_id=device,
        rp_uuid=str(uuid3(NAMESPACE_DNS, provider)),
        driver_name="fake",
        resource_class="FPGA",
        programmable=True,
    )
    for key, value in (("rc", "FPGA"), ("trait0", "CUSTOM_FAKE_DEVICE")):
        uuid = "attribute" if (name, key) == ("device", "rc") else f"{name}-{key}"
        insert(tx, models.Attribute, uuid, deployable_id=deployable, key=key, value=value)
    path = {"device_id": device, "cpid_type": "PCI", "cpid_info": "{}"}
    unit = {
        "deployable_id": deployable,
        "cpid_id": insert(tx, models.ControlpathId, f"cpid-{name}", **path),
        "attach_type": "TEST_PCI",
    }
    handles = []
    for number in range(HANDLES):
        info = {"domain": "0000", "bus": "0c", "device": f"{number:02x}", "function": "0"}
        place = {"attach_info": json.dumps(info), "handle_key": f"0000:0c:{number:02x}.0"}
        handles.append(insert(tx, models.AttachHandle, f"{name}-{number}", **unit, **place))
    return deployable, handles


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: Any
    raw: bytes

    @property
    def fault(self) -> str:
        """The sentence of an error answer, decoded as the SDK does."""
        return str(json.loads(self.body["error_message"])["faultstring"])


@dataclass
class Client:
    """Sends requests as a persona; ``<name>`` in path and body is a fact's value.

    In JSON, ``"#name"`` is a fact that is a number.
    """

    app: webtest.TestApp
    facts: Mapping[str, str]
    #: The calls that reached the conductor: verb, caller and arguments.
    calls: Sequence[tuple[str, Caller, dict[str, Any]]] = ()

    def ask(self, request: str, body: Any = None, **sent: Any) -> Answer:
        """Send ``METHOD /path``; see ``send``."""
        method, path = request.split()
        return self.send(method, path, body, **sent)

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        as_: str | None = "admin",
        service: str | None = None,
        version: str | None = None,
        headers: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request; ``body`` is sent as it is when it is bytes, else as JSON."""
        sent = dict(headers or {})
        if as_ is not None:
            sent.setdefault("X-Auth-Token", as_)
        if service is not None:
            sent["X-Service-Token"] = service
        if version is not None:
            sent["OpenStack-API-Version"] = version
        raw = body if isinstance(body, bytes) else self.fill(json.dumps(body)).encode()
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        response = self.app.request(
            self.fill(path),
            method=method,
            headers=sent,
            body=b"" if body is None else raw,
            environ=dict(environ or {}),
            expect_errors=True,
        )
        is_json = response.content_type == "application/json" and response.body
        answer = Answer(
            response.status_int, response.headers, response.json if is_json else None, response.body
        )
        described.check(method, self.fill(path), answer)
        return answer

    def fill(self, text: str) -> str:
        """The text with the facts' values in it."""
        for name, value in self.facts.items():
            text = text.replace(f"<{name}>", value).replace(f'"#{name}"', value)
        return text
