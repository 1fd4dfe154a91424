# SPDX-License-Identifier: Apache-2.0
"""Agents of the release before: they know neither hardware nor the verbs of operators."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Arq, Deployable, Device, Driver, Hardware
from cyborg.model import wire
from cyborg.rpc.endpoint import Endpoint
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_AGENTS_TOPIC, RPCClient
from cyborg.rpc.verbs import DesiredChanged
from cyborg.tests.fixtures.host_reports import DRIVER, RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.fixtures.placement import fresh_host
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import PATIENCE, eventually
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    bind,
    create,
    ended,
    eventually_idle,
    meddle,
    of_instance,
    work_left,
)

_REASON = "it is of another release and does not know"


@pytest.fixture
def host(stack: Stack) -> Iterator[str]:
    """A host whose agent sends its heartbeat, and reports one device, in the older words."""
    name, bus = fresh_host("older"), stack.bus()
    # Such an agent has no other verbs.
    older = Endpoint("agent", {}, DesiredChanged.handled(lambda _: None))
    server = bus.server(AGENT_TOPIC, name, older)
    server.start()
    sender = f"{AGENT_TOPIC}@{name}"
    line = RPCClient(bus, CONDUCTOR_AGENTS_TOPIC, peer="conductor", timeout=PATIENCE, sender=sender)
    heartbeat = {"host": name, "provider_names": [name], "version": "17.0.0", "epoch": None}
    heartbeat |= {"endpoint": sender, "status": "READY"}
    said = {"kind": "AgentHeartbeat", "version": 1, "body": heartbeat}
    eventually(line.reached)
    epoch = line.call("heartbeat", heartbeat=said)["body"]["epoch"]
    line.call("report", host=name, epoch=epoch, report=_older(wire.dump(report_of(name, 1))))
    yield name
    line.close()
    server.stop()
    server.wait()
    bus.close()


def _older(report: Any) -> Any:
    """A report without the fields that came later."""
    for driver in report["body"]["drivers"]:
        for later in ("hardware", "backends", "endpoint", "type", "version"):
            driver.pop(later, None)
    return report


def device(operator: Client) -> dict[str, Any]:
    (found,) = operator.get("/devices")["devices"]
    return dict(found)


def refused(operator: Client, begun: dict[str, Any], verb: str) -> None:
    """The operation has failed, for the agent does not know the verb; nothing waits."""
    over = ended(operator, begun)
    assert over["state"] == "failed"
    assert f"{_REASON} {verb}" in over["results"][0]["error"]


def test_older_agent_reports_and_discovers_nothing(
    host: str, operator: Client, nova: Client, profile: Callable[..., str], database: Database
) -> None:
    assert device(operator)["status"] == "enabled"
    assert operator.get("/hardware")["hardware"] == []
    assert operator.get("/backends")["backends"] == []
    (driver,) = operator.get("/drivers")["drivers"]
    assert (driver["name"], driver["state"], driver["version"]) == (DRIVER, "READY", None)
    path = f"/devices/{device(operator)['uuid']}"
    operator.post(f"{path}/disable", status=204)
    operator.post(f"{path}/enable", status=204)
    arqs = create(nova, profile({f"resources:{RESOURCE_CLASS}": "1"}))
    bind(nova, arqs, provider_of(host, 0), host=host)
    operator.post(f"{path}/enable", status=204)
    assert (device(operator)["status"], device(operator)["in_use"]) == ("enabled", True)
    begun = operator.post("/services/discover", {"hosts": [host]}, status=202)
    refused(operator, begun, "discovery")
    assert device(operator)["status"] == "enabled"
    eventually_idle(database)


def test_bind_with_image_fails_on_an_older_agent(
    host: str, member: Client, profile: Callable[..., str], database: Database
) -> None:
    """Such an agent would prepare the device without the image and call that a success."""
    nova = member.with_service_token()
    wish = {"accel:bitstream_id": str(uuid4())}
    arqs = create(nova, profile({f"resources:{RESOURCE_CLASS}": "1", **wish}))
    meddle(database, sa.update(Deployable).values(programmable=True))
    instance = bind(nova, arqs, provider_of(host, 0), host=host)
    eventually(lambda: of_instance(nova, instance)[0]["state"] == "BindFailed")
    with database.reader() as tx:
        fault = str(tx.execute(sa.select(Arq.fault)).scalar_one())
    assert f"{_REASON} prepare" in fault
    assert "image" in fault


def test_setup_fails_on_an_older_agent(host: str, operator: Client, database: Database) -> None:
    """A newer agent had told of the hardware, before the older one was put back."""
    path = f"/devices/{device(operator)['uuid']}"
    operator.post(f"{path}/disable", status=204)
    with database.writer() as tx:
        one = tx.execute(sa.select(Device.host_id, Device.driver, Device.device_key)).one()
        tx.execute(
            sa.insert(Hardware).values(
                uuid=str(uuid4()),
                host_id=one.host_id,
                driver=one.driver,
                hardware_key=one.device_key,
                device_type="FPGA",
                offered=False,
                setup_required=True,
                reboot_required=False,
                seen_ms=0,
            )
        )
    operator.post(f"{path}/enable", status=204)
    eventually(lambda: device(operator)["status"] == "failed")
    assert f"{_REASON} install" in device(operator)["status_reason"]
    assert work_left(database) == []


@pytest.mark.parametrize(
    ("method", "path", "body", "verb"),
    [
        ("POST", "/drivers", {"driver": "another_driver"}, "discovery"),
        ("PATCH", f"/drivers/{DRIVER}", {"options": {"count": "2"}}, "discovery"),
        ("PATCH", f"/drivers/{DRIVER}", {}, "reload"),
        ("DELETE", f"/drivers/{DRIVER}", None, "discovery"),
    ],
)
def test_driver_requests_fail_on_an_older_agent(
    host: str, operator: Client, database: Database, *, method: str, path: str, body: Any, verb: str
) -> None:
    refused(operator, operator.send(method, path, body, 202), verb)
    assert work_left(database) == []
    with database.reader() as tx:
        wished = tx.execute(sa.select(Driver.name, Driver.requested, Driver.options)).all()
    assert [tuple(one) for one in wished] == [(DRIVER, None, None)]
    assert device(operator)["status"] == "enabled"
