# SPDX-License-Identifier: Apache-2.0
"""Tests of the one place where a peer's silence and refusals become Unavailable."""

from typing import Any

import pytest
import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter
from keystoneauth1.identity import v3
from keystoneauth1.session import Session

from cyborg import exception
from cyborg.clients import http


class Scripted(Adapter):
    """Answers every request alike: raises an exception, or returns a status with a body."""

    def __init__(self, outcome: int | Exception, body: bytes = b"") -> None:
        super().__init__(Session())
        self._outcome = outcome
        self._body = body

    def request(self, url: str, method: str, **kwargs: Any) -> requests.Response:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        answer = requests.Response()
        answer.status_code = self._outcome
        answer._content = self._body
        return answer


@pytest.mark.parametrize("status", [200, 207, 400, 404, 409, 422])
def test_response_is_returned_with_any_status(status: int):
    assert http.ask("Nova", Scripted(status), "GET", "/x").status_code == status


@pytest.mark.parametrize("status", [401, 403, 500, 502, 503])
def test_failing_peer_is_unavailable(status: int):
    with pytest.raises(exception.Unavailable) as caught:
        http.ask("Nova", Scripted(status), "GET", "/servers?name=secret")
    assert caught.value.fields["http"] == status
    assert str(caught.value) == f"Nova is not available: GET /servers was answered {status}"


@pytest.mark.parametrize(
    "fault",
    [
        ks_exceptions.ConnectFailure("nobody there\nlong trace"),
        ks_exceptions.EndpointNotFound("no compute endpoint"),
        requests.exceptions.ChunkedEncodingError("broke off"),
    ],
)
def test_connection_failure_is_unavailable(fault: Exception):
    with pytest.raises(exception.Unavailable) as caught:
        http.ask("Nova", Scripted(fault), "GET", "/x")
    assert caught.value.fields["http"] is None
    assert "\n" not in str(caught.value)


def test_keystone_that_cannot_be_reached_is_named_instead_of_the_peer():
    account = v3.Password("http://127.0.0.1:9/v3", username="u", password="secret-4711")
    with pytest.raises(exception.Unavailable) as caught:
        http.ask("Nova", Adapter(Session(auth=account)), "GET", "/servers")
    assert str(caught.value).startswith(
        "Keystone is not available: no token from http://127.0.0.1:9/v3: "
    )
    assert "secret-4711" not in str(caught.value)
    assert caught.value.public == "The identity service (Keystone) is not available."


def test_keystone_that_refuses_a_new_token_is_named_instead_of_the_peer():
    # The peer refused the token at hand, and Keystone gave no other.
    with pytest.raises(exception.Unavailable) as caught:
        http.ask("Nova", Scripted(ks_exceptions.Unauthorized("wrong password")), "GET", "/x")
    assert caught.value.fields["peer"] == http.KEYSTONE
    assert caught.value.fields["http"] == 401
    assert "refuses the account: wrong password" in str(caught.value)


def test_response_without_json_is_unavailable():
    answer = http.ask("Nova", Scripted(200, b"<html>"), "GET", "/x")
    with pytest.raises(exception.Unavailable, match="not JSON"):
        http.document("Nova", answer)


@pytest.mark.parametrize("fault", [ks_exceptions.Unauthorized, ks_exceptions.InternalServerError])
def test_same_error_of_keystone_has_the_same_text_each_time(
    fault: type[ks_exceptions.HttpError],
) -> None:
    texts = set()
    for number in range(2):
        error = fault("The request needs an account.", request_id=f"req-{number}")
        with pytest.raises(exception.Unavailable) as caught:
            http.ask("Nova", Scripted(error), "GET", "/x")
        texts.add(str(caught.value))
    (text,) = texts
    assert "The request needs an account. (HTTP " in text
    assert "req-" not in text
