# SPDX-License-Identifier: Apache-2.0
"""Options of [api] and [ssl]: how the REST API listens, whom it trusts, what it accepts."""

from oslo_config import cfg

GROUP = "api"
TLS_GROUP = "ssl"


def options() -> list[cfg.Opt]:
    """Return fresh option objects of [api]."""
    return [
        *_listening(),
        cfg.StrOpt(
            "auth_strategy",
            default="keystone",
            choices=[
                ("keystone", "Every request but discovery needs a valid token."),
                ("noauth", "Every request is made by an administrator; for demonstrations only."),
            ],
            help="How callers are authenticated.",
        ),
        cfg.BoolOpt(
            "noauth_anywhere",
            default=False,
            help="Allow auth_strategy = noauth on addresses other than loopback. Whoever reaches "
            "the port then owns the service.",
        ),
        cfg.BoolOpt(
            "metrics",
            default=False,
            help="Answer GET /metrics with what the API has counted, in the form of Prometheus. No "
            "token is asked for: whoever reaches the API sees how much it is used, by path and "
            "status, and which release runs. In a server of several processes the environment "
            "must name a directory that they share, in PROMETHEUS_MULTIPROC_DIR.",
        ),
        cfg.IntOpt(
            "max_groups",
            default=100,
            min=1,
            help="Most groups that a device profile may have; a profile with more is refused.",
        ),
        cfg.IntOpt(
            "max_units_per_group",
            default=64,
            min=1,
            help="Most units of resources that one group of a device profile may ask for, and so "
            "the most accelerator requests that one group makes.",
        ),
    ]


def _listening() -> list[cfg.Opt]:
    return [
        cfg.HostAddressOpt(
            "host_ip",
            default="127.0.0.1",
            help="Address on which cyborg-api listens. An external WSGI server (uWSGI, mod_wsgi) "
            "has its own setting instead.",
        ),
        cfg.PortOpt(
            "port",
            default=6666,
            help="TCP port on which cyborg-api listens.",
        ),
        cfg.IntOpt(
            "api_workers",
            min=1,
            help="How many requests cyborg-api handles at a time. Unset means one per processor "
            "of the machine, but at least 8.",
        ),
        cfg.BoolOpt(
            "enable_ssl_api",
            default=False,
            help="Serve HTTPS instead of HTTP, with the certificate of the [ssl] section.",
        ),
        cfg.StrOpt(
            "public_endpoint",
            regex=r"^https?://[^/\s]+(/\S*)?$",
            help="URL under which clients reach the service, for the links in its answers. Unset "
            "means that the links follow the URL of each request. With a path, as in "
            "https://cloud.example.org/accelerator, the service answers below that path as well "
            "as at the root: it makes no difference whether a proxy strips the path.",
        ),
        cfg.StrOpt(
            "api_paste_config",
            default="api-paste.ini",
            help="Paste file with the middleware pipeline: an absolute path, or a name looked up "
            "in the configuration directories. Where there is no such file the same pipeline is "
            "built in.",
        ),
    ]


def tls_options() -> list[cfg.Opt]:
    """Return fresh option objects of [ssl]."""
    return [
        cfg.StrOpt("cert_file", help="PEM file with the certificate that cyborg-api shows."),
        cfg.StrOpt("key_file", help="PEM file with the private key of that certificate."),
        cfg.StrOpt(
            "ca_file",
            help="PEM file with certificate authorities; clients of cyborg-api must then show a "
            "certificate that one of them signed.",
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [api] and [ssl] on ``conf``; calling twice does no harm."""
    conf.register_opts(options(), group=GROUP)
    conf.register_opts(tls_options(), group=TLS_GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options()), (TLS_GROUP, tls_options())]
