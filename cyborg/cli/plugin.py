# SPDX-License-Identifier: Apache-2.0
"""The same commands in the ``openstack`` client, which imports this module by its entry point.

``accelerator`` is the name of python-cyborgclient's plug-in, and of python-openstackclient's own
commands; this one stands beside them.
"""

import argparse
from typing import Any, Final

from keystoneauth1.adapter import Adapter

from cyborg.cli import base
from cyborg.cli.client import SERVICE_TYPE, Client, chosen_version

API_NAME: Final = base.ATTRIBUTE
API_VERSION_OPTION: Final = "os_cyborg_api_version"
API_VERSIONS: Final = ("2",)
DEFAULT_API_VERSION: Final = "2"


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add no option: the client itself has ``--os-accelerator-api-version``."""
    return parser


def make_client(instance: Any) -> Client:
    """The service, with the session of the client manager."""

    def connect() -> tuple[Adapter, str]:
        adapter = Adapter(
            instance.session,
            service_type=SERVICE_TYPE,
            interface=instance.interface,
            region_name=instance.region_name,
            endpoint_override=instance._cli_options.get_endpoint(SERVICE_TYPE),
        )
        return adapter, chosen_version(instance._cli_options)

    return Client(connect)
