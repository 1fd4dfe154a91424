# SPDX-License-Identifier: Apache-2.0
"""Options of [nova], [placement], [glance] and [service_user]: how to reach other services.

The groups share the options of keystoneauth: those of the session, of the authentication plug-in
and, except for [service_user], of the adapter that looks up the endpoint in the catalogue. The
defaults of [keystone_authtoken] that differ from keystonemiddleware's own are here too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from keystoneauth1 import loading
from oslo_config import cfg

from cyborg.conf.group import OptionGroup, option

#: Service types by group; a group without one has no adapter options.
_SERVICE_TYPES: Final[Mapping[str, str | None]] = {
    "glance": "image",
    "nova": "compute",
    "placement": "placement",
    "service_user": None,
}
_INTERFACES: Final = ("internal", "public")
# The clients request the versions that they need; a configured version would break their paths.
_HIDDEN: Final = frozenset({"version", "min-version", "max-version"})
#: Older names of the adapter's options; kolla-ansible writes ``endpoint_type``.
_OLDER_ADAPTER: Final = {"valid-interfaces": [cfg.DeprecatedOpt("endpoint_type")]}


@dataclass(frozen=True)
class GlanceOptions(OptionGroup):
    """Options of the download of images, without those of keystoneauth."""

    GROUP: ClassVar[str] = "glance"

    num_retries: int = option(
        cfg.IntOpt,
        default=0,
        min=0,
        help="Number of times that an agent retries a failed download of an image. Raise "
        "it if the connection to Glance is unreliable. After these retries the conductor "
        "repeats the operation until its deadline.",
    )
    max_image_size: int = option(
        cfg.IntOpt,
        default=1 << 30,
        min=1,
        help="Maximum size, in bytes, of an image that an agent downloads to load it into "
        "a device. An agent needs this much free space below state_path for each image "
        "that it loads at the same time. Raise it when a bind fails because its image is "
        "larger.",
    )
    verify_image_signatures: bool = option(
        cfg.BoolOpt,
        default=False,
        help="Load only images that are signed. If true, an image needs the properties "
        "img_signature, img_signature_hash_method, img_signature_key_type and "
        "img_signature_certificate_uuid, and the certificate must be in "
        "image_certificates. Any other image is refused, and its bind or programming "
        "fails. If false, the agent verifies size and hash only, and the hash comes from "
        "Glance. Sign all images that device profiles name before you set it to true.",
    )
    image_certificates: str = option(
        cfg.StrOpt,
        default="/etc/cyborg/image-certificates",
        help="Directory of this compute host with the certificates whose signatures count "
        "if verify_image_signatures is true: one X.509 certificate in PEM in each file, "
        "with the name <img_signature_certificate_uuid>.pem. Only root may be able to "
        "change the directory, all directories above it and the files. The agent reads "
        "the files for each image.",
    )


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of all groups on ``conf``; a second call has no effect."""
    for group, service_type in _SERVICE_TYPES.items():
        loading.register_session_conf_options(conf, group, deprecated_opts=_older_session(group))
        loading.register_auth_conf_options(conf, group)
        if service_type is not None:
            loading.register_adapter_conf_options(
                conf, group, include_deprecated=False, deprecated_opts=_OLDER_ADAPTER
            )
            conf.set_default("service_type", service_type, group=group)
            conf.set_default("valid_interfaces", list(_INTERFACES), group=group)
        conf.register_opts(_own(group), group=group)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options that ``register_opts`` registers, and those of password authentication.

    The latter are for the sample generator: keystoneauth registers the options of a plug-in only
    after ``auth_type`` has named it.
    """
    listed: list[tuple[str, list[cfg.Opt]]] = []
    for group, service_type in _SERVICE_TYPES.items():
        options = list(loading.get_session_conf_options(deprecated_opts=_older_session(group)))
        options += loading.get_auth_common_conf_options()
        options += loading.get_auth_plugin_conf_options("password")
        if service_type is not None:
            adapter = loading.get_adapter_conf_options(
                include_deprecated=False, deprecated_opts=_OLDER_ADAPTER
            )
            cfg.set_defaults(adapter, service_type=service_type, valid_interfaces=list(_INTERFACES))
            options += [option for option in adapter if option.name not in _HIDDEN]
        listed.append((group, _own(group) + sorted(options, key=lambda option: option.name)))
    return listed


def _own(group: str) -> list[cfg.Opt]:
    """Return new option objects of a group, without those of keystoneauth."""
    if group == "glance":
        return GlanceOptions.options()
    if group == "service_user":
        return [
            cfg.BoolOpt(
                "send_service_user_token",
                default=False,
                help="Send a token of this account to Glance in addition to the caller's token.",
                deprecated_for_removal=True,
                deprecated_since="18.0.0",
                deprecated_reason="It no longer has any effect: the agent does not send callers' "
                "tokens to Glance. It uses the account in [glance] or, if that group has none, "
                "this account.",
            ),
        ]
    return []


def _older_session(group: str) -> dict[str, list[cfg.DeprecatedOpt]] | None:
    """Return the older names of session options, which existing files may contain."""
    if group != "glance":
        return None
    return {
        "insecure": [cfg.DeprecatedOpt("api_insecure", group="glance")],
        "cafile": [cfg.DeprecatedOpt("ca_file", group="ssl")],
        "certfile": [cfg.DeprecatedOpt("cert_file", group="ssl")],
        "keyfile": [cfg.DeprecatedOpt("key_file", group="ssl")],
    }


def set_auth_token_defaults() -> None:
    """Require a service role in every service token, unless the operator changes the option.

    A bind is authorized by its service token, so the token of an ordinary project member must not
    be accepted as one. Code that builds the middleware calls this function first. The entry point
    ``oslo.config.opts.defaults`` calls it too, so that sample files show the right default.
    """
    # Only the API needs the middleware, and its import takes longer than any other.
    import keystonemiddleware.auth_token

    cfg.set_defaults(keystonemiddleware.auth_token._opts._OPTS, service_token_roles_required=True)
