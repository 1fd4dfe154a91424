# SPDX-License-Identifier: Apache-2.0
"""Options of [tracing]: where OpenTelemetry traces are sent."""

from oslo_config import cfg

GROUP = "tracing"


def options() -> list[cfg.Opt]:
    """Return new option objects."""
    return [
        cfg.URIOpt(
            "endpoint",
            schemes=["http", "https"],
            sample_default="http://127.0.0.1:4318/v1/traces",
            help="URL, with its path, of the collector that receives OpenTelemetry traces as OTLP "
            "over HTTP. Tracing is off if it is unset. It requires the packages of the extra "
            "otel. OpenTelemetry's own environment variables (OTEL_TRACES_SAMPLER, "
            "OTEL_EXPORTER_OTLP_HEADERS and so on) set the sampling rate, the credentials for the "
            "collector and all other parameters.",
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [tracing] on ``conf``; a second call has no effect."""
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
