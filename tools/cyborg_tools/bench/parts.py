# SPDX-License-Identifier: Apache-2.0
"""A child process of the benchmark: parts of the service, and the floors beside them.

It carries out methods of its ``Parts``, and ends with its parent.
"""

import logging
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Self
from uuid import uuid4

import oslo_messaging
import pecan
import webob
from keystoneauth1.adapter import Adapter
from keystoneauth1.noauth import NoAuth
from keystoneauth1.session import Session
from oslo_config import cfg

from cyborg import conf as configuration
from cyborg.api import app as api_app
from cyborg.api.server import HttpServer
from cyborg.model.report import AgentHeartbeat
from cyborg.rpc.transport import Bus
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
    with ExitStack() as endings:
        running = _parts(setting, endings)
        address: dict[str, str] = {}
        for part in parts:
            address |= _STARTS[part](running)
        pipe.send(address)
        with suppress(EOFError):
            while True:
                what, arguments = pipe.recv()
                pipe.send(what(running, *arguments))


@dataclass
class Parts:
    """The parts of one process; ``endings`` stop them."""

    conf: cfg.ConfigOpts
    stack: Stack
    endings: ExitStack
    agent: AnyHost | None = None
    echo_client: Any = None

    def bus(self) -> Bus:
        """Return a connection that is closed at the end."""
        return self.endings.enter_context(closing(self.stack.bus()))

    def echo(self, clients: int, seconds: float) -> Samples:
        call = self.echo_client.prepare(timeout=_ECHO_PATIENCE).call
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
        assert self.agent is not None
        first: list[float] = []
        unchanged: list[float] = []
        end = time.perf_counter() + seconds
        while not first or time.perf_counter() < end:
            host = f"reporting-{uuid4().hex[:12]}"
            report = report_of(host, devices)
            heartbeat = AgentHeartbeat(host, (host,), "0", f"agent@{host}", None)
            epoch = self.agent.request(Heartbeat(heartbeat)).epoch
            started = time.perf_counter()
            report.digest()
            self.agent.request(SendReport(host, epoch, report))
            first.append(time.perf_counter() - started)
            heartbeat = replace(heartbeat, epoch=epoch)
            for _ in range(_REPEATS):
                started = time.perf_counter()
                if self.agent.request(Heartbeat(heartbeat)).digest != report.digest():
                    raise RuntimeError("the conductor has another report")
                unchanged.append(time.perf_counter() - started)
        reports = {"first": first, "unchanged": unchanged}
        return {kind: Samples(times, sum(times)) for kind, times in reports.items()}


def _parts(setting: Mapping[str, str], endings: ExitStack) -> Parts:
    conf = configuration.prepare([], prog="bench", default_config_files=[])
    # Threads log alike in every run, and nobody reads them here.
    logging.disable(logging.WARNING)
    conf.set_override("auth_strategy", "noauth", group="api")
    conf.set_override("port", 0, group="api")
    nova = Adapter(Session(auth=NoAuth(endpoint=setting["nova"])), service_type="compute")
    stack = Stack(
        conf=conf,
        database_url=setting["database_url"],
        transport_url=setting["transport_url"],
        # The benchmark runs nobody who talks to Placement.
        peers=Peers(placement=unreachable, nova=lambda: nova),
        times=_TIMES,
        exchange=setting["exchange"],
    )
    endings.callback(stack.stop)
    return Parts(conf, stack, endings)


def _start_api(parts: Parts) -> dict[str, str]:
    real = HttpServer(parts.stack.make_api(), parts.conf)
    nothing = pecan.Pecan(_Nothing(), use_context_locals=False, guess_content_type_from_ext=False)
    empty = HttpServer(api_app.behind_filters(nothing, parts.conf), parts.conf)
    for server in (real, empty):
        server.start()
        parts.endings.callback(server.stop)
    parts.echo_client = parts.bus().client(_ECHO_TOPIC)
    return {
        name: "{}:{}".format(*server.address) for name, server in (("api", real), ("empty", empty))
    }


def _start_conductor(parts: Parts) -> dict[str, str]:
    parts.stack.start_conductor()
    server = parts.bus().server(_ECHO_TOPIC, "bench", _Echo())
    server.start()
    parts.endings.callback(server.wait)
    parts.endings.callback(server.stop)
    return {}


def _start_agent(parts: Parts) -> dict[str, str]:
    parts.agent = reach(AnyHost(parts.stack.bus(), timeout=_TIMES.rpc))
    parts.endings.callback(parts.agent.close)
    return {}


def _start_nova(parts: Parts) -> dict[str, str]:
    return {"nova": parts.endings.enter_context(SimulatedNova()).url}


#: What starts each part, and answers where it is reached, by name.
_STARTS: Mapping[str, Callable[[Parts], dict[str, str]]] = {
    API: _start_api,
    CONDUCTOR: _start_conductor,
    AGENT: _start_agent,
    NOVA: _start_nova,
}


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
