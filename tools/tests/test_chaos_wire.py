# SPDX-License-Identifier: Apache-2.0
"""What stands between the chaos run's clients and services: doors that fail, fronts that break."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import requests

from cyborg import service
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.pages import free_port
from cyborg_tools.chaos.front import Front
from cyborg_tools.chaos.load import Endpoints
from cyborg_tools.chaos.results import ClientLog

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


class Scripted:
    """Answers with the statuses it is given, the last one from then on, and echoes requests."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.asked: list[tuple[str, str, bytes]] = []

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        path = f"{environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}"
        self.asked.append((environ["REQUEST_METHOD"], path, body))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        start_response(f"{status} Scripted", [("Content-Type", "application/json")])
        token = environ.get("HTTP_X_AUTH_TOKEN", "")
        return [json.dumps({"token": token}).encode()]


@pytest.fixture
def front() -> Iterator[tuple[Front, Scripted]]:
    """A front, and the application behind it."""
    scripted = Scripted(200)
    with Loopback(scripted) as loopback, Front(loopback.url) as made:
        yield made, scripted


def endpoints(client_log: ClientLog, *urls: str) -> Endpoints:
    return Endpoints(urls, client="client", client_log=client_log, ended=threading.Event())


def test_request_is_repeated_until_a_final_response():
    client_log = ClientLog()
    with Loopback(Scripted(503, 503, 202)) as loopback:
        answer = endpoints(client_log, loopback.url).ask(
            "bind", "PATCH", "/accelerator_requests", {}
        )
    assert answer is not None
    assert (answer.status, answer.unsure) == (202, 2)
    seen = client_log.page.seen["client"]
    assert (seen.row("bind"), seen.ends["settled"]) == ("1, 503 x2", 1)
    assert client_log.page.violations == []


def test_next_endpoint_is_tried_when_one_is_unreachable():
    client_log = ClientLog()
    nowhere = f"http://127.0.0.1:{free_port()}"
    with Loopback(Scripted(204)) as loopback:
        answer = endpoints(client_log, nowhere, loopback.url).ask("delete", "DELETE", "/x")
    assert answer is not None
    assert (answer.status, answer.unsure) == (204, 1)
    assert client_log.page.seen["client"].row("delete") == "1, none x1"


def test_unexpected_error_is_a_violation():
    client_log = ClientLog()
    with Loopback(Scripted(500)) as loopback:
        endpoints(client_log, loopback.url).ask("list", "GET", "/x")
    assert client_log.page.violations == ["client: GET /x was answered 500"]


def test_proxy_forwards_requests(front: tuple[Front, Scripted]):
    proxy, behind = front
    headers = {"X-Auth-Token": "mine"}
    answer = requests.put(f"{proxy.url}/a/b?c=d", json={"e": 1}, headers=headers, timeout=10)
    assert (answer.status_code, answer.json()) == (200, {"token": "mine"})
    assert behind.asked == [("PUT", "/a/b?c=d", b'{"e": 1}')]
    assert proxy.met == 0


def test_proxy_refuses_requests_until_reset(front: tuple[Front, Scripted]):
    proxy, behind = front
    proxy.refuse(409, writes_only=True)
    assert requests.get(proxy.url, timeout=10).status_code == 200
    refused = requests.put(proxy.url, json={}, timeout=10)
    assert refused.status_code == 409
    assert refused.json()["errors"][0]["code"] == "placement.concurrent_update"
    proxy.heal()
    assert requests.put(proxy.url, json={}, timeout=10).status_code == 200
    assert (proxy.met, len(behind.asked)) == (1, 2)


def test_proxy_holds_requests(front: tuple[Front, Scripted]):
    proxy, behind = front
    proxy.hold()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(requests.get, proxy.url, timeout=30)
        assert service.wait_until(lambda: proxy.met == 1, timeout=10)
        assert behind.asked == []
        proxy.heal()
        assert waiting.result(timeout=30).status_code == 200
