# SPDX-License-Identifier: Apache-2.0
"""The option with which a daemon shows its metrics, for the groups of those that have it."""

from oslo_config import cfg


def metrics_listen() -> cfg.Opt:
    """Return a fresh option object."""
    return cfg.StrOpt(
        "metrics_listen",
        regex=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}$",
        help="Address and TCP port, as in 127.0.0.1:9100 or [::1]:9100, on which the process "
        "answers GET /metrics, in the form of Prometheus. Nobody is asked for a token and "
        "nothing is encrypted: whoever reaches it sees names of hosts, drivers and devices, and "
        "how much of everything there is. Unset: it does not listen.",
    )
