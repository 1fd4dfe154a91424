# SPDX-License-Identifier: Apache-2.0
"""Bodies that a WSGI server passes on although they are too large, cut short or of two lengths."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import webob

from cyborg.api.middleware.body_limit import BodyLimit
from cyborg.tests.unit.api.world import Client

PATH = "/v2/device_profiles"
LIMIT = 1 << 20


class Endless:
    """A body that never ends, and counts what is read of it."""

    def __init__(self) -> None:
        self.given = 0

    def read(self, size: int = -1) -> bytes:
        assert 0 <= size <= 2 * LIMIT, "the whole body would be read"
        self.given += size
        return b"[" * size


class Cut:
    """A body whose client leaves: the server raises OSError, as uWSGI and mod_wsgi do."""

    def read(self, _size: int = -1) -> bytes:
        raise OSError("Apache/mod_wsgi request data read error")


def post(app: Any, body: Any, **environ: Any) -> webob.Response:
    request = webob.Request.blank(PATH, method="POST", content_type="application/json")
    request.environ |= {"wsgi.input": body, "wsgi.input_terminated": True, **environ}
    return request.get_response(app)


@pytest.fixture
def wsgi(make_client: Callable[..., Client]) -> Any:
    return make_client("[api]\nauth_strategy = noauth\n").app.app


def test_chunked_body_above_limit_is_refused_while_it_is_read(wsgi: Any) -> None:
    body = Endless()
    answer = post(wsgi, body, HTTP_TRANSFER_ENCODING="chunked")
    assert answer.status_int == 413
    assert f"{LIMIT} bytes" in answer.json["error_message"]
    assert body.given <= LIMIT + 1


def test_filter_that_reads_the_body_is_limited_too() -> None:
    def audit(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [])
        return [environ["wsgi.input"].read()]

    assert post(BodyLimit(audit), Endless(), HTTP_TRANSFER_ENCODING="chunked").status_int == 413


@pytest.mark.parametrize(
    "environ", [{"CONTENT_LENGTH": "10"}, {"HTTP_TRANSFER_ENCODING": "chunked"}]
)
def test_cut_body_gets_400_without_a_traceback(
    wsgi: Any, caplog: pytest.LogCaptureFixture, environ: dict[str, str]
) -> None:
    logging.getLogger().addHandler(caplog.handler)
    answer = post(wsgi, Cut(), **environ)
    logging.getLogger().removeHandler(caplog.handler)
    assert answer.status_int == 400
    assert "body: it ended before its length" in json.loads(answer.text)["error_message"]
    assert not any(record.exc_info for record in caplog.records)


def test_request_with_two_lengths_gets_400(wsgi: Any) -> None:
    answer = post(wsgi, Endless(), HTTP_TRANSFER_ENCODING="chunked", CONTENT_LENGTH="4")
    assert answer.status_int == 400
    assert "not both" in answer.json["error_message"]


def test_list_of_more_than_1000_values_is_refused_with_its_name(client: Client) -> None:
    most = ",".join(["<arq>"] * 1000)
    path = "/v2/accelerator_requests?arqs"
    assert client.send("DELETE", f"{path}={most},<arq>", service="service").status == 400
    fault = client.send("DELETE", f"{path}={most},<arq>", service="service").fault
    assert "arqs: it has 1001 values" in str(fault)
    assert client.send("DELETE", f"{path}={most}", as_="member").status == 204
