# SPDX-License-Identifier: Apache-2.0
"""The broker or the database goes away and comes back: nobody is restarted (check 125)."""

import functools
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import service as runner
from cyborg.tests.fixtures.choice import chosen
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.fixtures.proxy import Proxy
from cyborg.tests.fixtures.waiting import eventually, result
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.daemons.service import (
    FPGA,
    Http,
    Service,
    few_lines,
    go_through_everything,
    start_service,
)
from cyborg.tests.functional.deployments import TRANSPORT_URL, merged

#: Seconds for which a request is repeated in an outage.
OUTAGE = 5.0
#: How long the API waits for a conductor, in seconds.
RPC_TIMEOUT = 10


def through(url: str) -> tuple[Proxy, str]:
    """A proxy to the server of a URL, and the URL that leads through it."""
    found = sa.make_url(url)
    proxy = Proxy(found.host or "127.0.0.1", found.port or 0)
    return proxy, found.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def proxies(
    database: str, placement: PlacementService, nova_api: SimulatedNova
) -> Iterator[dict[str, tuple[Proxy, str]]]:
    urls = {
        "broker": TRANSPORT_URL,
        "database": database,
        "placement": placement.url,
        "nova": nova_api.url,
    }
    made = {name: through(url) for name, url in urls.items()}
    for proxy, _ in made.values():
        proxy.start()
    yield made
    for proxy, _ in made.values():
        proxy.stop()


@pytest.fixture(scope="module")
def service(
    options: Options,
    proxies: dict[str, tuple[Proxy, str]],
    host: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Service]:
    """Everything behind the proxies; they are healed before it ends."""
    behind: Options = {
        "DEFAULT": {"transport_url": proxies["broker"][1], "rpc_response_timeout": RPC_TIMEOUT},
        "database": {"connection": proxies["database"][1]},
        "placement": {"endpoint": proxies["placement"][1]},
        "nova": {"endpoint": proxies["nova"][1]},
    }
    directory = tmp_path_factory.mktemp("service")
    with Deployment(directory, merged(options, behind)) as deployment:
        yield start_service(deployment, host)
        for proxy, _ in proxies.values():
            proxy.heal()


def statuses_during_outage(http: Http, ask: Callable[[Http], int]) -> set[int]:
    """The statuses of one request, repeated as long as the outage lasts."""
    found: list[int] = []
    end = time.monotonic() + OUTAGE

    def over() -> bool:
        found.append(ask(http))
        return time.monotonic() > end

    eventually(over, "the end of an outage", step=0.1)
    return set(found)


def read(http: Http) -> int:
    return http.ask("GET", "/v2/devices").status_code


def root(http: Http) -> int:
    return http.ask("GET", "/").status_code


def shows(placement: PlacementService, provider: str, units: int) -> bool:
    return offered(placement, provider) == units


def everything_is_as_before(service: Service, placement: PlacementService) -> None:
    http = service.client()
    eventually(http.healthy, lambda: service.api.output)
    eventually(lambda: http.write() == 201, lambda: service.conductor.output)
    go_through_everything(http, service.host, service.provider)
    # What an operator wants reaches the agent, and Placement through it.
    (device,) = http.get(f"/devices?hostname={service.host}")["devices"]
    for verb, units in (("disable", 0), ("enable", 16)):
        http.do("POST", f"/devices/{device['uuid']}/{verb}", status=204)
        shown = functools.partial(shows, placement, service.provider, units)
        eventually(shown, lambda: service.agent.output)
    assert all(one.running for one in service.programs)


@pytest.mark.parametrize("how", chosen(["cut", "hang"], "outages of the broker"))
def test_api_reads_and_recovers_when_broker_is_lost_and_returns(
    service: Service,
    proxies: dict[str, tuple[Proxy, str]],
    placement: PlacementService,
    how: str,
):
    proxy, _ = proxies["broker"]
    with few_lines(*service.programs):
        (proxy.cut if how == "cut" else proxy.hang)()
        http = service.client()
        # The first one may find a connection that is dead and not known to be.
        assert http.write() == 503
        assert statuses_during_outage(http, read) == {200}
        assert statuses_during_outage(http, Http.write) == {503}
        assert not http.healthy()
    proxy.heal()
    everything_is_as_before(service, placement)


def test_api_answers_503_and_recovers_when_database_is_lost_and_returns(
    service: Service, proxies: dict[str, tuple[Proxy, str]], placement: PlacementService
):
    proxy, _ = proxies["database"]
    with few_lines(*service.programs):
        proxy.cut()
        http = service.client()
        assert statuses_during_outage(http, read) == {503}
        assert statuses_during_outage(http, root) == {200}
        assert statuses_during_outage(http, Http.write) == {503}
        assert not http.healthy()
    proxy.heal()
    everything_is_as_before(service, placement)


def test_service_recovers_when_placement_and_nova_are_lost_and_return(
    service: Service, proxies: dict[str, tuple[Proxy, str]], placement: PlacementService
):
    with few_lines(*service.programs):
        for name in ("placement", "nova"):
            proxies[name][0].cut()
        http = service.client()
        assert statuses_during_outage(http, Http.write) == {201}
    for name in ("placement", "nova"):
        proxies[name][0].heal()
    everything_is_as_before(service, placement)


def create(http: Http, name: str) -> int:
    """Create a device profile; the status of the answer."""
    body = [{"name": name, "groups": [FPGA]}]
    return http.ask("POST", "/v2/device_profiles", body).status_code


def test_conductor_that_stops_in_a_write_changes_nothing_after_the_refusal(service: Service):
    http = service.client()
    late, after = (f"{one}-{uuid4().hex}" for one in ("late", "after"))

    def names() -> set[str]:
        return {one["name"] for one in http.get("/device_profiles")["device_profiles"]}

    def executed_after_a_pause() -> bool:
        """Whether the conductor resumed in time for a write that began while it was stopped."""
        name = f"slow-{uuid4().hex}"
        with ThreadPoolExecutor(1) as pool:
            service.conductor.signal(signal.SIGSTOP)
            try:
                write = pool.submit(create, service.client(), name)
                answered = runner.wait_until(write.done, timeout=1.0)
            finally:
                service.conductor.signal(signal.SIGCONT)
            status = result(write)
        assert (status, name in names()) in {(201, True), (503, False)}
        assert not (answered and status == 201)
        return status == 201

    try:
        service.conductor.signal(signal.SIGSTOP)
        began = time.monotonic()
        assert create(http, late) == 503
        assert time.monotonic() - began >= RPC_TIMEOUT
    finally:
        service.conductor.signal(signal.SIGCONT)
    # The conductor takes the messages of a queue in their order.
    eventually(lambda: create(http, after) == 201, lambda: service.conductor.output)
    assert late not in names()
    assert create(http, late) == 201
    eventually(executed_after_a_pause, "a write that the conductor executes when it resumes")
