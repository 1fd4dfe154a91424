# SPDX-License-Identifier: Apache-2.0
"""A child process of the benchmark: parts of the service, and the floors beside them.

It carries out methods of its ``Parts``, and ends with its parent.
"""

import logging
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Self
from uuid import uuid4

import oslo_messaging
import pecan
import webob
from keystoneauth1.adapter import Adapter
from keystoneauth1.noauth import NoAuth
from keystoneauth1.session import Session

from cyborg import conf as configuration
from cyborg.api import app as api_app
from cyborg.api.server import HttpServer
from cyborg.model.report import AgentHeartbeat
from cyborg.rpc.verbs import Heartbeat, SendReport
from cyborg.tests.fixtures.any_host import AnyHost
from cyborg.tests.fixtures.host_reports import report_of
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.stack import Peers, Stack, Times, reach
from cyborg.tests.fixtures.unreachable import unreachable
from cyborg_tools.bench.figures import Samples

API = "api"
CONDUCTOR = "conductor"
AGENT = "agent"
NOVA = "nova"
#: Processes are not forked: they have nothing of this one.
SPAWN = multiprocessing.get_context("spawn")
_ECHO_TOPIC = "bench-echo"
_ECHO_PATIENCE = 30
_TIMES = Times(conductor_heartbeat=1.0, lease=5.0, rpc=30.0)
#: How often an unchanged report is repeated for each first one.
_REPEATS = 5


