# SPDX-License-Identifier: Apache-2.0
"""Options of [api] and [ssl]: address, TLS, authentication and limits of the REST API."""

from oslo_config import cfg


def options() -> dict[str, list[cfg.Opt]]:
    """Return new option objects by group."""
    return {
        "api": [*_listening(), *_requests()],
        "ssl": [
            cfg.StrOpt("cert_file", help="PEM file with the certificate that cyborg-api presents."),
            cfg.StrOpt("key_file", help="PEM file with the private key of the certificate."),
            cfg.StrOpt(
                "ca_file",
                help="PEM file with certificate authorities. If set, clients of cyborg-api must "
                "present a certificate that one of these authorities signed.",
            ),
        ],
    }


def _listening() -> list[cfg.Opt]:
    return [
        cfg.HostAddressOpt(
            "host_ip",
            default="127.0.0.1",
            help="IP address or host name on which cyborg-api listens. An external WSGI server "
            "(uWSGI, mod_wsgi) ignores it and has its own setting.",
        ),
        cfg.PortOpt(
            "port",
            default=6666,
            help="TCP port on which cyborg-api listens. An external WSGI server (uWSGI, mod_wsgi) "
            "ignores it and has its own setting.",
        ),
        cfg.IntOpt(
            "api_workers",
            min=1,
            help="Maximum number of requests that cyborg-api handles at the same time. If unset, "
            "it is the number of processors of the host, but at least 8. An external WSGI server "
            "(uWSGI, mod_wsgi) ignores it and has its own setting.",
        ),
        cfg.BoolOpt(
            "enable_ssl_api",
            default=False,
            help="Serve HTTPS instead of HTTP, with the certificate in the [ssl] section.",
        ),
        cfg.StrOpt(
            "public_endpoint",
            regex=r"^https?://[^/\s]+(/\S*)?$",
            help="URL at which clients reach the service, for the links in its responses. If "
            "unset, the links use the URL of each request. Set it when a proxy changes that URL. "
            "With a path, as in https://cloud.example.org/accelerator, the service answers below "
            "that path and at the root, so the proxy may strip the path or keep it.",
        ),
        cfg.StrOpt(
            "api_paste_config",
            default="api-paste.ini",
            help="Paste file with the middleware pipeline: an absolute path, or a file name that "
            "is looked up in the configuration directories. If the file does not exist, the "
            "service uses its built-in pipeline, which is the same as in etc/cyborg/api-paste.ini.",
        ),
    ]


def _requests() -> list[cfg.Opt]:
    return [
        cfg.StrOpt(
            "auth_strategy",
            default="keystone",
            choices=[
                ("keystone", "Every request except version discovery needs a valid token."),
                ("noauth", "Every request has administrator rights; for demonstrations only."),
            ],
            help="How the API authenticates its callers.",
        ),
        cfg.BoolOpt(
            "noauth_anywhere",
            default=False,
            help="Allow auth_strategy = noauth on addresses other than loopback. Every client "
            "that can reach the port then has administrator rights.",
        ),
        cfg.BoolOpt(
            "metrics",
            default=False,
            help="Expose the metrics of the API in the Prometheus format at GET /metrics. Requests "
            "need no token: every client that can reach the API can read the number of requests "
            "by path and status, and the installed release. In a WSGI server with several "
            "processes, set the environment variable PROMETHEUS_MULTIPROC_DIR to a directory that "
            "all of them share.",
        ),
        cfg.IntOpt(
            "max_groups",
            default=100,
            min=1,
            help="Maximum number of groups in a device profile. The API rejects a profile with "
            "more groups.",
        ),
        cfg.IntOpt(
            "max_units_per_group",
            default=64,
            min=1,
            help="Maximum number of resource units that one group of a device profile may "
            "request. This is also the maximum number of accelerator requests that are created "
            "for one group. The API rejects a profile that requests more.",
        ),
    ]
