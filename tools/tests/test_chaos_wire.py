# SPDX-License-Identifier: Apache-2.0
"""What stands between the chaos run's clients and services: doors that fail, fronts that break."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import requests

from cyborg.tests.fixtures import ports
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.waiting import PATIENCE, eventually, result
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


@pytest.mark.parametrize(
    ("statuses", "unreachable", "answer", "row", "violations"),
    [
        ((503, 503, 202), 0, (202, 2), "1, 503 x2", []),
        ((204,), 1, (204, 1), "1, none x1", []),
        ((500,), 0, (500, 0), "0, 500 x1", ["client: PATCH /x was answered 500"]),
    ],
    ids=["busy", "unreachable", "error"],
)
def test_request_is_repeated_until_a_final_response(
    statuses: list[int], unreachable: int, answer: tuple[int, int], row: str, violations: list[str]
):
    log = ClientLog()
    with Loopback(Scripted(*statuses)) as loopback, ports.refusing() as port:
        urls = [*[f"http://127.0.0.1:{port}"] * unreachable, loopback.url]
        endpoints = Endpoints(urls, client="client", client_log=log, ended=threading.Event())
        final = endpoints.ask("bind", "PATCH", "/x", {})
    assert final is not None
    assert (final.status, final.unsure) == answer
    seen = log.page.seen["client"]
    assert (seen.row("bind"), seen.ends["settled"]) == (row, int(final.unsure > 0))
    assert log.page.violations == violations


def test_proxy_forwards_requests_and_refuses_them_until_reset(front: tuple[Front, Scripted]):
    proxy, behind = front
    headers = {"X-Auth-Token": "mine"}
    answer = requests.put(f"{proxy.url}/a/b?c=d", json={"e": 1}, headers=headers, timeout=PATIENCE)
    assert (answer.status_code, answer.json()) == (200, {"token": "mine"})
    assert behind.asked == [("PUT", "/a/b?c=d", b'{"e": 1}')]
    assert proxy.met == 0
    proxy.refuse(409, writes_only=True)
    assert requests.get(proxy.url, timeout=PATIENCE).status_code == 200
    refused = requests.put(proxy.url, json={}, timeout=PATIENCE)
    assert refused.status_code == 409
    assert refused.json()["errors"][0]["code"] == "placement.concurrent_update"
    proxy.heal()
    assert requests.put(proxy.url, json={}, timeout=PATIENCE).status_code == 200
    assert (proxy.met, len(behind.asked)) == (1, 3)


def test_proxy_holds_requests(front: tuple[Front, Scripted]):
    proxy, behind = front
    proxy.hold()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(requests.get, proxy.url, timeout=PATIENCE)
        eventually(lambda: proxy.met == 1)
        assert behind.asked == []
        proxy.heal()
        assert result(waiting).status_code == 200
