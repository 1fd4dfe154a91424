# SPDX-License-Identifier: Apache-2.0
"""The API's page of metrics: off by default, without a token, and bounded whatever clients send."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from webtest import lint

from cyborg import exception
from cyborg.model.process import API
from cyborg.tests.fixtures import pages
from cyborg.tests.fixtures.pages import Page
from cyborg.tests.unit.api.world import Client

MakeClient = Callable[..., Client]
ON = "[api]\nmetrics = true\n"
TOTAL = "cyborg_http_requests_total"
SECONDS = "cyborg_http_request_duration_seconds_count"


@pytest.fixture
def watched(make_client: MakeClient) -> Client:
    """A client of an API that shows what it counts."""
    return make_client(ON)


def page_of(client: Client) -> Page:
    return Page(lambda: str(client.app.get("/metrics").text))


def test_requests_are_counted_by_route_only(watched: Client) -> None:
    for path in (f"/v2/devices/{uuid4()}", f"/devices/{uuid4()}", f"/nowhere/{uuid4()}"):
        assert watched.send("GET", path).status == 404
    for path in ("/v2/devices", "/v2/devices?hostname=x", "/", "/v2"):
        assert watched.send("GET", path).status == 200
    with pytest.warns(lint.WSGIWarning, match="BREW"):
        assert watched.send("BREW", "/v2/devices").status == 405
    page = page_of(watched)
    assert page.value(TOTAL, route="/v2/devices/{id}", method="GET", status="404") == 2
    assert page.value(TOTAL, route="/v2/devices", method="GET", status="200") == 2
    assert page.value(TOTAL, route="other", status="404") == 1
    assert page.value(TOTAL, method="other", status="405") == 1
    assert page.value(SECONDS, route="/v2/devices/{id}", method="GET") == 2
    routes = {sample.labels["route"] for sample in page.samples(TOTAL)}
    assert routes == {"/", "/v2", "/v2/devices", "/v2/devices/{id}", "other"}
    assert page.value("cyborg_build_info", binary=API) == 1
    assert page.names == {metric.name for metric in pages.API_METRICS}


def test_metrics_need_no_token_and_refusals_are_counted(watched: Client) -> None:
    assert watched.send("GET", "/v2/devices", as_=None).status == 401
    assert page_of(watched).value(TOTAL, route="other", status="401") == 1
    assert watched.send("GET", "/metrics/", as_="forged").status == 200
    assert watched.send("GET", "/healthcheck", as_=None).status == 200
    assert page_of(watched).value(TOTAL, route="/healthcheck", status="200") == 1


def test_metrics_page_is_read_only(watched: Client) -> None:
    answer = watched.send("POST", "/metrics", as_=None)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert watched.send("GET", "/metrics/of/all", as_=None).status == 401
    assert watched.send("HEAD", "/metrics", as_=None).status == 200


def test_metrics_are_off_by_default(client: Client) -> None:
    assert client.send("GET", "/metrics", as_=None).status == 401
    assert client.send("GET", "/metrics").status == 404


def test_metrics_without_keystone_are_local_only(make_client: MakeClient) -> None:
    demo = make_client(f"{ON}auth_strategy = noauth\n")
    assert demo.send("GET", "/metrics", as_=None).status == 200
    away = {"REMOTE_ADDR": "192.0.2.7"}
    assert demo.send("GET", "/metrics", as_=None, environ=away).status == 403


def test_invalid_multiprocess_directory_is_refused(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(
        exception.ConfigError, match=r"PROMETHEUS_MULTIPROC_DIR = .* is no directory"
    ):
        make_client(ON)


def test_process_without_shared_counters_logs_a_warning(
    watched: Client, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        several = {"wsgi.multiprocess": True}
        watched.app.get("/metrics", extra_environ=several)
    messages = [message for message in caplog.messages if "PROMETHEUS_MULTIPROC_DIR" in message]
    assert len(messages) == 1
