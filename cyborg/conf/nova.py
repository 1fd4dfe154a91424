# SPDX-License-Identifier: Apache-2.0
"""Options of [nova]: how conductors reach Nova, to notify it of binds and to query instances."""

from oslo_config import cfg

from cyborg.conf import peer

GROUP = "nova"
SERVICE_TYPE = "compute"


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [nova] on ``conf``; a second call has no effect."""
    peer.register(conf, GROUP, SERVICE_TYPE)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, peer.options(SERVICE_TYPE))]
