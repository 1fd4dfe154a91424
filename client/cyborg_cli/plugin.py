# SPDX-License-Identifier: Apache-2.0
"""The plug-in of the ``openstack`` client, which imports this module by its entry point.

The API name is ``cyborg``, because ``accelerator`` is the API name of python-cyborgclient's plug-in
and of python-openstackclient's own commands. All of them can be installed together.
"""

import argparse
from typing import Any, Final

from keystoneauth1.adapter import Adapter

from cyborg_cli import base
from cyborg_cli.client import SERVICE_TYPE, Client, requested_microversion
from cyborg_cli.compute import Compute, compute_adapter

API_NAME: Final = base.CLIENT_ATTRIBUTE
API_VERSION_OPTION: Final = "os_cyborg_api_version"
API_VERSIONS: Final = ("2",)
DEFAULT_API_VERSION: Final = "2"


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return the parser unchanged: the client has ``--os-accelerator-api-version`` already."""
    return parser


def make_client(instance: Any) -> Client:
    """Return a client of the service with the session of the client manager ``instance``."""

    def connect() -> tuple[Adapter, str]:
        adapter = Adapter(
            instance.session,
            service_type=SERVICE_TYPE,
            interface=instance.interface,
            region_name=instance.region_name,
            endpoint_override=instance._cli_options.get_endpoint(SERVICE_TYPE),
        )
        return adapter, requested_microversion(instance._cli_options)

    def connect_compute() -> Adapter:
        return compute_adapter(instance.session, instance._cli_options)

    return Client(connect, compute=Compute(connect_compute))
