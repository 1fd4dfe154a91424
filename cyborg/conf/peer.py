# SPDX-License-Identifier: Apache-2.0
"""The keystoneauth options with which this service reaches another OpenStack service.

The groups [placement], [nova], [glance] and [service_user] share these options: those of the
session, of the authentication plug-in and, except for [service_user], of the adapter that looks up
the endpoint in the catalogue.
"""

from keystoneauth1 import loading
from oslo_config import cfg

INTERFACES = ["internal", "public"]

# The clients request the versions that they need; a configured version would break their paths.
_HIDDEN = {"version", "min-version", "max-version"}


def _older() -> dict[str, list[cfg.DeprecatedOpt]]:
    """Return older names of the adapter's options; kolla-ansible writes ``endpoint_type``."""
    return {"valid-interfaces": [cfg.DeprecatedOpt("endpoint_type")]}


def register(
    conf: cfg.ConfigOpts,
    group: str,
    service_type: str | None = None,
    *,
    deprecated: dict[str, list[cfg.DeprecatedOpt]] | None = None,
) -> None:
    """Register the options of a peer in ``group``; without a service type no adapter options.

    ``deprecated`` maps session options to their older names. A second call has no effect.
    """
    loading.register_session_conf_options(conf, group, deprecated_opts=deprecated)
    loading.register_auth_conf_options(conf, group)
    if service_type is not None:
        loading.register_adapter_conf_options(
            conf, group, include_deprecated=False, deprecated_opts=_older()
        )
        conf.set_default("service_type", service_type, group=group)
        conf.set_default("valid_interfaces", INTERFACES, group=group)


def options(
    service_type: str | None = None,
    *,
    deprecated: dict[str, list[cfg.DeprecatedOpt]] | None = None,
) -> list[cfg.Opt]:
    """Return the options that ``register`` registers, and those of password authentication.

    The latter are for the sample generator: keystoneauth registers the options of a plug-in only
    after ``auth_type`` has named it.
    """
    peer_options = list(loading.get_session_conf_options(deprecated_opts=deprecated))
    peer_options += loading.get_auth_common_conf_options()
    peer_options += loading.get_auth_plugin_conf_options("password")
    if service_type is not None:
        adapter = loading.get_adapter_conf_options(
            include_deprecated=False, deprecated_opts=_older()
        )
        cfg.set_defaults(adapter, service_type=service_type, valid_interfaces=INTERFACES)
        peer_options += [option for option in adapter if option.name not in _HIDDEN]
    return sorted(peer_options, key=lambda option: option.name)
