# SPDX-License-Identifier: Apache-2.0
"""The options with which keystoneauth reaches another service, for the groups that need them.

The groups [placement], [nova], [glance] and [service_user] share this one shape: session, plug-in
of authentication and, but for the last, the adapter that finds the endpoint in the catalogue.
"""

from keystoneauth1 import loading
from oslo_config import cfg

INTERFACES = ["internal", "public"]

# A version here would only break the paths that the clients build; they ask for what they need.
_HIDDEN = {"version", "min-version", "max-version"}


def _older() -> dict[str, list[cfg.DeprecatedOpt]]:
    """Older names of the adapter's options; kolla-ansible writes this one."""
    return {"valid-interfaces": [cfg.DeprecatedOpt("endpoint_type")]}


def register(
    conf: cfg.ConfigOpts,
    group: str,
    service_type: str | None = None,
    *,
    deprecated: dict[str, list[cfg.DeprecatedOpt]] | None = None,
) -> None:
    """Register the options of a peer in ``group``; no adapter when there is no service type.

    ``deprecated`` gives older names of session options. Calling twice does no harm.
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
    """Return what ``register`` registers, and the options of password authentication.

    The latter are here for the sample generator: keystoneauth registers a plug-in's options
    only when ``auth_type`` has named it.
    """
    found = list(loading.get_session_conf_options(deprecated_opts=deprecated))
    found += loading.get_auth_common_conf_options()
    found += loading.get_auth_plugin_conf_options("password")
    if service_type is not None:
        adapter = loading.get_adapter_conf_options(
            include_deprecated=False, deprecated_opts=_older()
        )
        cfg.set_defaults(adapter, service_type=service_type, valid_interfaces=INTERFACES)
        found += [option for option in adapter if option.name not in _HIDDEN]
    return sorted(found, key=lambda option: option.name)
