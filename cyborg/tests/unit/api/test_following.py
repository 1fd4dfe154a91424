# SPDX-License-Identifier: Apache-2.0
"""What goes around a request: its line in the log, whatever becomes of it, and its trace."""

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from oslo_context.context import get_current

from cyborg import tracing
from cyborg.api.expose import refusal
from cyborg.api.middleware.request_log import RequestLog

MILLISECONDS = re.compile(r" \d+ (?=ms)")
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def ask(app: Callable[..., Any], **environ: str) -> None:
    environ_of_request = {"REQUEST_METHOD": "POST", "PATH_INFO": "/v2/devices", **environ}
    RequestLog(app)(environ_of_request, lambda *_: None)


def done(_environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    start_response("201 Created", [])
    return []


def broken(_environ: dict[str, Any], _start_response: Callable[..., Any]) -> list[bytes]:
    raise ZeroDivisionError


def test_failed_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    before = get_current()
    with pytest.raises(ZeroDivisionError):
        ask(broken)
    assert [MILLISECONDS.sub(" N ", line) for line in caplog.messages] == [
        "POST /v2/devices: 500 in N ms"
    ]
    assert get_current() is before


def test_path_is_logged_as_sent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ask(done, PATH_INFO="/v2/ü\n".encode().decode("latin-1"))
    assert [MILLISECONDS.sub(" N ", line) for line in caplog.messages] == [
        "POST /v2/%C3%BC%0A: 201 in N ms"
    ]


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (refusal(409, "No unit\nis free.").body, ": No unit\\nis free."),
        (refusal(409, "x" * 1000).body, f": {'x' * 500}"),
        (b"not JSON", ""),
        (b"[1]", ""),
        (b'{"error_message": {"message": "of a filter"}}', ""),
    ],
)
def test_line_of_a_refused_write_has_the_reason(
    body: bytes, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("409 Conflict", [])
        return [body]

    caplog.set_level(logging.INFO)
    ask(refused)
    assert [MILLISECONDS.sub(" N ", line) for line in caplog.messages] == [
        f"POST /v2/devices: 409 in N ms{shown}"
    ]


@pytest.mark.parametrize(("length", "kept"), [(500, True), (600, False)])
def test_trace_headers_of_a_client_are_kept_while_short(length: int, kept: bool) -> None:
    seen: list[dict[str, str]] = []

    def look(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        seen.append(tracing.carrier())
        return done(environ, start_response)

    state = ",".join(f"vendor{number}={'x' * 90}" for number in range(length // 100))
    tracing.begin(InMemorySpanExporter(), service="cyborg-test", host="here")
    try:
        ask(look, HTTP_TRACEPARENT=TRACE, HTTP_TRACESTATE=state)
    finally:
        tracing.stop()
    (carried,) = seen
    assert carried["traceparent"].split("-")[1] == TRACE.split("-")[1]
    assert (carried.get("tracestate") == state) is kept
