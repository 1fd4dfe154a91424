# SPDX-License-Identifier: Apache-2.0
"""Two conductors on one bus: whichever ends, in whatever way, the other one serves."""

import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest

from cyborg.tests.fixtures.processes import Options, Program
from cyborg.tests.functional.daemons.service import FPGA, Http, Service, all_at_once

SECOND: Options = {"DEFAULT": {"host": "control-2"}}
CLIENTS = 4


@pytest.fixture
def second(service: Service) -> Iterator[Program]:
    """Another conductor, beside the one of the service."""
    program = service.deployment.conductor(SECOND)
    yield program
    if program.running:
        program.stop()


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
def test_clients_see_no_error_when_a_conductor_stops(service: Service, second: Program, how: str):
    http = service.client()
    name = f"profile-{uuid4().hex}"
    http.do("POST", "/device_profiles", [{"name": name, "groups": [FPGA]}], status=201)
    enough = threading.Event()

    def client(number: int) -> str:
        if number == 0:
            try:
                return f"ended with {second.stop() if how == 'told' else second.kill()}"
            finally:
                enough.set()
        return "served" if create_until(service.client(), enough, name) else "idle"

    results = all_at_once(CLIENTS + 1, client)
    assert results == {"served": CLIENTS, f"ended with {0 if how == 'told' else -9}": 1}
    assert all_at_once(CLIENTS, lambda _n: create_until(service.client(), enough, name)) == {
        "1": CLIENTS
    }
    assert http.get("/accelerator_requests")["arqs"] == []  # nothing was made twice
    http.do("DELETE", f"/device_profiles/{name}", status=204)
