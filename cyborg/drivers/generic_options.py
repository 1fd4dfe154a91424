# SPDX-License-Identifier: Apache-2.0
"""Read and validate the backends of the generic_driver from the configuration."""

import re
from dataclasses import fields
from itertools import combinations
from typing import Any, NoReturn

from oslo_config import cfg

from cyborg import conf as configuration
from cyborg import exception
from cyborg.conf import generic as options
from cyborg.drivers import generic_match
from cyborg.drivers.catalogue import Catalogue, Entry
from cyborg.drivers.device_options import (
    Description,
    Reset,
    UnitScope,
    member_of,
    parse,
    parse_backend_name,
    parse_list,
    parse_optional,
    parse_text,
    read_description,
    word_of,
)
from cyborg.drivers.generic_backend import Commands, GenericBackend, StateFiles
from cyborg.drivers.generic_match import Selector
from cyborg.drivers.host import Host
from cyborg.drivers.local_command import FilePath, LocalCommand, is_service_name
from cyborg.drivers.local_settings import untrusted_source
from cyborg.drivers.vf_layout import parse_layout
from cyborg.drivers.whitelist import network_name
from cyborg.model.cleaning import CleanLevel
from cyborg.model.device import AttachType, DeviceType

_MDEV_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_CLASS_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
#: Options that each name a program that is run.
COMMANDS = frozenset(f"{field.name}_command" for field in fields(Commands))
#: Options that select devices by what they are.
_KINDS = frozenset({"pci_ids", "subsystem_ids", "pci_classes"})
#: Options that REST requests may set: the sections in use, the kinds of their devices, and how
#: these are described. Missing are those that name devices, commands or files, that divide cards or
#: connect guests to a network, and that decide how devices are cleaned.
REMOTE_OPTIONS = _KINDS | {
    "attach_type",
    "backends",
    "capabilities",
    "device_type",
    "kind",
    "mdev_type",
    "model",
    "remote_units",
    "resource_class",
    "services",
    "traits",
    "unit",
    "unit_functions",
    "units",
    "vendor",
}
_SELECTOR_OPTIONS = "pci_ids, subsystem_ids, pci_classes, addresses, sysfs_class or devices"
_DEVICE = ("address",)
_UNIT = ("address", "handle", "uuid")
_PROGRAM = ("address", "image")
_SERVICE = ("service",)


def read(conf: cfg.ConfigOpts, host: Host, catalogue: Catalogue) -> tuple[GenericBackend, ...]:
    """Return the backends in the order of ``[generic_driver] backends``, then the enabled entries.

    The enabled entries are those that say so in a file of ``[generic_driver] devices_dir``. The
    function registers the options of each backend. Raises exception.ConfigError with one sentence
    that contains option and value.
    """
    names: list[str] = list(dict.fromkeys(configuration.read(conf, "backends", options.GROUP)))
    for name in names:
        try:
            parse_backend_name(name)
        except ValueError as error:
            _invalid("backends", options.GROUP, name, str(error))
    names += [name for name in catalogue.enabled if name not in names]
    backends = tuple(
        _Section(conf, host, name, catalogue.named.get(name)).backend() for name in names
    )
    for first, second in combinations(backends, 2):
        if first.selector.is_ambiguous_with(second.selector):
            reason = (
                f"[generic_driver:{first.name}] has it, too, and their pci_ids are not different"
            )
            group = options.group_of(second.name)
            _invalid("sysfs_class", group, conf[group].sysfs_class, reason)
    return backends


