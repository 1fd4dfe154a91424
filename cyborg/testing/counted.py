# SPDX-License-Identifier: Apache-2.0
"""An API and a conductor in this process, counted, with nothing running beside the requests.

The conductor is made of the parts of a real one and answers over the real bus; only its lease and
its worker stand still until they are told to go on, so that every statement belongs to somebody.
"""

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
import webob
from keystoneauth1.adapter import Adapter
from oslo_config import cfg
from oslo_middleware import RequestId

from cyborg import service
from cyborg.api import app as api_app
from cyborg.api import microversion
from cyborg.clients.allocations import Allocations
from cyborg.clients.nova import Nova
from cyborg.conductor import app as conductor_app
from cyborg.conductor.endpoint import Endpoint
from cyborg.conductor.services import Lease
from cyborg.db.engine import Database, Reader
from cyborg.db.models import Work
from cyborg.db.services import Process
from cyborg.model.names import CONDUCTOR
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.transport import CONDUCTOR_TOPIC
from cyborg.testing.absent import absent
from cyborg.testing.any_host import AnyHost
from cyborg.testing.broker import SweptBus
from cyborg.testing.counting import CountedAdapter, Meter, Tally
from cyborg.testing.stack import reach

PROJECT = "bench-project"
#: An administrator who asks through Nova: nothing is refused, and nothing is left out of a list.
_ADMIN = {
    "X-Identity-Status": "Confirmed",
    "X-Roles": "admin,manager,member,reader",
    "X-Project-Id": PROJECT,
    "X-User-Id": "bench-user",
    "X-Service-Roles": "service",
    "X-Service-Identity-Status": "Confirmed",
}
_PATIENCE = 10.0
_SETTINGS = conductor_app.Settings(
    host="counted",
    process="0",
    version="0",
    heartbeat=1.0,
    lease=3600.0,
    bind_timeout=10.0,
    agent_down_after=30.0,
    threads=4,
    auto_enable=frozenset({"*"}),
)


class CountedService:
    """The service; ``meter`` watches its two engines, its endpoint and its requests to Nova.

    ``exchange`` keeps its bus apart from others. A context manager.
    """

    def __init__(
        self,
        *,
        conf: cfg.ConfigOpts,
        database_url: str,
        transport_url: str,
        exchange: str,
        nova: Adapter,
    ) -> None:
        self.meter = Meter()
        self.db = Database(database_url)
        self._reader = Reader(database_url)
        self._uncounted = Database(database_url)
        for engine in (self.db.engine, self._reader.engine):
            self.meter.watch(engine)
        buses = [SweptBus(conf, url=transport_url, exchange=exchange) for _ in range(3)]
        agents = AgentClient(buses[0], timeout=_PATIENCE)
        self._lease = Lease(db=self.db, process=_process())
        peers = conductor_app.Peers(Nova(CountedAdapter(nova, self.meter)), Allocations(absent()))
        self._worker = conductor_app.make_worker(
            settings=_SETTINGS,
            db=self.db,
            agents=agents,
            peers=peers,
            lease=self._lease,
        )
        cases = conductor_app.use_cases(
            settings=_SETTINGS, db=self.db, agents=agents, peers=peers, wake=lambda: None
        )
        counted = self.meter.endpoint(Endpoint(cases))
        self._daemon = service.Daemon("counted")
        self._daemon.add_server(buses[0].server(CONDUCTOR_TOPIC, _SETTINGS.host, counted))
        self._conductor = ConductorClient(buses[1], timeout=_PATIENCE)
        self.agent = AnyHost(buses[2], timeout=_PATIENCE)
        self._app = RequestId(
            api_app.core(conf, reader=self._reader, conductor=self._conductor), conf
        )
        self._daemon.at_end(buses[0].sweep)
        for ending in (*(bus.close for bus in buses), agents.close, self._worker.stop):
            self._daemon.at_end(ending)
        for ending in (self.db.close, self._reader.close, self._uncounted.close):
            self._daemon.at_end(ending)
        self._daemon.at_end(self._conductor.close)
        self._daemon.at_end(self.agent.close)

    def __enter__(self) -> "CountedService":
        self._daemon.start()
        reach(self._conductor)
        reach(self.agent)
        return self

    def __exit__(self, *_details: object) -> None:
        self._daemon.stop()

    def send(self, method: str, path: str, body: Any = None, *, version: str = "2.0") -> Any:
        """The parsed answer to a request below ``/v2`` (None if empty); RuntimeError from 400."""
        more: Mapping[str, Any] = {}
        if body is not None:
            more = {"body": json.dumps(body).encode(), "content_type": "application/json"}
        headers = {**_ADMIN, microversion.HEADER: f"{microversion.SERVICE_TYPE} {version}"}
        request = webob.Request.blank(f"/v2{path}", method=method, headers=headers, **more)
        answer = request.get_response(self._app)
        if answer.status_int >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.text}")
        return answer.json if answer.body else None

    def counted(
        self, method: str, path: str, body: Any = None, *, version: str = "2.0"
    ) -> tuple[Tally, Any]:
        """The same, with what it cost."""
        with self.meter.tally() as tally:
            found = self.send(method, path, body, version=version)
        return tally, found

    def sign_of_life(self) -> Tally:
        """What it costs an API process to say that it is there."""
        with self.meter.tally() as tally:
            self._conductor.alive(_SETTINGS.host, version="0", endpoint="counted")
        return tally

    def forget_work(self) -> None:
        """Nothing of what was done so far waits to be delivered."""
        with self._uncounted.writer() as tx:
            tx.execute(sa.delete(Work))

    def deliver(self) -> Tally:
        """Do the work that waits, and count it; RuntimeError when it takes too long."""
        self._lease.renew()
        with self.meter.tally() as tally:
            self._worker.run_once()
            if not service.wait_until(self._idle, timeout=_PATIENCE, step=0.01):
                raise RuntimeError("work is left over")
        return tally

    def _idle(self) -> bool:
        with self._uncounted.reader() as tx:
            return not tx.execute(sa.select(sa.func.count()).select_from(Work)).scalar_one()


def _process() -> Process:
    return Process(_SETTINGS.host, CONDUCTOR, _SETTINGS.version, CONDUCTOR_TOPIC, _SETTINGS.process)
