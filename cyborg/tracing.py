# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry traces: the path of a request through the processes, and the time of each step.

Tracing is off unless ``[tracing] endpoint`` is set; OpenTelemetry's SDK is imported only then. A
trace starts with a request to the API, or continues the trace of the client. Work that no request
caused has no trace. Processes pass the trace on as ``traceparent`` (W3C Trace Context). Add no
secrets to a span: traces are stored outside of this service.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from oslo_config import cfg

from cyborg import exception

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

#: The keys of a trace in headers, in the context of the bus, and in the history.
KEYS: Final = ("traceparent", "tracestate")
_PROPAGATOR: Final = TraceContextTextMapPropagator()

#: The SDK's provider of this process; None while tracing is off. Like logging, it is global.
_provider: Any = None


def start(conf: cfg.ConfigOpts, service: str) -> None:
    """Start tracing in this process, if ``[tracing] endpoint`` is set.

    Raises ConfigError when the SDK or its exporter is not installed.
    """
    endpoint = conf.tracing.endpoint
    if not endpoint:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as missing:
        raise exception.ConfigError(
            reason=f"[tracing] endpoint is set, but {missing.name} is not installed: install "
            "openstack-cyborg[otel], or remove the option."
        ) from missing
    begin(OTLPSpanExporter(endpoint=endpoint), service=service, host=conf.host)


def begin(exporter: "SpanExporter", *, service: str, host: str) -> None:
    """Trace to this exporter only, from now on."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    global _provider
    stop()
    resource = Resource.create({"service.name": service, "host.name": host})
    _provider = TracerProvider(resource=resource)
    _provider.add_span_processor(BatchSpanProcessor(exporter))


def stop() -> None:
    """Send the remaining spans and stop tracing; a process does this by itself when it ends."""
    global _provider
    previous, _provider = _provider, None
    if previous is not None:
        previous.shutdown()


@contextmanager
def span(
    name: str,
    kind: SpanKind = SpanKind.INTERNAL,
    *,
    origin: Mapping[str, Any] | None = None,
    begins: bool = False,
    **attributes: str,
) -> Iterator[Span]:
    """Record the block as a span of a trace; an exception marks it as an error, without its text.

    ``origin`` has the trace (see ``KEYS``) if it comes from outside of this thread. Without a trace
    nothing is recorded, unless ``begins`` starts a trace. In the names of ``attributes``, ``__``
    stands for a dot.
    """
    parent = context.get_current()
    if origin and _provider is not None:
        # Peers of any release send the values, and the library requires strings.
        fields = {key: origin[key] for key in KEYS if isinstance(origin.get(key), str)}
        parent = _PROPAGATOR.extract(fields)
    in_trace = trace.get_current_span(parent).get_span_context().is_valid
    if _provider is None or not (begins or in_trace):
        yield trace.INVALID_SPAN
        return
    with _provider.get_tracer("cyborg").start_as_current_span(
        name,
        context=parent,
        kind=kind,
        attributes={key.replace("__", "."): value for key, value in attributes.items()},
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except BaseException as error:
            _fail(current, type(error).__name__)
            raise


def answered(span: Span, status: int, *, first_error: int) -> None:
    """Record the HTTP status; from ``first_error`` on it marks the span as an error.

    OpenTelemetry's HTTP conventions: that is 400 for a client and 500 for a server.
    """
    span.set_attribute("http.response.status_code", status)
    if status >= first_error:
        _fail(span, str(status))


def _fail(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(trace.StatusCode.ERROR)


def carrier() -> dict[str, str]:
    """Return the trace fields to pass to the next process; empty without a trace."""
    fields: dict[str, str] = {}
    _PROPAGATOR.inject(fields)
    return fields
