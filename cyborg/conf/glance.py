# SPDX-License-Identifier: Apache-2.0
"""Options of [glance]: how agents download the images that they load into devices."""

from oslo_config import cfg

from cyborg.conf import peer

GROUP = "glance"
SERVICE_TYPE = "image"


def options() -> list[cfg.Opt]:
    """Return new option objects, without those of keystoneauth."""
    return [
        cfg.IntOpt(
            "num_retries",
            default=0,
            min=0,
            help="Number of times that an agent retries a failed download of an image. Raise it if "
            "the connection to Glance is unreliable. After these retries the conductor repeats "
            "the operation until its deadline.",
        ),
        cfg.IntOpt(
            "max_image_size",
            default=1 << 30,
            min=1,
            help="Maximum size, in bytes, of an image that an agent downloads to load it into a "
            "device. An agent needs this much free space below state_path for each image that it "
            "loads at the same time. Raise it when a bind fails because its image is larger.",
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [glance] on ``conf``; a second call has no effect."""
    peer.register(conf, GROUP, SERVICE_TYPE, deprecated=_older_names())
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options() + peer.options(SERVICE_TYPE, deprecated=_older_names()))]


def _older_names() -> dict[str, list[cfg.DeprecatedOpt]]:
    """Return the older names of session options, which existing files may contain."""
    return {
        "insecure": [cfg.DeprecatedOpt("api_insecure", group=GROUP)],
        "cafile": [cfg.DeprecatedOpt("ca_file", group="ssl")],
        "certfile": [cfg.DeprecatedOpt("cert_file", group="ssl")],
        "keyfile": [cfg.DeprecatedOpt("key_file", group="ssl")],
    }
