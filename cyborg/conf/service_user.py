# SPDX-License-Identifier: Apache-2.0
"""Options of [service_user]: the service's own account at Keystone."""

from oslo_config import cfg

from cyborg.conf import peer

GROUP = "service_user"


def options() -> list[cfg.Opt]:
    """Return fresh option objects, without those that keystoneauth brings."""
    return [
        cfg.BoolOpt(
            "send_service_user_token",
            default=False,
            help="Send a token of this account to Glance besides the caller's.",
            deprecated_for_removal=True,
            deprecated_since="18.0.0",
            deprecated_reason="Callers' tokens are not passed on any more: Glance is asked with "
            "the account of [glance] or, where that has none, with this one.",
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [service_user] on ``conf``; calling twice does no harm."""
    peer.register(conf, GROUP)
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options() + peer.options())]
