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
from cyborg.tests.unit.api import people
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
    "profile": uuid_of("profile"),
    "unused": uuid_of("unused"),
    "device": uuid_of("device"),
    "lost": uuid_of("lost"),
    "deployable": uuid_of("deployable"),
    "provider": str(uuid3(NAMESPACE_DNS, "host-1_FakeDevice")),
    "attribute": uuid_of("attribute"),
    "arq": uuid_of("arq"),
    "arq-2": uuid_of("arq-2"),
    "foreign": uuid_of("foreign"),
    "bound": uuid_of("bound"),
    "started": uuid_of("started"),
    "instance": uuid_of("instance"),
    "busy": uuid_of("busy"),
    "fresh": uuid_of("fresh"),
    "image": uuid_of("image"),
    "random": uuid_of("random"),
    "own": people.OWN,
    "other": people.OTHER,
}


def populate(db: Database) -> dict[str, str]:
    """Two hosts with a device each (one lost), profiles, and ARQs in several states.

    Returns the facts, with the numbers that the database gave to the deployables.
    """
    with db.writer() as tx:
        groups = [{"resources:FPGA": "1", "trait:CUSTOM_A": "required"}]
        profile = _profile(tx, "profile", "gpu", groups)
        _profile(tx, "unused", "pair", [{"resources:FPGA": "2"}, {"resources:PGPU": "1"}])
        deployable, handles = _device(tx, "device", "host-1")
        other, _ = _device(tx, "lost", "host-2")
        plain = {"device_profile_id": profile, "group_spec": groups[0]}
        bind = {
            **plain,
            "deployable_id": deployable,
            "hostname": "host-1",
            "device_rp_uuid": FACTS["provider"],
        }
        _arq(tx, "arq", plain)
        _arq(tx, "arq-2", plain)
        _arq(tx, "foreign", {**plain, "project_id": people.OTHER})
        for key, state, instance, handle in (
            ("bound", "Bound", FACTS["instance"], handles[0]),
            ("started", "BindStarted", FACTS["busy"], handles[1]),
        ):
            made = {"state": state, "attach_handle_id": handle, "instance_uuid": instance}
            _arq(tx, key, {**bind, **made})
            _hold(tx, handle, instance)
    return {**FACTS, "deployable-id": str(deployable), "other-deployable-id": str(other)}


def run_agent(db: Database) -> None:
    """The agent of host-1 is up: it has card_driver, and generic_driver that creates on b."""
    with db.writer() as tx:
        services.register(tx, Process("host-1", AGENT, "18.0.0", ""), "READY")
        host = tx.scalar(sa.select(models.Host.id).where(models.Host.name == "host-1"))
        tx.execute(
            sa.update(models.Host).where(models.Host.id == host).values(service_host="host-1")
        )
        for name in ("card_driver", "generic_driver"):
            driver = _insert(
                tx,
                models.Driver,
                uuid=uuid_of(name),
                host_id=host,
                name=name,
                state="READY",
                enabled=True,
            )
        _insert(
            tx,
            models.Backend,
            uuid=uuid_of("b"),
            driver_id=driver,
            name="b",
            state="READY",
            creates="TEST_PCI",
        )


def _insert(tx: Transaction, table: Any, **values: Any) -> int:
    made = tx.execute(sa.insert(table).values(**values)).inserted_primary_key
    assert made is not None
    return int(made[0])


def _profile(tx: Transaction, key: str, name: str, groups: list[Any]) -> int:
    return _insert(
        tx,
        models.DeviceProfile,
        uuid=uuid_of(key),
        name=name,
        profile_json=json.dumps({"groups": groups}),
        created_at=NOW,
    )


def _device(tx: Transaction, name: str, host: str) -> tuple[int, list[int]]:
    device = _insert(
        tx,
        models.Device,
        uuid=uuid_of(name),
        host_id=_insert(tx, models.Host, name=host, updated_ms=0),
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
        created_at=NOW,
    )
    provider = f"{host}_FakeDevice"
    deployable = _insert(
        tx,
        models.Deployable,
        uuid=uuid_of("deployable" if name == "device" else f"deployable-of-{name}"),
        name=provider,
        num_accelerators=HANDLES,
        device_id=device,
        rp_uuid=str(uuid3(NAMESPACE_DNS, provider)),
        driver_name="fake",
        resource_class="FPGA",
        programmable=True,
        created_at=NOW,
    )
    for key, value in (("rc", "FPGA"), ("trait0", "CUSTOM_FAKE_DEVICE")):
        ours = name == "device" and key == "rc"
        _insert(
            tx,
            models.Attribute,
            uuid=FACTS["attribute"] if ours else uuid_of(f"{name}-{key}"),
            deployable_id=deployable,
            key=key,
            value=value,
            created_at=NOW,
        )
    cpid = _insert(
        tx,
        models.ControlpathId,
        uuid=uuid_of(f"cpid-{name}"),
        device_id=device,
        cpid_type="PCI",
        cpid_info="{}",
    )
    return deployable, [_handle(tx, deployable, cpid, number) for number in range(HANDLES)]


def _handle(tx: Transaction, deployable: int, cpid: int, number: int) -> int:
    info = {"domain": "0000", "bus": "0c", "device": f"{number:02x}", "function": "0"}
    return _insert(
        tx,
        models.AttachHandle,
        uuid=uuid_of(f"handle-{deployable}-{number}"),
        deployable_id=deployable,
        cpid_id=cpid,
        attach_type="TEST_PCI",
        attach_info=json.dumps(info),
        handle_key=f"0000:0c:{number:02x}.0",
    )


def _arq(tx: Transaction, key: str, values: Mapping[str, Any]) -> None:
    row = {
        "uuid": uuid_of(key),
        "project_id": people.OWN,
        "state": "Initial",
        "device_profile_group_id": 0,
        "created_at": NOW,
        **values,
    }
    _insert(tx, models.Arq, **row)


def _hold(tx: Transaction, handle: int, instance: str) -> None:
    held = sa.update(models.AttachHandle).where(models.AttachHandle.id == handle)
    tx.execute(held.values(state="held"))
    tx.execute(
        sa.insert(models.Instance).values(
            uuid=instance, project_id=people.OWN, hostname="host-1", bound=True, updated_ms=0
        )
    )


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
        return Answer(
            response.status_int, response.headers, response.json if is_json else None, response.body
        )

    def fill(self, text: str) -> str:
        """The text with the facts' values in it."""
        for name, value in self.facts.items():
            text = text.replace(f"<{name}>", value).replace(f'"#{name}"', value)
        return text
