# SPDX-License-Identifier: Apache-2.0
"""The option metrics_listen, which several groups of daemons share."""

from oslo_config import cfg


def metrics_listen() -> cfg.Opt:
    """Return a new option object."""
    return cfg.StrOpt(
        "metrics_listen",
        regex=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}$",
        help="Address and TCP port, as in 127.0.0.1:9100 or [::1]:9100, on which the process "
        "exposes its metrics in the Prometheus format at GET /metrics. Requests need no token and "
        "are not encrypted: every client that can reach the port can read the names of hosts, "
        "drivers and devices, and their numbers. If unset, the process does not listen.",
    )
