# SPDX-License-Identifier: Apache-2.0
"""A conductor that is stopped in the middle of a write changes nothing when it goes on later."""

import signal
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from cyborg import service as runner
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.functional.daemons.service import FPGA, Http, Service

#: How long the API waits for a conductor, in seconds.
PATIENCE = 4


@pytest.fixture
def service(deploy: Callable[..., Deployment], host: str) -> Iterator[Service]:
    """Daemons whose API has little patience; a conductor that a test has stopped goes on."""
    patience: Options = {"DEFAULT": {"rpc_response_timeout": PATIENCE}}
    started = Service.start(deploy(patience), host)
    yield started
    started.conductor.signal(signal.SIGCONT)


def create(http: Http, name: str) -> int:
    """Create a device profile; returns the status of the answer."""
    body = [{"name": name, "groups": [FPGA]}]
    return http.ask("POST", "/v2/device_profiles", body).status_code


def names(http: Http) -> set[str]:
    return {one["name"] for one in http.get("/device_profiles")["device_profiles"]}


def test_write_refused_with_503_is_not_executed_later(service: Service) -> None:
    http = service.client()
    late, after = f"late-{uuid4().hex}", f"after-{uuid4().hex}"
    service.conductor.signal(signal.SIGSTOP)
    began = time.monotonic()
    assert create(http, late) == 503
    assert time.monotonic() - began >= PATIENCE
    service.conductor.signal(signal.SIGCONT)
    # The conductor takes the messages of a queue in their order.
    assert runner.wait_until(lambda: create(http, after) == 201, timeout=30)
    assert late not in names(http)
    assert create(http, late) == 201


def test_write_is_executed_when_conductor_resumes_in_time(service: Service) -> None:
    http, name = service.client(), f"slow-{uuid4().hex}"
    service.conductor.signal(signal.SIGSTOP)
    answers: list[int] = []
    results = runner.PeriodicTask(
        "write", lambda: answers.append(create(http, name)), interval=3600
    )
    results.start()
    assert not runner.wait_until(lambda: bool(answers), timeout=1.0)
    service.conductor.signal(signal.SIGCONT)
    assert runner.wait_until(lambda: bool(answers), timeout=20)
    results.stop()
    assert answers == [201]
    assert name in names(http)
