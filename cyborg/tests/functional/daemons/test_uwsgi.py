# SPDX-License-Identifier: Apache-2.0
"""``cyborg.wsgi.api:application`` in several processes of uWSGI (check 116)."""

import os
import re
import signal
from collections.abc import Callable
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import service as runner
from cyborg.db import services
from cyborg.db.engine import Database
from cyborg.db.models import Service as Row
from cyborg.model.process import API
from cyborg.tests.fixtures.processes import Deployment, Program
from cyborg.tests.functional.daemons.service import (
    FPGA,
    Http,
    Service,
    all_at_once,
    go_through_everything,
)

CLIENTS = 8


@pytest.fixture(params=["forked", "lazy"])
def lazy(request: pytest.FixtureRequest) -> bool:
    """Load the application before the workers fork, or in each of them."""
    return bool(request.param == "lazy")


def workers(server: Program) -> list[int]:
    """The processes of all workers that ever were, the newest last."""
    found = re.findall(r"pawned uWSGI worker \d+ \((?:new )?pid: (\d+)", server.output)
    return [int(pid) for pid in found]


def create_and_delete(http: Http) -> str:
    name = f"profile-{uuid4().hex}"
    http.do("POST", "/device_profiles", [{"name": name, "groups": [FPGA]}], status=201)
    body = {"device_profile_name": name}
    (arq,) = http.do("POST", "/accelerator_requests", body, status=201)["arqs"]
    http.do("DELETE", f"/accelerator_requests?arqs={arq['uuid']}", status=204)
    http.do("DELETE", f"/device_profiles/{name}", status=204)
    return "done"


@pytest.mark.parametrize("mount", ["", "/accelerator"])
def test_uwsgi_with_several_processes_serves_every_resource(
    service: Service, lazy: bool, mount: str
):
    deployment: Deployment = service.deployment
    server, url = deployment.uwsgi(processes=3, lazy=lazy, mount=mount)
    # The first request of each process makes its connections: all at once is the hardest.
    assert all_at_once(CLIENTS, lambda _number: create_and_delete(Http(url))) == {"done": CLIENTS}
    go_through_everything(Http(url), service.host, service.provider)
    assert Http(url).ask("GET", "/v2").json()["links"][0]["href"].startswith(f"{url}/v2")
    assert server.stop() == 0


def test_uwsgi_serves_requests_after_a_worker_is_killed(service: Service, lazy: bool):
    server, url = service.deployment.uwsgi(processes=2, lazy=lazy)
    assert all_at_once(CLIENTS, lambda _number: create_and_delete(Http(url))) == {"done": CLIENTS}
    first = workers(server)
    os.kill(first[0], signal.SIGKILL)
    assert runner.wait_until(lambda: len(workers(server)) > len(first), timeout=20), server.output
    if lazy:
        server.wait_for(rf"WSGI app 0 .* pid: {workers(server)[-1]} ")
    assert all_at_once(CLIENTS, lambda _number: create_and_delete(Http(url))) == {"done": CLIENTS}
    assert server.stop() == 0


def seen(db: Database, host: str) -> list[services.ProcessStatus]:
    """The APIs of a host, as their rows show them."""
    with db.reader() as tx:
        return [one for one in services.statuses(tx, {API: 0}) if one.process.host == host]


def test_uwsgi_workers_share_one_service_row(
    service: Service, deploy: Callable[..., Deployment], db: Database, lazy: bool
):
    host = f"api-{uuid4().hex[:12]}"
    server, url = deploy({"DEFAULT": {"host": host}}).uwsgi(processes=3, lazy=lazy)
    assert seen(db, host) == []
    done = all_at_once(CLIENTS, lambda _number: str(Http(url).ask("GET", "/").status_code))
    assert done == {"200": CLIENTS}
    assert runner.wait_until(lambda: bool(seen(db, host)), timeout=20), server.output
    # A worker that comes later speaks from its own first request on.
    with db.writer() as tx:
        tx.execute(sa.delete(Row).where(Row.host == host))
    first = workers(server)
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    assert runner.wait_until(lambda: len(workers(server)) > len(first), timeout=20), server.output
    assert all_at_once(CLIENTS, lambda _number: create_and_delete(Http(url))) == {"done": CLIENTS}
    assert runner.wait_until(lambda: len(seen(db, host)) == 1, timeout=20), server.output
    assert server.stop() == 0
    (row,) = seen(db, host)
    assert row.process.endpoint == f"{API}@{host}"
