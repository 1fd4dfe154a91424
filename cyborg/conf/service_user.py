# SPDX-License-Identifier: Apache-2.0
"""Options of [service_user]: the service's own account in Keystone."""

from oslo_config import cfg

from cyborg.conf import peer

GROUP = "service_user"


def options() -> list[cfg.Opt]:
    """Return new option objects, without those of keystoneauth."""
    return [
        cfg.BoolOpt(
            "send_service_user_token",
            default=False,
            help="Send a token of this account to Glance in addition to the caller's token.",
            deprecated_for_removal=True,
            deprecated_since="18.0.0",
            deprecated_reason="It no longer has any effect: the agent does not send callers' "
            "tokens to Glance. It uses the account in [glance] or, if that group has none, this "
            "account.",
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [service_user] on ``conf``; a second call has no effect."""
    peer.register(conf, GROUP)
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options() + peer.options())]
