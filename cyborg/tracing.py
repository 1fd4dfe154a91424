# SPDX-License-Identifier: Apache-2.0
"""Traces in OpenTelemetry's form: which parts of the service a request goes through, and how long.

Off unless ``[tracing] endpoint`` is set; OpenTelemetry is imported only then. A trace begins with
a request to the API (or goes on from the one that its client is in); what the service does by
itself has none. Between processes it goes as W3C's ``traceparent``.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from oslo_config import cfg

from cyborg import exception

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

#: The keys of a trace in headers and wherever else it is handed on.
KEYS: Final = ("traceparent", "tracestate")


class Kind(StrEnum):
    """What a span is of: a request that came in, one that goes out, or work of our own."""

    SERVER = "SERVER"
    CLIENT = "CLIENT"
    INTERNAL = "INTERNAL"


class Span(Protocol):
    """What can be added to a span while it lasts; nothing secret, for others keep it."""

    def update_name(self, name: str) -> None: ...
    def set_attribute(self, key: str, value: str) -> None: ...
    def answered(self, status: int) -> None: ...


class _NoSpan:
    def update_name(self, name: str) -> None:
        """Nobody looks."""

    def set_attribute(self, key: str, value: str) -> None:
        """Nobody looks."""

    def answered(self, status: int) -> None:
        """Nobody looks."""


class _Span:
    """A span of OpenTelemetry's; its conventions for HTTP say what is an error to whom."""

    def __init__(self, made: Any, kind: Kind, error: Any) -> None:
        self._made, self._error = made, error
        self._first_error = 500 if kind is Kind.SERVER else 400

    def update_name(self, name: str) -> None:
        """Give it the name by which it is found."""
        self._made.update_name(name)

    def set_attribute(self, key: str, value: str) -> None:
        """Note what it was about."""
        self._made.set_attribute(key, value)

    def answered(self, status: int) -> None:
        """Note the status of an HTTP answer; whoever asked is at fault for a 4xx, nobody else."""
        self._made.set_attribute("http.response.status_code", status)
        if status >= self._first_error:
            self.failed(str(status))

    def failed(self, kind: str) -> None:
        """Mark it as an error of this kind."""
        self._made.set_attribute("error.type", kind)
        self._made.set_status(self._error)


class _Live:
    """This process's way to make spans."""

    def __init__(self, exporter: "SpanExporter", *, service: str, host: str) -> None:
        from opentelemetry import context, trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation import tracecontext

        self._context, self._trace = context, trace
        self._form = tracecontext.TraceContextTextMapPropagator()
        resource = Resource.create({"service.name": service, "host.name": host})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("cyborg")

    def checkpoint(self, origin: Mapping[str, Any] | None) -> Any:
        """The context of the trace that ``origin`` tells of, else of the one this thread is in."""
        if not origin:
            return self._context.get_current()
        # Peers of any release send it, and the library takes for granted that it is text.
        told = {key: origin[key] for key in KEYS if isinstance(origin.get(key), str)}
        return self._form.extract(told)

    def traced(self, parent: Any) -> bool:
        """Whether there is a trace in this context."""
        return bool(self._trace.get_current_span(parent).get_span_context().is_valid)

    @contextmanager
    def span(
        self, name: str, kind: Kind, parent: Any, attributes: Mapping[str, str]
    ) -> Iterator[Span]:
        """A span; one that ends with an error is marked, but the error's text may hold anything."""
        with self._tracer.start_as_current_span(
            name,
            context=parent,
            kind=self._trace.SpanKind[kind.value],
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as made:
            span = _Span(made, kind, self._trace.StatusCode.ERROR)
            try:
                yield span
            except BaseException as error:
                span.failed(type(error).__name__)
                raise

    def carrier(self) -> dict[str, str]:
        """The trace that this thread is in, in the form in which it is handed on."""
        told: dict[str, str] = {}
        self._form.inject(told)
        return told

    def close(self) -> None:
        """Send what has not been sent."""
        self._provider.shutdown()


#: As with the log, there is one for a process, and whoever has something to tell finds it here.
_live: _Live | None = None


def start(conf: cfg.ConfigOpts, service: str) -> None:
    """Begin to trace what this process does, if ``[tracing] endpoint`` is set.

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
    """Trace to this exporter from now on, and to no other any more."""
    global _live
    stop()
    _live = _Live(exporter, service=service, host=host)


def stop() -> None:
    """Send what is left, and trace no more; a process that ends does so by itself."""
    global _live
    ended, _live = _live, None
    if ended is not None:
        ended.close()


def span(
    name: str,
    kind: Kind = Kind.INTERNAL,
    *,
    origin: Mapping[str, Any] | None = None,
    begins: bool = False,
    **attributes: str,
) -> AbstractContextManager[Span]:
    """What is done inside, as a part of a trace; in ``attributes`` a dot is written ``__``.

    ``origin`` tells of the trace (see ``KEYS``) where it came from elsewhere than this thread.
    Outside of a trace there is no span, unless it ``begins`` one.
    """
    if _live is None:
        return nullcontext(_NoSpan())
    parent = _live.checkpoint(origin)
    if not begins and not _live.traced(parent):
        return nullcontext(_NoSpan())
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return _live.span(name, kind, parent, named)


def carrier() -> dict[str, str]:
    """What to hand on, so that the next process goes on with this trace; empty outside of one."""
    return {} if _live is None else _live.carrier()
