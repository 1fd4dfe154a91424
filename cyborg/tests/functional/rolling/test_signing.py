# SPDX-License-Identifier: Apache-2.0
"""Message signing is introduced, and its keys are replaced, process by process under requests.

Meanwhile a user boots and deletes servers whose unit the agent prepares, and cards are plugged in.
No request fails, and no card stays unreported.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import webtest
from oslo_config import cfg
from oslo_middleware import RequestId

from cyborg.api import app as api_app
from cyborg.cmd import signing_key
from cyborg.db.engine import Database, Reader
from cyborg.rpc import keys
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.transport import CONDUCTOR_TOPIC
from cyborg.tests.fixtures.choice import chosen
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.stack import Peers, Stack, Times, reach
from cyborg.tests.fixtures.waiting import eventually, joined
from cyborg.tests.functional.bus.conftest import REFUSALS, Attacker
from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.life.cards import CARD, Rack, Traits
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    bind,
    create,
    delete_arqs,
    eventually_bound,
    eventually_offered,
)

API, AGENT = "api", "agent"
CONDUCTORS = ("control-1", "control-2")
ORDERS = [
    (*CONDUCTORS, API, AGENT),
    (AGENT, API, *CONDUCTORS),
    (API, CONDUCTORS[0], AGENT, CONDUCTORS[1]),
]
#: By design a process refuses a request from before its start; its sender then repeats the request.
_BY_DESIGN = ("may have been received before",)


def has_read(stack: Stack, ids: set[str], first: str) -> bool:
    """Whether each process accepts just the keys of these IDs, and signs with the first."""
    rings = [bus._signer._keys for bus in stack.buses]
    held = [ring.keys.keys for ring in rings if ring is not None]
    return all({key.id for key in one} == ids and one[0].id == first for one in held)


class Front:
    """What clients reach: the API that runs now. It is replaced between two requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._app: Any = None

    def replace(self, application: Any) -> None:
        """Send requests to another process from now on; none is left to the earlier one."""
        with self._lock:
            self._app = webtest.TestApp(application)

    def get(self, *given: Any, **more: Any) -> Any:
        """See webtest.TestApp."""
        with self._lock:
            return self._app.get(*given, **more)

    def request(self, *given: Any, **more: Any) -> Any:
        """See webtest.TestApp."""
        with self._lock:
            return self._app.request(*given, **more)


