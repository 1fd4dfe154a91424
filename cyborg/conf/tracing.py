# SPDX-License-Identifier: Apache-2.0
"""Options of [tracing]: where OpenTelemetry traces go."""

from oslo_config import cfg

GROUP = "tracing"


def options() -> list[cfg.Opt]:
    """Return fresh option objects."""
    return [
        cfg.URIOpt(
            "endpoint",
            schemes=["http", "https"],
            sample_default="http://127.0.0.1:4318/v1/traces",
            help="Where OpenTelemetry traces are sent: the URL at which a collector takes them as "
            "OTLP over HTTP, with its path. Nothing is traced unless it is set. It needs the "
            "packages of the extra otel. How much is traced, credentials of the collector and all "
            "else is read from OpenTelemetry's own environment variables (OTEL_TRACES_SAMPLER, "
            "OTEL_EXPORTER_OTLP_HEADERS and so on).",
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [tracing] on ``conf``; calling twice does no harm."""
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
