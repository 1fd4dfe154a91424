# SPDX-License-Identifier: Apache-2.0
"""Traces: off by default and then free, a sentence where the packages are missing, no secrets."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from oslo_config import cfg

from cyborg import exception, tracing
from cyborg.conf import opts

PARENT = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}


@pytest.fixture
def kept() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing.begin(exporter, service="cyborg-test", host="here")
    yield exporter
    tracing.stop()


def conf_with(endpoint: str | None) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf.set_default("host", "here")
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override("endpoint", endpoint, "tracing")
    return conf


def test_disabled_tracing_does_not_import_the_sdk():
    # In the API oslo.middleware looks for it by itself.
    code = (
        "import sys; import cyborg.cmd.agent, cyborg.cmd.conductor\n"
        "from cyborg import tracing\n"
        "with tracing.span('x', begins=True): assert tracing.carrier() == {}\n"
        "assert not [one for one in sys.modules if one.startswith('opentelemetry.sdk')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_disabled_tracing_makes_no_spans():
    tracing.start(conf_with(None), "cyborg-test")
    with tracing.span("x", begins=True):
        assert tracing.carrier() == {}


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch):
    for name in [one for one in sys.modules if one.startswith("opentelemetry.exporter")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    with pytest.raises(exception.ConfigError, match=r"install openstack-cyborg\[otel\]"):
        tracing.start(conf_with("http://127.0.0.1:1/v1/traces"), "cyborg-test")


def test_span_belongs_to_trace_of_its_origin(kept: InMemorySpanExporter):
    with tracing.span("one", SpanKind.SERVER, origin=PARENT), tracing.span("two"):
        sent = tracing.carrier()
    with tracing.span("three", origin=sent):
        pass
    tracing.stop()
    found = {one.name: one for one in kept.get_finished_spans()}
    assert {one.context.trace_id for one in found.values()} == {0x4BF92F3577B34DA6A3CE929D0E0E4736}
    above = found["three"].parent
    assert above is not None
    assert above.span_id == found["two"].context.span_id
    assert found["one"].resource.attributes["service.name"] == "cyborg-test"


def test_work_without_request_has_no_span(kept: InMemorySpanExporter):
    with tracing.span("heartbeat", SpanKind.CLIENT), tracing.span("x", origin={"sender": "a"}):
        assert tracing.carrier() == {}
    tracing.stop()
    assert kept.get_finished_spans() == ()


def test_error_is_marked_without_its_text(kept: InMemorySpanExporter):
    with pytest.raises(ValueError, match="secret"), tracing.span("x", begins=True):
        raise ValueError("secret")
    tracing.stop()
    (one,) = kept.get_finished_spans()
    assert one.status.status_code is StatusCode.ERROR
    assert dict(one.attributes or {})["error.type"] == "ValueError"
    assert "secret" not in one.to_json()


@pytest.mark.parametrize(
    ("kind", "status", "is_error"),
    [("SERVER", 404, False), ("SERVER", 503, True), ("CLIENT", 204, False), ("CLIENT", 404, True)],
)
def test_refusal_is_an_error_of_client_spans_only(
    kept: InMemorySpanExporter, kind: str, status: int, is_error: bool
):
    with tracing.span("x", SpanKind[kind], begins=True) as span:
        tracing.answered(span, status, first_error=500 if kind == "SERVER" else 400)
    tracing.stop()
    (one,) = kept.get_finished_spans()
    noted = {"http.response.status_code": status} | (
        {"error.type": str(status)} if is_error else {}
    )
    assert dict(one.attributes or {}) == noted
    assert (one.status.status_code is StatusCode.ERROR) == is_error


@pytest.mark.parametrize("odd", [7, ["x"], None, {"a": 1}, "nonsense"])
def test_invalid_trace_context_is_ignored(kept: InMemorySpanExporter, odd: object):
    with tracing.span("x", origin={"traceparent": odd, "tracestate": odd, "sender": "a"}):
        assert tracing.carrier() == {}


def test_restart_sends_pending_spans(kept: InMemorySpanExporter):
    with tracing.span("x", begins=True):
        pass
    tracing.begin(InMemorySpanExporter(), service="cyborg-test", host="here")
    assert [one.name for one in kept.get_finished_spans()] == ["x"]
