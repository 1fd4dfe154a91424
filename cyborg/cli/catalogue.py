# SPDX-License-Identifier: Apache-2.0
"""All commands with their names in the ``cyborg`` program and in the ``openstack`` client.

The entry points for the ``openstack`` client are in setup.cfg. A command has no name there where
python-cyborgclient or python-openstackclient has a command for the same purpose.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cyborg.cli import accelerators, arqs, drivers, events, operations, profiles, services
from cyborg.cli.base import BaseCommand


@dataclass(frozen=True)
class CommandEntry:
    """A command; ``openstack_name`` follows ``openstack``, empty for a command without one."""

    command: type[BaseCommand]
    openstack_name: str = ""


COMMANDS: Final[Mapping[str, CommandEntry]] = {
    "service-list": CommandEntry(services.ServiceList, "accelerator service list"),
    "service-show": CommandEntry(services.ServiceShow, "accelerator service show"),
    "service-enable": CommandEntry(services.ServiceEnable, "accelerator service enable"),
    "service-disable": CommandEntry(services.ServiceDisable, "accelerator service disable"),
    "service-delete": CommandEntry(services.ServiceDelete, "accelerator service delete"),
    "backend-list": CommandEntry(drivers.BackendList, "accelerator backend list"),
    "backend-show": CommandEntry(drivers.BackendShow, "accelerator backend show"),
    "driver-list": CommandEntry(drivers.DriverList, "accelerator driver list"),
    "driver-show": CommandEntry(drivers.DriverShow, "accelerator driver show"),
    "install-driver": CommandEntry(drivers.DriverInstall, "accelerator driver install"),
    "uninstall-driver": CommandEntry(drivers.DriverUninstall, "accelerator driver uninstall"),
    "update-driver": CommandEntry(drivers.DriverUpdate, "accelerator driver update"),
    "discover-services": CommandEntry(services.ServiceDiscover, "accelerator discover"),
    "hardware-list": CommandEntry(drivers.HardwareList, "accelerator hardware list"),
    "hardware-show": CommandEntry(drivers.HardwareShow, "accelerator hardware show"),
    "accelerator-list": CommandEntry(accelerators.AcceleratorList, "accelerator list"),
    "accelerator-show": CommandEntry(accelerators.AcceleratorShow, "accelerator show"),
    "accelerator-create": CommandEntry(accelerators.AcceleratorCreate, "accelerator create"),
    "accelerator-update": CommandEntry(accelerators.AcceleratorUpdate, "accelerator update"),
    "accelerator-delete": CommandEntry(accelerators.AcceleratorDelete, "accelerator delete"),
    "profile-list": CommandEntry(profiles.ProfileList),
    "profile-show": CommandEntry(profiles.ProfileShow),
    "profile-create": CommandEntry(profiles.ProfileCreate),
    "profile-update": CommandEntry(profiles.ProfileUpdate, "accelerator device profile update"),
    "profile-delete": CommandEntry(profiles.ProfileDelete),
    "arq-list": CommandEntry(arqs.ArqList),
    "arq-show": CommandEntry(arqs.ArqShow),
    "operation-list": CommandEntry(operations.OperationList, "accelerator operation list"),
    "operation-show": CommandEntry(operations.OperationShow, "accelerator operation show"),
    "event-list": CommandEntry(events.EventList, "accelerator event list"),
    "attach-instance": CommandEntry(arqs.InstanceAttach, "accelerator attach"),
    "detach-instance": CommandEntry(arqs.InstanceDetach, "accelerator detach"),
    "usage-show": CommandEntry(drivers.UsageShow, "accelerator usage show"),
}
