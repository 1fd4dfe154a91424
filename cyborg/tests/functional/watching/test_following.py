# SPDX-License-Identifier: Apache-2.0
"""One request followed through all processes and to their peers: by its ids, and by its trace."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import pytest
import webtest
from keystoneauth1.adapter import Adapter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from oslo_config import cfg
from oslo_log import formatters

from cyborg import tracing
from cyborg.api import app as api_app
from cyborg.db.engine import Reader
from cyborg.tests.fixtures.stack import Peers
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.http import bind_body
from cyborg.tests.functional.life.steps import eventually_offered, work_left
from cyborg.tests.functional.watching.conftest import Watched, soon, watched_agent

ARQS = "/v2/accelerator_requests"
PROCESSES = {"cyborg.api", "cyborg.conductor", "cyborg.agent"}
#: What a W3C trace is called, and the span in it from which a request comes.
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


class Lines(logging.Handler):
    """The lines that oslo.log would write, with the logger of each."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(formatters.ContextFormatter(config=conf))
        self.seen: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See Handler."""
        self.seen.append((record.name, self.format(record)))

    def processes(self, *words: str) -> set[str]:
        """Whose lines hold all these words."""
        found = [name for name, line in self.seen if all(word in line for word in words)]
        return {".".join(name.split(".")[:2]) for name in found}


@dataclass
class Scenario:
    """A compute whose card is to be prepared, an API before it, and what reaches the peers."""

    app: webtest.TestApp
    provider: str
    headers: dict[str, list[dict[str, str]]]
    lines: Lines
    resource_class: str
    idle: Callable[[], bool]
    free: Callable[[], int]
    instance: str = field(default_factory=lambda: str(uuid4()))

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The answer to a request of an administrator."""
        send = getattr(self.app, f"{method.lower()}_json")
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return send(path, body, headers={"OpenStack-API-Version": "accelerator 2.100", **named})

    def bind(self, **headers: str) -> str:
        """Bind one unit, wait until all is done that follows from it, and give the request's id."""
        name, kind = f"profile-{uuid4().hex[:12]}", self.resource_class
        groups = [{f"resources:{kind}": "1"}]
        self.send("POST", "/v2/device_profiles", [{"name": name, "groups": groups}])
        arqs = self.send("POST", ARQS, {"device_profile_name": name}).json["arqs"]
        body = bind_body(arqs, "compute", self.provider, self.instance)
        answer = self.send("PATCH", ARQS, body, **headers)
        soon(lambda: self.app.get(f"{ARQS}/{arqs[0]['uuid']}").json["state"] == "Bound")
        soon(self.idle)
        return str(answer.headers["x-openstack-request-id"])

    def told(self, peer: str, header: str) -> list[str]:
        """The values of a header that reached a peer."""
        return [one[header] for one in self.headers[peer] if header in one]


@pytest.fixture
def drivers() -> list[str]:
    """Nobody listens to notifications."""
    return ["noop"]


def recorded(make: Callable[[], Adapter], seen: list[dict[str, str]]) -> Callable[[], Adapter]:
    """The same adapters; the headers that they have sent are in ``seen``."""

    def wrapped() -> Adapter:
        adapter = make()
        hooks = adapter.session.session.hooks["response"]
        hooks.append(lambda answer, **_more: seen.append(dict(answer.request.headers)))
        return adapter

    return wrapped


@pytest.fixture
def scenario(watched: Watched, conf: cfg.ConfigOpts) -> Iterator[Scenario]:
    headers: dict[str, list[dict[str, str]]] = {"nova": [], "placement": []}
    peers = watched.stack.peers
    watched.stack = replace(
        watched.stack,
        peers=Peers(
            placement=recorded(peers.placement, headers["placement"]),
            nova=recorded(peers.nova, headers["nova"]),
        ),
    )
    watched.stack.start_conductor()
    rack = watched.rack()
    rack.driver.traits.prepare = True
    watched_agent(watched, rack)
    eventually_offered(watched.placement, rack.provider(), 2)
    conf.set_override("auth_strategy", "noauth", "api")
    conf.set_override("noauth_anywhere", True, "api")
    client = watched.stack.conductor_client()
    reader = Reader(watched.stack.database_url)
    watched.endings.append(reader.close)
    lines = Lines(conf)
    log = logging.getLogger("cyborg")
    level = log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    yield Scenario(
        webtest.TestApp(api_app.build(conf, reader=reader, conductor=client)),
        rack.provider(),
        headers,
        lines,
        resource_class=rack.resource_class,
        idle=lambda: work_left(watched.database) == [],
        free=lambda: offered(watched.placement, rack.provider()),
    )
    log.setLevel(level)
    log.removeHandler(lines)
    conf.clear_override("auth_strategy", "api")
    conf.clear_override("noauth_anywhere", "api")


def test_request_id_of_bind_is_in_all_log_lines(scenario: Scenario):
    nova = f"req-{uuid4()}"
    bind = scenario.bind(X_OpenStack_Request_ID=nova)
    # The last line of a task may come after the row that says that it is done.
    soon(lambda: scenario.lines.processes(bind, nova) >= PROCESSES)
    # What Nova asked for it is told under its own id.
    assert nova in scenario.told("nova", "X-OpenStack-Request-ID")
    path = f"{ARQS}?instance={scenario.instance}"
    delete = str(scenario.send("DELETE", path).headers["x-openstack-request-id"])
    # What the host then cleans up is done long after the answer.
    soon(lambda: scenario.lines.processes(delete) >= {"cyborg.api", "cyborg.agent"})


def test_request_to_placement_has_id_of_device_request(scenario: Scenario):
    (device,) = scenario.app.get("/v2/devices").json["devices"]
    verbs = ["enable", "disable"]

    def told() -> bool:
        """A heartbeat of the agent's own may be faster than the hint that the request sends."""
        verbs.reverse()
        answer = scenario.send("POST", f"/v2/devices/{device['uuid']}/{verbs[0]}")
        asked = answer.headers["x-openstack-request-id"]
        free = 2 if verbs[0] == "enable" else 0
        soon(lambda: scenario.free() == free)
        return asked in scenario.told("placement", "X-OpenStack-Request-ID")

    soon(told)


def test_trace_covers_all_processes(scenario: Scenario, watched: Watched):
    kept = InMemorySpanExporter()
    tracing.begin(kept, service="cyborg", host="here")
    try:
        scenario.bind(traceparent=PARENT)
        # The span of a task ends after the row that says so is gone.
        watched.stack.stop()
    finally:
        tracing.stop()
    spans = kept.get_finished_spans()
    mine = [one for one in spans if one.context.trace_id == int(TRACE, 16)]
    assert {one.name for one in mine} >= {
        f"PATCH {ARQS}",
        "conductor patch_arqs",
        "handle patch_arqs",
        "work prepare",
        "agent prepare",
        "handle prepare",
        "work notify",
        "POST",
    }
    known = {one.context.span_id for one in mine}
    (first,) = [one for one in mine if one.parent is None or one.parent.span_id not in known]
    assert first.name == f"PATCH {ARQS}"
    assert dict(first.attributes or {})["http.response.status_code"] == 202
    assert any(TRACE in one for one in scenario.told("nova", "traceparent"))
    # Heartbeats are no part of any request: nobody wants a trace of each.
    assert not [one for one in spans if "heartbeat" in one.name]
