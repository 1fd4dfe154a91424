# SPDX-License-Identifier: Apache-2.0
"""API, conductor and agent as processes on a real bus: they serve everything, and say how they are.

Whichever of two conductors ends, in whatever way, the other one serves.
"""

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Service as Row
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional import programs
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.daemons.service import (
    FPGA,
    Http,
    Service,
    all_at_once,
    go_through_everything,
)
from cyborg.tests.functional.deployments import TRANSPORT_URL

ESTABLISHED = "01"
CLOSED = "http://127.0.0.1:9"
CLIENTS = 4


def peers(pid: int) -> set[int]:
    """The remote TCP ports to which a process is connected."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            # It was closed meanwhile.
            continue
        if target.startswith("socket:["):
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and fields[3] == ESTABLISHED:
                ports.add(int(fields[2].rpartition(":")[2], 16))
    return ports


def test_every_resource_is_read_and_written(
    service: Service, placement: PlacementService, nova_api: SimulatedNova
):
    assert offered(placement, service.provider) == 16
    before = len(nova_api.events)

    def told() -> None:
        # Of an ARQ that is deleted before its event is sent, Nova is not told.
        eventually(lambda: len(nova_api.events) > before, "an event for Nova")
        assert nova_api.events[-1].status == "completed"

    go_through_everything(service.client(), service.host, service.provider, when_bound=told)


def shows(placement: PlacementService, provider: str, units: int) -> bool:
    return offered(placement, provider) == units


def test_disabled_device_is_reserved_in_placement(service: Service, placement: PlacementService):
    http = service.client()
    (device,) = http.get(f"/devices?hostname={service.host}")["devices"]
    for verb, units in (("disable", 0), ("enable", 16)):
        http.do("POST", f"/devices/{device['uuid']}/{verb}", status=204)
        shown = partial(shows, placement, service.provider, units)
        eventually(shown, f"Placement offers {units} units")


def test_conductor_and_agent_stay_connected_to_the_broker(service: Service):
    port = int(TRANSPORT_URL.rpartition(":")[2].partition("/")[0])
    for program in (service.conductor, service.agent):
        assert port in peers(program.pid)


def checked(deployment: Deployment) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit status of ``cyborg-status check``, and the components by name."""
    done = programs.run_on(deployment, "cyborg-status", "check", "--format", "json")
    assert done.stdout.startswith("{"), done.stderr
    document = json.loads(done.stdout)
    assert document["level"] == ("ok", "warning", "failure")[done.returncode]
    return done.returncode, {one["name"]: one for one in document["components"]}


def states(components: dict[str, dict[str, Any]]) -> dict[str, str]:
    names = ("Database", "Keystone", "Placement", "Nova", "Message bus")
    return {name: components[name]["state"] for name in names}


def test_health_of_a_running_service_is_up(service: Service, deploy: Callable[..., Deployment]):
    here = deploy()
    status, components = checked(here)
    assert (status, set(states(components).values()) - {"not checked"}) == (0, {"up"})
    assert components[f"cyborg-agent on {service.host}"]["state"] == "up"
    shown = programs.run_on(here, "cyborg-status", "check")
    assert shown.returncode == 0
    assert shown.stdout.splitlines()[0].split() == ["Database", "up"]
    assert shown.stdout.splitlines()[-1] == "All well."


def test_unreachable_peers_are_named(
    service: Service, deploy: Callable[..., Deployment], database: str
):
    url = sa.make_url(database).set(host="127.0.0.1", port=1)
    account = {"username": "cyborg", "password": "secret-4711"}
    gone: Options = {
        "database": {"connection": url.render_as_string(hide_password=False)},
        "placement": {"auth_type": "none", "endpoint": CLOSED},
        "nova": {"auth_type": "password", "auth_url": f"{CLOSED}/v3", **account},
    }
    status, components = checked(deploy(gone))
    assert status == 2
    assert states(components) == {
        "Database": "down",
        "Keystone": "down",
        "Placement": "down",
        "Nova": "not checked",
        "Message bus": "up",
    }
    for name, cause in (
        ("Database", "connection refused at 127.0.0.1:1"),
        ("Keystone", f"{CLOSED}/v3"),
        ("Placement", "Connection refused"),
    ):
        assert cause in components[name]["cause"]
    assert "secret-4711" not in json.dumps(components)


def create_until(http: Http, enough: threading.Event, profile: str) -> int:
    """Create and delete ARQs until it is enough; how many it were."""
    done = 0
    while not enough.is_set() or done == 0:
        body = {"device_profile_name": profile}
        (arq,) = http.do("POST", "/accelerator_requests", body, status=201)["arqs"]
        http.do("DELETE", f"/accelerator_requests?arqs={arq['uuid']}", status=204)
        done += 1
    return done


@pytest.mark.parametrize("how", ["told", "killed"])
def test_clients_see_no_error_when_a_conductor_stops(service: Service, db: Database, how: str):
    second = service.deployment.conductor({"DEFAULT": {"host": "control-2"}})
    http = service.client()
    name = f"profile-{uuid4().hex}"
    http.do("POST", "/device_profiles", [{"name": name, "groups": [FPGA]}], status=201)
    enough = threading.Event()

    def rows() -> int:
        with db.reader() as tx:
            return len(list(tx.scalars(sa.select(Row.id).where(Row.host == "control-2"))))

    def client(number: int) -> str:
        if number == 0:
            try:
                return f"ended with {second.stop() if how == 'told' else second.kill()}"
            finally:
                enough.set()
        return "served" if create_until(service.client(), enough, name) else "idle"

    eventually(lambda: rows() == 1, lambda: second.output)
    results = all_at_once(CLIENTS + 1, client)
    assert results == {"served": CLIENTS, f"ended with {0 if how == 'told' else -9}": 1}
    assert all_at_once(CLIENTS, lambda _n: create_until(service.client(), enough, name)) == {
        "1": CLIENTS
    }
    assert http.get("/accelerator_requests")["arqs"] == []  # nothing was made twice
    http.do("DELETE", f"/device_profiles/{name}", status=204)
    # Only one that failed keeps its row.
    assert rows() == (0 if how == "told" else 1)
