# SPDX-License-Identifier: Apache-2.0
"""Options of [glance]: how agents fetch the images with which devices are programmed."""

from oslo_config import cfg

from cyborg.conf import peer

GROUP = "glance"
SERVICE_TYPE = "image"


def options() -> list[cfg.Opt]:
    """Return fresh option objects, without those that keystoneauth brings."""
    return [
        cfg.IntOpt(
            "num_retries",
            default=0,
            min=0,
            help="How many times a download that failed is tried again.",
        ),
        cfg.IntOpt(
            "max_image_size",
            default=1 << 30,
            min=1,
            help="Largest image, in bytes, that an agent downloads in order to load it into a "
            "device. An agent needs this much free space below state_path for each image that it "
            "loads at the same time. Raise it when a bind fails because its image is larger.",
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [glance] on ``conf``; calling twice does no harm."""
    peer.register(conf, GROUP, SERVICE_TYPE, deprecated=_older_names())
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options() + peer.options(SERVICE_TYPE, deprecated=_older_names()))]


def _older_names() -> dict[str, list[cfg.DeprecatedOpt]]:
    """Return the names under which files written for older releases hold session options."""
    return {
        "insecure": [cfg.DeprecatedOpt("api_insecure", group=GROUP)],
        "cafile": [cfg.DeprecatedOpt("ca_file", group="ssl")],
        "certfile": [cfg.DeprecatedOpt("cert_file", group="ssl")],
        "keyfile": [cfg.DeprecatedOpt("key_file", group="ssl")],
    }
