# SPDX-License-Identifier: Apache-2.0
"""GET /v2/limits: what the caller's own project may have and has."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import webtest

from cyborg import exception
from cyborg.api import app
from cyborg.db.engine import Reader
from cyborg.tests.fixtures.fixed_limits import FixedLimits
from cyborg.tests.unit.api import people
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.conftest import MakeConf
from cyborg.tests.unit.api.world import Client

PATH = "/v2/limits"
VERSION = "2.100"


@pytest.fixture
def with_limits(
    make_conf: MakeConf,
    reader: Reader,
    conductor: RecordedConductor,
    tokens: Any,
    facts: Mapping[str, str],
) -> Callable[[FixedLimits], Client]:
    """Make a client of an API with these limits of projects."""

    def make(limits: FixedLimits) -> Client:
        wsgi = app.build(
            make_conf("[conductor]\nmax_unbound_arqs = 5\n"),
            reader=reader,
            conductor=conductor,  # type: ignore[arg-type]
            limits=limits,
        )
        return Client(webtest.TestApp(wsgi), facts, conductor.calls)

    return make


def test_project_sees_its_own_limits_and_usage(
    with_limits: Callable[[FixedLimits], Client],
) -> None:
    client = with_limits(FixedLimits({"accelerator_requests": 10, "class:GPU": -1}))
    answer = client.send("GET", PATH, as_="member", version=VERSION)
    assert answer.status == 200
    assert answer.body["limits"] == {
        "project_id": people.OWN,
        "quotas": {
            "accelerator_requests": {"limit": 10, "usage": 4},
            # It has no registered limit.
            "class:FPGA": {"limit": 0, "usage": 2},
            "class:GPU": {"limit": -1, "usage": 0},
        },
        "unbound_accelerator_requests": {"limit": 5, "usage": 2},
        "max_accelerator_requests_per_request": 256,
        "max_limit": 1000,
        "max_groups": 100,
        "max_units_per_group": 64,
    }
    other = client.send("GET", PATH, as_="stranger", version=VERSION).body["limits"]
    assert other["project_id"] == people.OTHER
    assert other["quotas"]["accelerator_requests"] == {"limit": 10, "usage": 1}


def test_cloud_without_quotas_has_usage_without_limits(client: Client) -> None:
    quotas = client.send("GET", PATH, as_="member", version=VERSION).body["limits"]["quotas"]
    assert quotas == {
        "accelerator_requests": {"limit": None, "usage": 4},
        "class:FPGA": {"limit": None, "usage": 2},
    }


def test_limits_are_not_shown_below_2_100_or_with_parameters(client: Client) -> None:
    assert client.send("GET", PATH, as_="member", version="2.3").status == 404
    assert client.send("GET", f"{PATH}?project_id=<other>", version=VERSION).status == 400


def test_limits_of_keystone_that_is_down_are_unavailable(
    with_limits: Callable[[FixedLimits], Client],
) -> None:
    fault = exception.Unavailable(peer="Keystone", reason="it is down", public="No Keystone.")
    answer = with_limits(FixedLimits({}, fault)).send("GET", PATH, version=VERSION)
    assert (answer.status, answer.fault) == (503, "No Keystone.")


def test_explanation_of_a_profile_has_the_quota_of_the_project(
    with_limits: Callable[[FixedLimits], Client],
) -> None:
    path = "/v2/device_profiles/gpu/explain"

    def told(limits: FixedLimits) -> dict[str, Any]:
        answer = with_limits(limits).send("GET", path, as_="member", version=VERSION)
        assert answer.status == 200
        explanation: dict[str, Any] = answer.body["explanation"]
        return explanation

    within = FixedLimits({"accelerator_requests": 5, "class:FPGA": 9, "class:GPU": 1})
    assert "quota" not in told(within)["summary"]
    over = told(FixedLimits({"accelerator_requests": 4, "class:FPGA": 9, "class:GPU": 1}))
    assert over["summary"].endswith(
        f" The quota of project {people.OWN} refuses it. Over the limits: accelerator_requests: "
        "4 used, 1 requested, limit 4."
    )
    fault = exception.Unavailable(peer="Keystone", reason="it is down", public="No Keystone.")
    assert told(FixedLimits({}, fault))["notes"][-1] == (
        "The limits of the project were not asked: No Keystone."
    )
