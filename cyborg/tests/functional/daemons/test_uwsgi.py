# SPDX-License-Identifier: Apache-2.0
"""``cyborg.wsgi.api:application`` in several processes of uWSGI (check 116)."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db import services
from cyborg.db.engine import Database
from cyborg.db.models import Service as Row
from cyborg.model.process import API
from cyborg.tests.fixtures import pages
from cyborg.tests.fixtures.pages import Page
from cyborg.tests.fixtures.processes import Deployment, Program
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.daemons.service import (
    FPGA,
    Http,
    Service,
    all_at_once,
    go_through_everything,
)

CLIENTS = 8


def workers(server: Program) -> list[int]:
    """The processes of all workers that ever were, the newest last."""
    pids = re.findall(r"pawned uWSGI worker \d+ \((?:new )?pid: (\d+)", server.output)
    return [int(pid) for pid in pids]


def create_and_delete(http: Http) -> str:
    name = f"profile-{uuid4().hex}"
    http.do("POST", "/device_profiles", [{"name": name, "groups": [FPGA]}], status=201)
    body = {"device_profile_name": name}
    (arq,) = http.do("POST", "/accelerator_requests", body, status=201)["arqs"]
    http.do("DELETE", f"/accelerator_requests?arqs={arq['uuid']}", status=204)
    http.do("DELETE", f"/device_profiles/{name}", status=204)
    return "done"


def apis(db: Database, host: str) -> list[services.ProcessStatus]:
    """The APIs of a host, as their rows show them."""
    with db.reader() as tx:
        return [one for one in services.statuses(tx, {API: 0}) if one.process.host == host]


@pytest.mark.parametrize(("lazy", "mount"), [(False, ""), (True, "/accelerator")])
def test_uwsgi_workers_serve_count_and_appear_as_one_api(
    service: Service,
    deploy: Callable[..., Deployment],
    db: Database,
    tmp_path: Path,
    *,
    monkeypatch: pytest.MonkeyPatch,
    lazy: bool,
    mount: str,
):
    host, counted = f"api-{uuid4().hex[:12]}", tmp_path / "counted"
    counted.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(counted))
    here = deploy({"DEFAULT": {"host": host}, "api": {"metrics": True}})
    server, url = here.uwsgi(processes=2, lazy=lazy, mount=mount)
    assert apis(db, host) == []
    # The first request of each process makes its connections: all at once is the hardest.
    assert all_at_once(CLIENTS, lambda _number: create_and_delete(Http(url))) == {"done": CLIENTS}
    eventually(lambda: bool(apis(db, host)), lambda: server.output)
    go_through_everything(Http(url), service.host, service.provider)
    assert Http(url).ask("GET", "/v2").json()["links"][0]["href"].startswith(f"{url}/v2")
    counts_are_shared(url)

    # A worker that comes later serves, and speaks from its own first request on.
    with db.writer() as tx:
        tx.execute(sa.delete(Row).where(Row.host == host))
    first = workers(server)
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(workers(server)) > len(first), lambda: server.output)
    assert all_at_once(CLIENTS, lambda _number: create_and_delete(Http(url))) == {"done": CLIENTS}
    eventually(lambda: len(apis(db, host)) == 1, lambda: server.output)
    assert server.stop() == 0
    (row,) = apis(db, host)
    assert row.process.endpoint == f"{API}@{host}"


def counts_are_shared(url: str) -> None:
    """Whichever worker answers: several looks meet several of them."""

    def ask(_number: int) -> str:
        return str(Http(url).ask("GET", f"/v2/devices/{uuid4()}").status_code)

    assert all_at_once(CLIENTS, ask) == {"404": CLIENTS}
    page, route = Page.at(f"{url}/metrics"), "/v2/devices/{id}"
    for _ in range(4):
        assert page.value("cyborg_http_requests_total", route=route, status="404") == CLIENTS
        seconds = "cyborg_http_request_duration_seconds_count"
        assert page.value(seconds, route=route, method="GET") == CLIENTS
        assert page.value("cyborg_build_info", binary=API) == 1
    assert page.names == {one.name for one in pages.API_METRICS}
