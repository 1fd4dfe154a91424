# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry traces: the path of a request through the processes, and the time of each step.

Tracing is off unless ``[tracing] endpoint`` is set; OpenTelemetry is imported only then. A trace
starts with a request to the API, or continues the trace of the client. Work that no request caused
has no trace. Processes pass the trace on as ``traceparent`` (W3C Trace Context).
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from oslo_config import cfg

from cyborg import exception

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

#: The keys of a trace in headers, in the context of the bus, and in the history.
KEYS: Final = ("traceparent", "tracestate")


class Kind(StrEnum):
    """The kind of a span: an incoming request, an outgoing request, or internal work."""

    SERVER = "SERVER"
    CLIENT = "CLIENT"
    INTERNAL = "INTERNAL"


class Span:
    """Methods to annotate a span; outside of a trace they record nothing.

    Add no secrets: the trace is stored outside of this service.
    """

    def update_name(self, name: str) -> None:
        """Rename the span."""

    def set_attribute(self, key: str, value: str) -> None:
        """Set an attribute of the span."""

    def answered(self, status: int) -> None:
        """Record the HTTP status; 4xx marks a client span as an error, 5xx every span."""


class _Span(Span):
    """A span of OpenTelemetry, which follows its HTTP conventions for errors."""

    def __init__(self, span: Any, kind: Kind, error: Any) -> None:
        self._span, self._error = span, error
        self._first_error = 500 if kind is Kind.SERVER else 400

    def update_name(self, name: str) -> None:
        self._span.update_name(name)

    def set_attribute(self, key: str, value: str) -> None:
        self._span.set_attribute(key, value)

    def answered(self, status: int) -> None:
        self._span.set_attribute("http.response.status_code", status)
        if status >= self._first_error:
            self.failed(str(status))

    def failed(self, kind: str) -> None:
        """Mark the span as an error of this type."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(self._error)


class _Live:
    """The tracer of this process."""

    def __init__(self, exporter: "SpanExporter", *, service: str, host: str) -> None:
        from opentelemetry import context, trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation import tracecontext

        self._context, self._trace = context, trace
        self._propagator = tracecontext.TraceContextTextMapPropagator()
        resource = Resource.create({"service.name": service, "host.name": host})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("cyborg")

    @contextmanager
    def span(
        self,
        name: str,
        kind: Kind,
        *,
        origin: Mapping[str, Any] | None,
        begins: bool,
        attributes: Mapping[str, str],
    ) -> Iterator[Span]:
        """Record the block as a span; an exception marks it as an error, without its text."""
        parent = self._context.get_current()
        if origin:
            # Peers of any release send the values, and the library requires strings.
            fields = {key: origin[key] for key in KEYS if isinstance(origin.get(key), str)}
            parent = self._propagator.extract(fields)
        if not begins and not self._trace.get_current_span(parent).get_span_context().is_valid:
            yield Span()
            return
        with self._tracer.start_as_current_span(
            name,
            context=parent,
            kind=self._trace.SpanKind[kind.value],
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as current:
            span = _Span(current, kind, self._trace.StatusCode.ERROR)
            try:
                yield span
            except BaseException as error:
                span.failed(type(error).__name__)
                raise

    def carrier(self) -> dict[str, str]:
        """Return the trace of this thread as the fields that are passed on."""
        fields: dict[str, str] = {}
        self._propagator.inject(fields)
        return fields

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


#: The tracer of this process; None while tracing is off. Like logging, it is global.
_live: _Live | None = None


def start(conf: cfg.ConfigOpts, service: str) -> None:
    """Start tracing in this process, if ``[tracing] endpoint`` is set.

    Raises ConfigError when OpenTelemetry is not installed.
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
    global _live
    stop()
    _live = _Live(exporter, service=service, host=host)


def stop() -> None:
    """Send the remaining spans and stop tracing; a process does this by itself when it ends."""
    global _live
    previous, _live = _live, None
    if previous is not None:
        previous.close()


def span(
    name: str,
    kind: Kind = Kind.INTERNAL,
    *,
    origin: Mapping[str, Any] | None = None,
    begins: bool = False,
    **attributes: str,
) -> AbstractContextManager[Span]:
    """Return a context manager that records its block as a span of a trace.

    ``origin`` has the trace (see ``KEYS``) if it comes from outside of this thread. Without a trace
    nothing is recorded, unless ``begins`` starts a trace. In the names of ``attributes``, ``__``
    stands for a dot.
    """
    if _live is None:
        return nullcontext(Span())
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return _live.span(name, kind, origin=origin, begins=begins, attributes=named)


def carrier() -> dict[str, str]:
    """Return the trace fields to pass to the next process; empty without a trace."""
    return {} if _live is None else _live.carrier()
