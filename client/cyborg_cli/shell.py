# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg`` program: the commands for operators and users of accelerators.

Exit status: 0 for success, 1 if something failed (also an operation on one of its hosts), 2 for a
wrong command line, 3 if profile-apply has changed profiles or would change them, 130 for an
interrupted command.
"""

import argparse
import importlib.metadata
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TextIO

from cliff.app import App
from cliff.commandmanager import CommandManager
from keystoneauth1.adapter import Adapter
from openstack import exceptions as sdk_exceptions
from openstack.config import OpenStackConfig

from cyborg_cli import (
    arqs,
    capacity,
    devices,
    drains,
    drivers,
    exception,
    faults,
    instance_moves,
    operations,
    profile_sync,
    profiles,
    services,
    usage,
    watching,
)
from cyborg_cli.base import BaseCommand
from cyborg_cli.client import SERVICE_TYPE, Client, requested_microversion
from cyborg_cli.compute import Compute, compute_adapter
from cyborg_cli.text import escaped

PROG: Final = "cyborg"
DISTRIBUTION: Final = "openstack-cyborg-cli"
_LEVELS: Final = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


@dataclass(frozen=True)
class CommandEntry:
    """A command; ``openstack_name`` follows ``openstack``, empty for a command without one."""

    command: type[BaseCommand]
    openstack_name: str = ""


#: All commands by name. Their entry points for the ``openstack`` client are in client/setup.cfg. A
#: command has no name there where python-cyborgclient or python-openstackclient has a command for
#: the same purpose.
COMMANDS: Final[Mapping[str, CommandEntry]] = {
    "service-list": CommandEntry(services.ServiceList, "accelerator service list"),
    "service-show": CommandEntry(services.ServiceShow, "accelerator service show"),
    "service-enable": CommandEntry(services.ServiceEnable, "accelerator service enable"),
    "service-disable": CommandEntry(services.ServiceDisable, "accelerator service disable"),
    "host-drain": CommandEntry(drains.HostDrain, "accelerator host drain"),
    "host-resume": CommandEntry(drains.HostResume, "accelerator host resume"),
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
    "accelerator-list": CommandEntry(devices.AcceleratorList, "accelerator list"),
    "accelerator-show": CommandEntry(devices.AcceleratorShow, "accelerator show"),
    "accelerator-create": CommandEntry(devices.AcceleratorCreate, "accelerator create"),
    "accelerator-update": CommandEntry(devices.AcceleratorUpdate, "accelerator update"),
    "accelerator-drain": CommandEntry(drains.AcceleratorDrain, "accelerator drain"),
    "accelerator-resume": CommandEntry(drains.AcceleratorResume, "accelerator resume"),
    "accelerator-delete": CommandEntry(devices.AcceleratorDelete, "accelerator delete"),
    "profile-list": CommandEntry(profiles.ProfileList),
    "profile-show": CommandEntry(profiles.ProfileShow),
    "profile-explain": CommandEntry(profiles.ProfileExplain, "accelerator device profile explain"),
    "profile-create": CommandEntry(profiles.ProfileCreate),
    "profile-update": CommandEntry(profiles.ProfileUpdate, "accelerator device profile update"),
    "profile-delete": CommandEntry(profiles.ProfileDelete),
    "profile-apply": CommandEntry(profile_sync.ProfileApply, "accelerator device profile apply"),
    "profile-export": CommandEntry(profile_sync.ProfileExport, "accelerator device profile export"),
    "arq-list": CommandEntry(arqs.ArqList),
    "arq-show": CommandEntry(arqs.ArqShow),
    "operation-list": CommandEntry(operations.OperationList, "accelerator operation list"),
    "operation-show": CommandEntry(operations.OperationShow, "accelerator operation show"),
    "event-list": CommandEntry(operations.EventList, "accelerator event list"),
    "attach-instance": CommandEntry(arqs.InstanceAttach, "accelerator attach"),
    "detach-instance": CommandEntry(arqs.InstanceDetach, "accelerator detach"),
    "watch": CommandEntry(watching.Watch, "accelerator watch"),
    "top": CommandEntry(watching.Top, "accelerator top"),
    "instance-move": CommandEntry(instance_moves.InstanceMove, "accelerator instance move"),
    "capacity": CommandEntry(capacity.CapacityShow, "accelerator capacity show"),
    "limits-show": CommandEntry(drivers.LimitsShow, "accelerator limits show"),
    "usage-show": CommandEntry(usage.UsageShow, "accelerator usage show"),
    "usage-list": CommandEntry(usage.UsageList, "accelerator usage list"),
}


class ClientManager:
    """The object at which commands look up their client, in the attribute CLIENT_ATTRIBUTE."""

    def __init__(self, client: Client) -> None:
        self.cyborg = client


class ConsoleFormatter(logging.Formatter):
    """Formats records without characters that a terminal obeys; ``--debug`` logs whole answers."""

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


class Shell(App):
    """The program; it takes clouds and credentials like other OpenStack clients."""

    NAME = PROG
    LOG = logging.getLogger(PROG)
    options: argparse.Namespace

    def __init__(
        self,
        argv: Sequence[str],
        *,
        pause: Callable[[float], object],
        stdout: TextIO | None,
        stderr: TextIO | None,
    ) -> None:
        release = importlib.metadata.version(DISTRIBUTION)
        self._config = OpenStackConfig(app_name=PROG, app_version=release)
        self._argv = list(argv)
        self._handlers: list[logging.Handler] = []
        self.client_manager = ClientManager(
            Client(self._connect, compute=Compute(self._connect_compute), pause=pause)
        )
        commands = CommandManager("cyborg.cli", convert_underscores=False)
        for name, entry in COMMANDS.items():
            commands.add_command(name, entry.command)
        super().__init__(
            "Manage accelerators in OpenStack clouds.",
            release,
            commands,
            stdout=stdout,
            stderr=stderr,
            deferred_help=True,
        )

    def build_option_parser(
        self,
        description: str | None,
        version: str | None,
        argparse_kwargs: dict[str, Any] | None = None,
    ) -> argparse.ArgumentParser:
        """Return the parser with cliff's options and those for clouds and credentials."""
        parser = super().build_option_parser(description, version, argparse_kwargs)
        self._config.register_argparse_arguments(parser, self._argv, [SERVICE_TYPE])
        return parser

    def configure_logging(self) -> None:
        """Log warnings and errors to the error output, and more with each ``-v``."""
        level = _LEVELS[min(self.options.verbose_level, len(_LEVELS) - 1)]
        if self.options.debug:
            level = logging.DEBUG
        console = logging.StreamHandler(self.stderr)
        console.setFormatter(ConsoleFormatter("%(message)s"))
        self._handlers.append(console)
        if self.options.log_file:
            file = logging.FileHandler(self.options.log_file)
            file.setFormatter(logging.Formatter(self.LOG_FILE_MESSAGE_FORMAT))
            self._handlers.append(file)
        root = logging.getLogger()
        root.setLevel(min(level, logging.WARNING))
        for handler in self._handlers:
            handler.setLevel(level)
            root.addHandler(handler)

    def interact(self) -> None:
        """Print the help: the program has no interactive mode."""
        self.run_subcommand(["help"])

    def remove_log_handlers(self) -> None:
        """Remove the handlers that configure_logging added to the root logger."""
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()

    def _connect(self) -> tuple[Adapter, str]:
        region = self._config.get_one(argparse=self.options)
        adapter = Adapter(
            region.get_session(),
            service_type=SERVICE_TYPE,
            interface=region.get_interface(SERVICE_TYPE),
            region_name=region.get_region_name(SERVICE_TYPE),
            endpoint_override=region.get_endpoint(SERVICE_TYPE)
            or region.config.get("endpoint_override"),
        )
        return adapter, requested_microversion(region)

    def _connect_compute(self) -> Adapter:
        region = self._config.get_one(argparse=self.options)
        return compute_adapter(region.get_session(), region)


def main(
    argv: Sequence[str] | None = None,
    *,
    pause: Callable[[float], object] = time.sleep,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Run one command; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        shell = Shell(arguments, pause=pause, stdout=stdout, stderr=stderr)
    except sdk_exceptions.ConfigException as error:
        failure: exception.CommandFailed = faults.unusable_credentials(error)
        (stderr or sys.stderr).write(f"{failure}\n")
        return 1
    try:
        return shell.run(arguments)
    finally:
        shell.remove_log_handlers()


if __name__ == "__main__":
    sys.exit(main())
