# SPDX-License-Identifier: Apache-2.0
"""Options of [api] and [ssl]: address, TLS, authentication and limits of the REST API."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from oslo_config import cfg

from cyborg.conf.group import OptionGroup, option

_OWN: Final = "Only cyborg-api has this limit; set that of an external WSGI server or proxy there."


@dataclass(frozen=True)
class ApiOptions(OptionGroup):
    """Options of the API; times are in seconds."""

    GROUP: ClassVar[str] = "api"

    host_ip: str = option(
        cfg.HostAddressOpt,
        default="127.0.0.1",
        help="IP address or host name on which cyborg-api listens. An external WSGI server "
        "(uWSGI, mod_wsgi) ignores it and has its own setting.",
    )
    port: int = option(
        cfg.PortOpt,
        default=6666,
        help="TCP port on which cyborg-api listens. An external WSGI server (uWSGI, mod_wsgi) "
        "ignores it and has its own setting.",
    )
    api_workers: int | None = option(
        cfg.IntOpt,
        default=None,
        min=1,
        help="Maximum number of requests that cyborg-api handles at the same time. If unset, "
        "it is the number of processors of the host, but at least 8. An external WSGI server "
        "(uWSGI, mod_wsgi) ignores it and has its own setting.",
    )
    enable_ssl_api: bool = option(
        cfg.BoolOpt,
        default=False,
        help="Serve HTTPS instead of HTTP, with the certificate in the [ssl] section.",
    )
    public_endpoint: str | None = option(
        cfg.StrOpt,
        default=None,
        regex=r"^https?://[^/\s]+(/\S*)?$",
        help="URL at which clients reach the service, for the links in its responses. If "
        "unset, the links use the URL of each request. Set it when a proxy changes that URL. "
        "With a path, as in https://cloud.example.org/accelerator, the service answers below "
        "that path and at the root, so the proxy may strip the path or keep it.",
    )
    api_paste_config: str = option(
        cfg.StrOpt,
        default="api-paste.ini",
        help="Paste file with the middleware pipeline: an absolute path, or a file name that "
        "is looked up in the configuration directories. If the file does not exist, the "
        "service uses its built-in pipeline, which is the same as in etc/cyborg/api-paste.ini.",
    )
    header_timeout: int = option(
        cfg.IntOpt,
        default=30,
        min=1,
        help="Time, in seconds, within which a client must send the head of its next request, "
        "including the TLS handshake. cyborg-api closes the connection of a slower or idle "
        "client. A proxy must close its idle connections earlier, or repeat requests. A small "
        f"value makes clients connect more often, a large one keeps idle connections. {_OWN}",
    )
    body_timeout: int = option(
        cfg.IntOpt,
        default=60,
        min=1,
        help="Time, in seconds, within which a client must send the body of a request, and "
        "then read the answer. cyborg-api closes the connection of a slower client. Raise it "
        f"if clients on slow links read lists of many megabytes. {_OWN}",
    )
    max_header_size: int = option(
        cfg.IntOpt,
        default=65536,
        min=8192,
        help="Maximum size of the head of a request, in bytes: the request line with the "
        "query, and all header fields. cyborg-api closes the connection of a client that "
        "sends more. Below 48 KiB, queries with a thousand identifiers are refused. Each "
        f"connection can hold this much memory. {_OWN}",
    )
    max_connections: int = option(
        cfg.IntOpt,
        default=512,
        min=1,
        help="Maximum number of open connections. For a further one, cyborg-api closes the "
        "oldest connection that has not sent a complete head, or else the new one, and logs a "
        "warning. Each connection needs a file descriptor: raise LimitNOFILE in the "
        "systemd unit (the default is 1024) before you raise this value above 800. A "
        f"connection can hold up to a megabyte for a body. {_OWN}",
    )
    max_connections_per_peer: int | None = option(
        cfg.IntOpt,
        default=None,
        min=0,
        help="Maximum number of open connections of one IPv4 address or IPv6 network of 64 "
        "bits. 0 means no maximum. If unset, it is 100, but 0 behind a proxy: if host_ip is a "
        "loopback address, or if [oslo_middleware] enable_proxy_headers_parsing is true. Set "
        "it to 0 if all clients come through another proxy, and limit their connections "
        f"there. {_OWN}",
    )
    max_watchers: int = option(
        cfg.IntOpt,
        default=200,
        min=0,
        help="Maximum number of requests to GET /v2/events that wait for events at the same time. "
        "Such a request holds a connection, but no thread. A further one is answered at once, "
        "with Retry-After, and its client asks again later. Keep it below max_connections, so "
        "that other requests find a free connection. 0: no request waits. An external WSGI server "
        "(uWSGI, mod_wsgi) ignores it: there, no request waits.",
    )
    auth_strategy: str = option(
        cfg.StrOpt,
        default="keystone",
        choices=[
            ("keystone", "Every request except version discovery needs a valid token."),
            ("noauth", "Every request has administrator rights; for demonstrations only."),
        ],
        help="How the API authenticates its callers.",
    )
    noauth_anywhere: bool = option(
        cfg.BoolOpt,
        default=False,
        help="Allow auth_strategy = noauth on addresses other than loopback. Every client "
        "that can reach the port then has administrator rights.",
    )
    metrics: bool = option(
        cfg.BoolOpt,
        default=False,
        help="Expose the metrics of the API in the Prometheus format at GET /metrics. Requests "
        "need no token: every client that can reach the API can read the number of requests "
        "by path and status, and the installed release. In a WSGI server with several "
        "processes, set the environment variable PROMETHEUS_MULTIPROC_DIR to a directory that "
        "all of them share.",
    )
    compute_users: Sequence[str] = option(
        cfg.ListOpt,
        default=[],
        help="Users of Nova, as IDs, or as names of users of the domain with the ID 'default'. "
        "Only Nova can bind and unbind accelerator requests, and delete those of an instance. "
        "If empty, a request counts as sent by Nova if it has a valid service token of another "
        "user with one of [keystone_authtoken] service_token_roles: every other service whose "
        "account has such a role can then act as Nova. If set, only service tokens of these "
        "users count, and a token of one of these users with such a role also counts without "
        "a service token. Set it to the users of [service_user] in nova.conf.",
    )
    max_limit: int = option(
        cfg.IntOpt,
        default=1000,
        min=1,
        help="Maximum number of objects in the answer to a list from microversion 2.100 on. A "
        "longer list continues at the link 'next' of the answer; a larger limit of a client "
        "is lowered to this number. A small value makes clients send more requests; a large "
        "value needs more memory for each request, about 2.5 kB for each object.",
    )
    max_unpaged: int = option(
        cfg.IntOpt,
        default=20000,
        min=1,
        help="Maximum number of objects in the answer to a list below microversion 2.100, "
        "whose answers have no links to a next page. A longer list is never cut: the API "
        "answers 400, and the client has to set limit and marker. Raise it if an old client "
        "has to read longer lists at once; each object needs about 2.5 kB of memory until its "
        "request ends.",
    )
    max_groups: int = option(
        cfg.IntOpt,
        default=100,
        min=1,
        help="Maximum number of groups in a device profile. The API rejects a profile with "
        "more groups.",
    )
    max_units_per_group: int = option(
        cfg.IntOpt,
        default=64,
        min=1,
        help="Maximum number of resource units that one group of a device profile may "
        "request. This is also the maximum number of accelerator requests that are created "
        "for one group. The API rejects a profile that requests more.",
    )


@dataclass(frozen=True)
class TlsOptions(OptionGroup):
    """Files for HTTPS."""

    GROUP: ClassVar[str] = "ssl"

    cert_file: str | None = option(
        cfg.StrOpt,
        default=None,
        help="PEM file with the certificate that cyborg-api presents.",
    )
    key_file: str | None = option(
        cfg.StrOpt,
        default=None,
        help="PEM file with the private key of the certificate.",
    )
    ca_file: str | None = option(
        cfg.StrOpt,
        default=None,
        help="PEM file with certificate authorities. If set, clients of cyborg-api must "
        "present a certificate that one of these authorities signed.",
    )


def options() -> dict[str, list[cfg.Opt]]:
    """Return new option objects by group."""
    return {group.GROUP: group.options() for group in (ApiOptions, TlsOptions)}