class Child:
    """The parent's end; a context manager.

    ``parts`` run in one process with ``setting`` (see ``Parts``). Raises RuntimeError when the
    child fails; its output is on standard error.
    """

    def __init__(self, parts: Sequence[str], setting: dict[str, str]) -> None:
        self._pipe, end = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_serve, args=(end, parts, setting))
        self._process.start()
        end.close()

    def ask(self, what: Callable[..., Any], *arguments: Any) -> Any:
        """Have a method of Parts called, and wait for its answer."""
        self._pipe.send((what, arguments))
        return self.answer()

    def answer(self) -> Any:
        """Wait for an answer; the first one tells where the parts are reached, by name."""
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join(30)
            status = self._process.exitcode
            raise RuntimeError(f"a child of the benchmark ended with {status}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self._pipe.close()
        self._process.join(30)
        self._process.kill()
        self._process.join()


def _serve(pipe: "Connection[Any, Any]", parts: Sequence[str], setting: dict[str, str]) -> None:
    """Run the child's end until the parent closes the pipe."""
    running = Parts(setting)
    try:
        address: dict[str, str] = {}
        for part in parts:
            address |= running.start(part)
        pipe.send(address)
        while True:
            what, arguments = pipe.recv()
            pipe.send(what(running, *arguments))
    except EOFError:
        return
    finally:
        running.stop()


class Parts:
    """The parts of one process; ``stop`` ends everything."""

    def __init__(self, setting: Mapping[str, str]) -> None:
        conf = configuration.prepare([], prog="bench", default_config_files=[])
        # Threads log alike in every run, and nobody reads them here.
        logging.disable(logging.WARNING)
        conf.set_override("auth_strategy", "noauth", group="api")
        conf.set_override("port", 0, group="api")
        self._conf = conf
        self._setting = setting
        self._stack = Stack(
            conf=conf,
            database_url=setting["database_url"],
            transport_url=setting["transport_url"],
            # The benchmark runs nobody who talks to Placement.
            peers=Peers(placement=unreachable, nova=self._nova),
            times=_TIMES,
            exchange=setting["exchange"],
        )
        self._endings: list[Callable[[], object]] = []
        self._agent: AnyHost | None = None
        self._echo_client: Any = None

    def start(self, part: str) -> dict[str, str]:
        """Start one part; answers where it is reached, by name."""
        starts = {
            API: self._start_api,
            CONDUCTOR: self._start_conductor,
            AGENT: self._start_agent,
            NOVA: self._start_nova,
        }
        return starts[part]()

    def stop(self) -> None:
        while self._endings:
            self._endings.pop()()
        self._stack.stop()

    def _nova(self) -> Adapter:
        return Adapter(Session(auth=NoAuth(endpoint=self._setting["nova"])), service_type="compute")

    def _start_api(self) -> dict[str, str]:
        real = HttpServer(self._stack.make_api(), self._conf)
        nothing = pecan.Pecan(
            _Nothing(), use_context_locals=False, guess_content_type_from_ext=False
        )
        empty = HttpServer(api_app.behind_filters(nothing, self._conf), self._conf)
        for server in (real, empty):
            server.start()
            self._endings.append(server.stop)
        bus = self._stack.bus()
        self._endings.append(bus.close)
        self._echo_client = bus.client(_ECHO_TOPIC)
        return {
            name: "{}:{}".format(*server.address)
            for name, server in (("api", real), ("empty", empty))
        }

    def _start_conductor(self) -> dict[str, str]:
        self._stack.start_conductor()
        bus = self._stack.bus()
        self._endings.append(bus.close)
        server = bus.server(_ECHO_TOPIC, "bench", _Echo())
        server.start()
        self._endings += [server.wait, server.stop]
        return {}

    def _start_agent(self) -> dict[str, str]:
        self._agent = reach(AnyHost(self._stack.bus(), timeout=_TIMES.rpc))
        self._endings.append(self._agent.close)
        return {}

    def _start_nova(self) -> dict[str, str]:
        nova = SimulatedNova()
        nova.start()
        self._endings.append(nova.stop)
        return {"nova": nova.url}

    def echo(self, clients: int, seconds: float) -> Samples:
        call = self._echo_client.prepare(timeout=_ECHO_PATIENCE).call
        call({}, "echo")
        started = time.perf_counter()

        def until_the_end() -> list[float]:
            return _timed(lambda: call({}, "echo"), started + seconds)

        with ThreadPoolExecutor(clients) as pool:
            running = [pool.submit(until_the_end) for _ in range(clients)]
            times = [one for future in running for one in future.result()]
        return Samples(times, time.perf_counter() - started)

    def reports(self, devices: int, seconds: float) -> dict[str, Samples]:
        """First reports of fresh hosts, and unchanged ones of the same."""
        assert self._agent is not None
        first: list[float] = []
        unchanged: list[float] = []
        end = time.perf_counter() + seconds
        while not first or time.perf_counter() < end:
            host = f"reporting-{uuid4().hex[:12]}"
            report = report_of(host, devices)
            heartbeat = AgentHeartbeat(host, (host,), "0", f"agent@{host}", None)
            epoch = self._agent.request(Heartbeat(heartbeat)).epoch
            started = time.perf_counter()
            report.digest()
            self._agent.request(SendReport(host, epoch, report))
            first.append(time.perf_counter() - started)
            heartbeat = replace(heartbeat, epoch=epoch)
            for _ in range(_REPEATS):
                started = time.perf_counter()
                if self._agent.request(Heartbeat(heartbeat)).digest != report.digest():
                    raise RuntimeError("the conductor has another report")
                unchanged.append(time.perf_counter() - started)
        reports = {"first": first, "unchanged": unchanged}
        return {kind: Samples(times, sum(times)) for kind, times in reports.items()}


class _Echo:
    """An RPC endpoint that does nothing."""

    target = oslo_messaging.Target(version="1.0")

    def echo(self, _context: Any) -> None:
        """Answer."""


class _Nothing:
    """A pecan controller that does nothing."""

    def index(self, _request: Any, _response: Any) -> webob.Response:
        return webob.Response(body=b"{}", content_type="application/json", charset="UTF-8")

    # As a call, because pecan's decorators have no types.
    index = pecan.expose(content_type="application/json")(index)


def _timed(call: Callable[[], object], end: float) -> list[float]:
    times: list[float] = []
    now = time.perf_counter()
    while now < end or not times:
        call()
        after = time.perf_counter()
        times.append(after - now)
        now = after
    return times
