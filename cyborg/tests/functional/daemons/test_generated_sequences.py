# SPDX-License-Identifier: Apache-2.0
"""Sequences of requests along links between requests, to three daemons.

No sequence is answered with a 5xx, and none leaves anything that a list cannot show, that
the audit reports, or that cannot be deleted. ``pytest -s`` prints a line of figures.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from cyborg.api import app, microversion
from cyborg.api.openapi import operations
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional import programs
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.daemons.sequences import Instances, Record, described, run
from cyborg.tests.functional.daemons.service import Http, Service
from cyborg.tests.unit.api import described as documents

#: The driver and the units of the device that all binds use.
DRIVER, UNITS = "fake_driver", 16
#: The requests of Nova and an operator in the life of an accelerator request, in their order.
LIFE = [
    "post_device_profiles",
    "post_accelerator_requests",
    "get_accelerator_requests_id",
    "patch_accelerator_requests_id",
    "delete_accelerator_requests",
    "delete_accelerator_requests_id",
    "delete_device_profiles_id",
]


@dataclass
class Answer:
    """An answer as ``described.check`` takes it."""

    status: int
    headers: Mapping[str, str]
    body: Any


@pytest.fixture
def record(service: Service, placement: PlacementService, nova_api: SimulatedNova) -> Record:
    http = Http(service.url, version=microversion.MAXIMUM)
    return Record(Instances(service, placement, nova_api, http))


def test_sequences_reach_each_step_of_a_request_and_leave_nothing(record: Record) -> None:
    schema = described(record.instances.http.url).include(operation_id=LIFE)
    run(schema, record, range(4, 60), enough=lambda: record.complete)
    assert record.complete, record.lives
    check_cloud(record)


def test_sequences_of_all_requests_leave_a_cloud_that_can_be_restored(record: Record) -> None:
    schema = described(record.instances.http.url)
    run(schema, record, range(8, 40), enough=lambda: len({one for one, _ in record.answers}) > 35)
    assert len({label for label, _ in record.answers}) > 35, record.figures
    restore(record.instances.http)
    check_cloud(record)


def check_cloud(record: Record) -> None:
    """Nothing is unreadable, inconsistent or left over."""
    sys.stdout.write(f"{record.figures}\n")
    instances, http = record.instances, record.instances.http
    instances.drop_unused()
    audit(instances.service)
    for minor in microversion.MINORS:
        show_lists(Http(http.url, version=f"2.{minor}"), minor)
    for arq in http.get("/accelerator_requests")["arqs"]:
        http.do("DELETE", f"/accelerator_requests?arqs={arq['uuid']}", status=204)
    for profile in http.get("/device_profiles")["device_profiles"]:
        http.do("DELETE", f"/device_profiles/{profile['uuid']}", status=204)
    instances.drop_unused()
    assert offered(instances.placement, instances.service.provider) == UNITS
    assert [row["used"] for row in http.get("/usage")["usage"]] == [0]
    limits = http.get("/limits")["limits"]
    assert limits["unbound_accelerator_requests"]["usage"] == 0
    audit(instances.service)


def audit(service: Service) -> None:
    """Database, Placement and Nova agree, at the latest when the daemons have settled."""
    found: list[Any] = []

    def is_clean() -> bool:
        ran = programs.run_on(service.deployment, "cyborg-audit", "--format", "json")
        found[:] = json.loads(ran.stdout)["findings"] if ran.stdout else [ran.stderr]
        return not found and ran.returncode == 0

    eventually(is_clean, lambda: found, step=1)


def show_lists(http: Http, minor: int) -> None:
    """Each list, and each object in it, is answered as the document describes."""
    for noun in app.NOUNS:
        paths = {
            path: contract
            for path, method, contract in operations(noun)
            if method == "GET" and contract.since <= minor
        }
        for path in paths:
            if "{" in path:
                continue
            body = show(http, path)
            rows = body.get({"accelerator_requests": "arqs"}.get(noun.collection, noun.collection))
            if f"{path}/{{id}}" in paths:
                for row in rows[:UNITS]:
                    show(http, f"{path}/{row['uuid']}")


def show(http: Http, path: str) -> Any:
    """The body of an answer that the document describes."""
    answer = http.ask("GET", path)
    assert answer.status_code == 200, (path, answer.text)
    documents.check("GET", path, Answer(answer.status_code, answer.headers, answer.json()))
    return answer.json()


def enable_driver(http: Http) -> bool:
    """Return whether the driver is enabled; request that, or its installation, if it is not.

    The agent restarts after each of the two, and lists the driver again when it has started.
    """
    drivers = {row["name"]: row for row in http.get("/drivers")["drivers"]}
    if DRIVER in drivers and drivers[DRIVER]["enabled"]:
        return True
    for method, path, body in (
        ("PATCH", f"/v2/drivers/{DRIVER}?wait=true", {"enabled": True}),
        ("POST", "/v2/drivers?wait=true", {"driver": DRIVER}),
    ):
        if http.ask(method, path, body).status_code == 202:
            break
    return False


def restore(http: Http) -> None:
    """Take all hosts, drivers and devices into service, as an operator would."""
    running = "/operations?state=running"
    eventually(lambda: not http.get(running)["operations"], "the end of all operations")
    for process in http.get("/services?kind=process")["services"]:
        if process["status"] == "disabled":
            http.do("PATCH", f"/services/{process['uuid']}", {"status": "enabled"})
    eventually(lambda: enable_driver(http), "the driver is enabled", step=1)
    eventually(lambda: len(http.get("/devices")["devices"]) == 1, "the driver's device")
    (device,) = http.get("/devices")["devices"]
    http.do("POST", f"/devices/{device['uuid']}/enable", status=204)
