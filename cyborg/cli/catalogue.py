# SPDX-License-Identifier: Apache-2.0
"""All commands: what ``cyborg`` calls them, and what the ``openstack`` client does.

The entry points of the latter are in setup.cfg. It has no name where python-cyborgclient or
python-openstackclient bring a command of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cyborg.cli import accelerators, arqs, drivers, events, operations, profiles, services
from cyborg.cli.base import Spoken


@dataclass(frozen=True)
class Entry:
    """A command; ``plugin`` is its name after ``openstack``, empty where it is not one."""

    kind: type[Spoken]
    plugin: str = ""


COMMANDS: Final[Mapping[str, Entry]] = {
    "service-list": Entry(services.ServiceList, "accelerator service list"),
    "service-show": Entry(services.ServiceShow, "accelerator service show"),
    "service-enable": Entry(services.ServiceEnable, "accelerator service enable"),
    "service-disable": Entry(services.ServiceDisable, "accelerator service disable"),
    "service-delete": Entry(services.ServiceDelete, "accelerator service delete"),
    "backend-list": Entry(drivers.BackendList, "accelerator backend list"),
    "backend-show": Entry(drivers.BackendShow, "accelerator backend show"),
    "driver-list": Entry(drivers.DriverList, "accelerator driver list"),
    "driver-show": Entry(drivers.DriverShow, "accelerator driver show"),
    "install-driver": Entry(drivers.DriverInstall, "accelerator driver install"),
    "uninstall-driver": Entry(drivers.DriverUninstall, "accelerator driver uninstall"),
    "update-driver": Entry(drivers.DriverUpdate, "accelerator driver update"),
    "discover-services": Entry(services.Discover, "accelerator discover"),
    "hardware-list": Entry(drivers.HardwareList, "accelerator hardware list"),
    "hardware-show": Entry(drivers.HardwareShow, "accelerator hardware show"),
    "accelerator-list": Entry(accelerators.AcceleratorList, "accelerator list"),
    "accelerator-show": Entry(accelerators.AcceleratorShow, "accelerator show"),
    "accelerator-create": Entry(accelerators.AcceleratorCreate, "accelerator create"),
    "accelerator-update": Entry(accelerators.AcceleratorUpdate, "accelerator update"),
    "accelerator-delete": Entry(accelerators.AcceleratorDelete, "accelerator delete"),
    "profile-list": Entry(profiles.ProfileList),
    "profile-show": Entry(profiles.ProfileShow),
    "profile-create": Entry(profiles.ProfileCreate),
    "profile-update": Entry(profiles.ProfileUpdate, "accelerator device profile update"),
    "profile-delete": Entry(profiles.ProfileDelete),
    "arq-list": Entry(arqs.ArqList),
    "arq-show": Entry(arqs.ArqShow),
    "operation-list": Entry(operations.OperationList, "accelerator operation list"),
    "operation-show": Entry(operations.OperationShow, "accelerator operation show"),
    "event-list": Entry(events.EventList, "accelerator event list"),
    "attach-instance": Entry(arqs.Attach, "accelerator attach"),
    "detach-instance": Entry(arqs.Detach, "accelerator detach"),
    "usage-show": Entry(drivers.UsageShow, "accelerator usage show"),
}