class _Section:
    """Reads and validates the section of one backend, a ``device_options.Source``.

    ``entry`` is the entry of the device catalogue with the name of the backend: it has the value of
    each option that the section does not set.
    """

    def __init__(self, conf: cfg.ConfigOpts, host: Host, name: str, entry: Entry | None) -> None:
        self._conf = conf
        self._host = host
        self._name = name
        self._entry = entry
        self._group = options.group_of(name)
        opts = options.backend_options()
        self._defaults = {opt.name: opt.default for opt in opts}
        conf.register_opts(opts, group=self._group)

    def backend(self) -> GenericBackend:
        """Return the backend that the section and the entry describe."""
        description = read_description(self)
        device_type = description.device_type or DeviceType.PCI
        attach_type = parse(self, "attach_type", member_of(AttachType))
        if description.resource_class is None:
            hint = "" if self._entry else f"; the device catalogue has no entry named {self._name}"
            reason = f"Option [{self._group}] resource_class must be set{hint}."
            raise exception.ConfigError(reason=reason)
        units: int = self.value("units")
        if units > 1 and attach_type is AttachType.PCI:
            self.invalid("units", "a whole PCI function is one unit")
        remote_units: int = self.value("remote_units")
        if remote_units > units:
            self.invalid("remote_units", f"a device has only {units} unit(s), see option units")
        mdev_type = parse_optional(
            self, "mdev_type", word_of(_MDEV_TYPE, "it is not the type of a mediated device")
        )
        if (mdev_type is not None) is not (attach_type is AttachType.MDEV):
            self.invalid("mdev_type", "it must be set with attach_type MDEV, and only with it")
        network = parse_optional(self, "physical_network", network_name)
        if network is not None and attach_type is not AttachType.PCI:
            self.invalid(
                "physical_network", "only a whole PCI function can be attached to a port of Neutron"
            )
        vfs = parse_optional(self, "layout", parse_layout)
        if vfs is not None and attach_type is not AttachType.PCI:
            self.invalid("layout", f"it requires attach_type PCI, not {attach_type}")
        commands = self._commands()
        if description.unit is not UnitScope.FUNCTION:
            self._check_unit(attach_type, commands)
        return GenericBackend(
            name=self._name,
            resource_class=description.resource_class,
            selector=self._selector(description),
            traits=description.traits,
            device_type=device_type,
            kind=description.kind or device_type.value,
            attach_type=attach_type,
            units=units,
            mdev_type=mdev_type,
            physical_network=network,
            vendor=description.vendor,
            model=description.model,
            services=parse(self, "services", _parse_services),
            capabilities=description.capabilities,
            remote_units=remote_units,
            reset=description.reset,
            reset_after_release=self._reset_after_release(description, attach_type),
            clean=parse_optional(self, "clean", CleanLevel),
            commands=commands,
            unit=description.unit,
            group_size=description.group_size,
            vfs=vfs,
            state_files=self._state_files(units),
        )

    def _reset_after_release(self, description: Description, attach_type: AttachType) -> bool:
        requested: bool = self.value("reset_after_release")
        if not requested:
            return False
        if attach_type is not AttachType.PCI:
            self.invalid("reset_after_release", "only whole PCI functions can be reset")
        if description.reset not in (Reset.FUNCTION, Reset.BUS):
            self.invalid("reset_after_release", "it requires option reset, FUNCTION or BUS")
        if description.reset is Reset.BUS and description.unit is UnitScope.CARD:
            self.invalid(
                "reset_after_release", "the kernel resets the bus of a card with one function only"
            )
        return True

    def _check_unit(self, attach_type: AttachType, commands: Commands) -> None:
        """Refuse a unit of several functions with options that are about one function."""
        if attach_type is not AttachType.PCI:
            self.invalid("unit", f"it requires attach_type PCI, not {attach_type}")
        if self.value("sysfs_class") is not None:
            self.invalid(
                "unit",
                "a function leaves the directory of its sysfs_class when a guest gets it; select "
                "the functions of a unit by the other options",
            )
        if commands.stats is not None:
            self.invalid("unit", "stats_command measures one function")
        if self.value("layout") is not None:
            self.invalid("unit", "the virtual functions of option layout are no parts of a unit")
        if self.value("physical_network") is not None:
            self.invalid("unit", "Neutron attaches one function to a port; see physical_network")

    def value(self, option: str) -> Any:
        """See device_options.Source."""
        value = configuration.read(self._conf, option, self._group)
        if self._entry is not None and value == self._defaults[option]:
            return self._entry.options.get(option, value)
        return value

    def invalid(self, option: str, reason: str) -> NoReturn:
        """See device_options.Source."""
        _invalid(option, self._group, self.value(option), reason)

    def _selector(self, description: Description) -> Selector:
        selector = Selector(
            ids=description.ids,
            subsystems=description.subsystems,
            classes=description.classes,
            addresses=parse_list(self, "addresses", generic_match.parse_address_pattern),
            sysfs_class=parse_optional(
                self,
                "sysfs_class",
                word_of(_CLASS_NAME, "it is not the name of a directory below /sys/class"),
            ),
            fixed=parse_list(self, "devices", generic_match.parse_address),
        )
        if selector == Selector():
            reason = f"Section [{self._group}] must set {_SELECTOR_OPTIONS}."
            raise exception.ConfigError(reason=reason)
        if selector.fixed and selector != Selector(fixed=selector.fixed):
            self.invalid("devices", "a fixed list excludes the other options that select devices")
        return selector

    def _commands(self) -> Commands:
        commands = Commands(
            install=self._command("install_command", "install_timeout", _DEVICE),
            prepare=self._command("prepare_command", "command_timeout", _UNIT),
            release=self._command("release_command", "command_timeout", _UNIT),
            reset=self._command("reset_command", "command_timeout", _UNIT),
            program=self._command("program_command", "program_timeout", _PROGRAM),
            ready=self._command("ready_command", "check_timeout", _DEVICE),
            health=self._command("health_command", "check_timeout", _DEVICE),
            stats=self._command("stats_command", "check_timeout", _DEVICE),
            service=self._command("service_command", "check_timeout", _SERVICE),
        )
        if commands.service and self.value("service_file"):
            self.invalid("service_command", "it excludes service_file, which has the same purpose")
        if commands.service:
            self._check_service_names("service_command", commands.service.placeholders)
        if commands.ready and self.value("ready_file"):
            self.invalid("ready_command", "it excludes ready_file, which has the same purpose")
        if commands.program and "image" not in commands.program.placeholders:
            self.invalid("program_command", "it must contain {image}")
        if commands.install and not commands.ready and not self.value("ready_file"):
            self.invalid("install_command", "it requires ready_file or ready_command")
        for option in sorted(_KINDS):
            source = self._conf.get_location(option, self._group)
            overridden = source is not None and source.location is cfg.Locations.set_override
            if overridden and commands != Commands():
                self.invalid(
                    option,
                    "this section has commands, so only the configuration files of the host can "
                    "select the devices on which they run",
                )
        return commands

    def _command(self, option: str, timeout: str, allowed: tuple[str, ...]) -> LocalCommand | None:
        seconds: float = self.value(timeout)
        if self.value(option) is None:
            return None
        reason = untrusted_source(self._conf, self._host, option, self._group)
        if reason is not None:
            self.invalid(
                option,
                f"a command must be in a configuration file that only root can change{reason}",
            )
        return parse(self, option, lambda text: LocalCommand.parse(text, seconds, allowed))

    def _state_files(self, units: int) -> StateFiles:
        files = StateFiles(
            ready=self._path("ready_file", _DEVICE),
            reboot=self._path("reboot_file", _DEVICE),
            prepared=self._path("prepared_file", ("address", "handle")),
            service=self._path("service_file", _SERVICE),
        )
        if files.service is not None:
            self._check_service_names("service_file", files.service.template.placeholders)
        if files.prepared is not None:
            placeholders = files.prepared.template.placeholders
            if "handle" not in placeholders and (units > 1 or not placeholders):
                self.invalid("prepared_file", "it must contain {handle} to distinguish the units")
        return files

    def _check_service_names(self, option: str, placeholders: frozenset[str]) -> None:
        """Refuse an option that cannot distinguish the services of this backend."""
        names: list[str] = self.value("services")
        if not names:
            self.invalid(option, "option services is empty")
        if "service" not in placeholders and len(names) > 1:
            self.invalid(option, "it must contain {service} to distinguish the services")
        for name in names:
            if "service" in placeholders and not is_service_name(name):
                self.invalid(
                    "services",
                    f"{name!r} cannot replace {{service}} in {option}: the name of a service "
                    "has 1 to 64 letters, digits and . _ @ -",
                )

    def _path(self, option: str, allowed: tuple[str, ...]) -> FilePath | None:
        return parse_optional(self, option, lambda text: FilePath.parse(text, allowed))


def _invalid(option: str, group: str, value: Any, reason: str) -> NoReturn:
    text = ", ".join(value) if isinstance(value, list) else value
    raise exception.ConfigError(reason=f"Option [{group}] {option} cannot be {text!r}: {reason}.")


def _parse_services(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is there twice")
    return tuple(map(parse_text, names))