class Load:
    """A user who boots and deletes servers, one after the other, in a thread."""

    def __init__(self, front: Front, rack: Rack) -> None:
        self._user = Client(front, role="member").with_service_token()
        admin = Client(front, role="admin")
        self._profile = admin.make_profile({f"resources:{rack.resource_class}": "1"})
        self._rack = rack
        self._stop = threading.Event()
        self.rounds = 0
        self.faults: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the server that is being booted."""
        self._stop.set()
        joined(self._thread)

    def goes_on(self) -> None:
        """Wait for one more whole round, or for a fault."""
        target = self.rounds + 2  # the current one may have begun before the call
        eventually(lambda: self.rounds >= target or bool(self.faults))

    def _run(self) -> None:
        while not self._stop.is_set() and not self.faults:
            try:
                self._boot()
            except BaseException as fault:  # noqa: BLE001
                # An assertion in a thread would be lost.
                self.faults.append(fault)
            self.rounds += 1

    def _boot(self) -> None:
        arqs = create(self._user, self._profile)
        instance = str(uuid4())
        provider, host = self._rack.provider(), self._rack.compute
        bind(self._user, arqs, provider, host=host, instance=instance)
        eventually_bound(self._user, instance)
        delete_arqs(self._user, instance)


@dataclass
class RollingCloud:
    """Two conductors, an API and an agent; each has a file of keys of its own in ``files``."""

    stack: Stack
    conf: cfg.ConfigOpts
    rack: Rack
    files: Path
    front: Front = field(default_factory=Front)
    cards: list[str] = field(default_factory=lambda: [CARD])
    #: What stops each process.
    stops: dict[str, Callable[[], None]] = field(default_factory=dict)

    @property
    def master(self) -> Path:
        """The master keys, of which all files are copies or derived."""
        return self.files / "master.json"

    def copy_keys(self, name: str) -> None:
        """Bring the keys of the master file to a process, as an administrator does."""
        mine = str(self.files / f"{name}.json")
        if name in CONDUCTORS:
            keys.write(Path(mine), keys.read(self.master))
            return
        owner = ["--api"] if name == API else ["--host", self.rack.compute]
        assert signing_key.main(["derive", str(self.master), *owner, "--output", mine]) == 0

    def stop(self) -> None:
        """Stop everything, and forget the options."""
        self.stops[API]()
        self.stack.stop()
        for option in ("message_signing", "message_signing_key_file", "host"):
            self.conf.clear_override(option)

    def plug(self) -> None:
        """Put one more card into the host."""
        self.cards.append(f"0000:{0x90 + len(self.cards):02x}:00.0")
        self.rack.plug(self.cards[-1], 1)

    def reported(self) -> bool:
        """Whether the service knows every card."""
        admin = Client(self.front, role="admin")
        devices = admin.get("/devices", hostname=self.rack.compute)["devices"]
        return len(devices) == len(self.cards)

    @contextmanager
    def load(self) -> Iterator[Load]:
        """Requests throughout the block; none of them may have failed at its end."""
        load = Load(self.front, self.rack)
        load.start()
        try:
            yield load
        finally:
            load.stop()
        assert load.faults == []


def start(cloud: RollingCloud, name: str, mode: str) -> None:
    """Start a process; in the mode ``off`` it has no keys."""
    file = None if mode == "off" else str(cloud.files / f"{name}.json")
    cloud.conf.set_override("message_signing", mode)
    cloud.conf.set_override("message_signing_key_file", file)
    cloud.conf.set_override("host", cloud.rack.compute if name == AGENT else name)
    if name == API:
        cloud.stops[name] = _start_api(cloud)
    elif name == AGENT:
        cloud.stops[name] = cloud.stack.start_agent(
            cloud.rack.compute,
            machine=cloud.rack.machine,
            drivers=[cloud.rack.loaded],
            state_path=cloud.files,
        ).stop
    else:
        cloud.stops[name] = cloud.stack.start_conductor(name).stop


def restart(cloud: RollingCloud, name: str, mode: str) -> None:
    """Replace a process, of which a deployment has only one except for conductors."""
    before = cloud.stops[name]
    if name == API:
        start(cloud, name, mode)
        before()
    else:
        before()
        start(cloud, name, mode)


def _start_api(cloud: RollingCloud) -> Callable[[], None]:
    reader = Reader(cloud.stack.database_url)
    client = reach(ConductorClient(cloud.stack.bus(), timeout=cloud.stack.times.rpc))
    cloud.front.replace(RequestId(api_app.core(cloud.conf, reader=reader, conductor=client)))

    def stop() -> None:
        client.close()
        reader.close()

    return stop


@pytest.fixture
def rolling(
    conf: cfg.ConfigOpts,
    own_database: Database,
    placement: PlacementService,
    nova_api: SimulatedNova,
    tmp_path: Path,
) -> Iterator[RollingCloud]:
    """All processes with files of keys that they do not use yet."""
    traits = Traits(f"CUSTOM_CARD_{uuid4().hex[:12].upper()}", prepare=True)
    rack = Rack.build(fresh_host("racked"), traits, {CARD: 2})
    placement.make_compute(rack.compute)
    stack = Stack(
        conf=conf,
        database_url=own_database.engine.url.render_as_string(hide_password=False),
        transport_url=TRANSPORT_URL,
        peers=Peers(placement=placement.adapter, nova=nova_api.adapter),
        times=Times(agent_heartbeat=0.2, scan=0.2),
    )
    cloud = RollingCloud(stack, conf, rack, tmp_path)
    assert signing_key.main(["create", str(cloud.master)]) == 0
    for name in ORDERS[0]:
        cloud.copy_keys(name)
    yield cloud
    cloud.stop()


def begin(cloud: RollingCloud, mode: str, placement: PlacementService) -> None:
    """Start all processes, and wait until the first card is offered."""
    for name in ORDERS[0]:
        start(cloud, name, mode)
    eventually_offered(placement, cloud.rack.provider(), 2)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was refused, except requests to an agent from before its start."""
    lines = [one.getMessage() for one in caplog.records if one.name == "cyborg.rpc.signing"]
    return [
        line
        for line in lines
        if "refused" in line and not any(reason in line for reason in _BY_DESIGN)
    ]


