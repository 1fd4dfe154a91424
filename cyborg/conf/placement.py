# SPDX-License-Identifier: Apache-2.0
"""Options of [placement]: how agents and conductors reach Placement."""

from oslo_config import cfg

from cyborg.conf import peer

GROUP = "placement"
SERVICE_TYPE = "placement"


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [placement] on ``conf``; a second call has no effect."""
    peer.register(conf, GROUP, SERVICE_TYPE)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, peer.options(SERVICE_TYPE))]