@pytest.mark.parametrize("order", chosen(ORDERS, "orders"), ids="-".join)
def test_signing_is_introduced_process_by_process(
    rolling: RollingCloud,
    order: Sequence[str],
    placement: PlacementService,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begin(rolling, "off", placement)
    with caplog.at_level(logging.WARNING), rolling.load() as load:
        for mode in ("warn", "required"):
            for name in order:
                rolling.plug()
                restart(rolling, name, mode)
                load.goes_on()
            eventually(rolling.reported)
    assert refusals(caplog) == []
    # It is in force now.
    unsigned = Attacker(rolling.stack.bus(), rolling.stack.exchange)
    context = unsigned.signed(CONDUCTOR_TOPIC, "dance", {}, sender="cyborg-api@control")
    with pytest.raises(REFUSALS):
        unsigned.deliver(CONDUCTOR_TOPIC, "dance", {}, context)


def test_agent_without_the_signing_key_of_conductors_is_shown_as_deaf(
    rolling: RollingCloud, placement: PlacementService, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(rolling, "required", placement)
    operator = Client(rolling.front, role="operator", version="2.100")

    def agent() -> dict[str, Any]:
        services = operator.get("/services", host=rolling.rack.compute)["services"]
        return next(one for one in services if one["binary"] == "cyborg-agent")

    for step in ("add", "promote"):
        assert signing_key.main([step, str(rolling.master)]) == 0
        for name in ORDERS[0]:
            if name != AGENT:
                rolling.copy_keys(name)
    assert "WARNING: A host whose file does not have the key" in capsys.readouterr().out
    written = keys.read(rolling.master).keys
    others = [bus._signer._keys for bus in rolling.stack.buses]
    first = written[0].id
    eventually(
        lambda: (
            sum(ring is not None and ring.keys.keys[0].id == first for ring in others)
            == len(others) - 1
        )
    )
    # Whatever an operator asks of the agent.
    operator.post("/services/discover", {"hosts": [rolling.rack.compute]}, status=202)
    eventually(lambda: agent()["listening"] is False)
    deaf = agent()
    assert deaf["state"] == "up"
    assert "lacks the key with which conductors sign" in deaf["cause"]
    assert "cyborg-signing-key derive" in deaf["remedy"]
    rolling.copy_keys(AGENT)
    eventually(lambda: agent()["listening"])


def test_keys_are_replaced_process_by_process(
    rolling: RollingCloud, placement: PlacementService, caplog: pytest.LogCaptureFixture
) -> None:
    """No process restarts. ``bus/test_attacks`` has the key that is refused afterwards."""
    old = keys.read(rolling.master).keys[0].id
    begin(rolling, "required", placement)
    with caplog.at_level(logging.WARNING), rolling.load() as load:
        for step, order in zip(("add", "promote", "remove"), ORDERS, strict=True):
            arguments = [old] if step == "remove" else []
            assert signing_key.main([step, str(rolling.master), *arguments]) == 0
            for name in order:
                rolling.plug()
                rolling.copy_keys(name)
                load.goes_on()
            written = keys.read(rolling.master).keys
            ids, first = {key.id for key in written}, written[0].id
            # An administrator waits until every host has its file.
            eventually(partial(has_read, rolling.stack, ids, first))
            eventually(rolling.reported)
    assert old not in ids
    assert refusals(caplog) == []
