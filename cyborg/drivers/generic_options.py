# SPDX-License-Identifier: Apache-2.0
"""Read the backends of the generic_driver from the configuration, or say what is wrong with it."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

from oslo_config import cfg

from cyborg import conf as configuration
from cyborg import exception
from cyborg.conf import generic as options
from cyborg.drivers import generic_match
from cyborg.drivers.generic_backend import Commands, GenericBackend, Marks
from cyborg.drivers.generic_match import Selector
from cyborg.drivers.host import Host
from cyborg.drivers.local_command import FilePath, LocalCommand, is_service_name
from cyborg.drivers.whitelist import network_name
from cyborg.model.device import AttachType, DeviceType
from cyborg.model.provider import is_resource_class_name, is_trait_name

T = TypeVar("T")

_BACKEND = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MDEV_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
#: The width of the columns that keep what is shown.
_WIDE = 255
_KIND = re.compile(r"[A-Za-z0-9_]{1,64}")
#: What may only stand in the host's own files: each names a program that is run.
COMMANDS = frozenset(f"{one.name}_command" for one in fields(Commands))
_WAYS = "pci_ids, pci_classes, addresses, sysfs_class or devices"
_DEVICE = ("address",)
_UNIT = ("address", "handle", "uuid")
_PROGRAM = ("address", "image")
_SERVICE = ("service",)


def read(conf: cfg.ConfigOpts, host: Host) -> tuple[GenericBackend, ...]:
    """The backends in the order in which ``[generic_driver] backends`` names them.

    Registers the options of each. Raises exception.ConfigError with one sentence that names
    option and value.
    """
    names: list[str] = list(dict.fromkeys(configuration.read(conf, "backends", options.GROUP)))
    for name in names:
        if _BACKEND.fullmatch(name) is None:
            _refuse("backends", options.GROUP, name, "it is no name of letters, digits, - and _")
    found = tuple(_Section(conf, host, name).backend() for name in names)
    colliding = generic_match.colliding({one.name: one.selector for one in found})
    if colliding is not None:
        one, other = colliding
        reason = f"[generic_driver:{one}] has one too, and both do not have different pci_ids"
        group = options.group_of(other)
        _refuse("sysfs_class", group, conf[group].sysfs_class, reason)
    return found


class _Section:
    """The section of one backend."""

    def __init__(self, conf: cfg.ConfigOpts, host: Host, name: str) -> None:
        options.register_backend(conf, name)
        self._conf = conf
        self._host = host
        self._name = name
        self._group = options.group_of(name)

    def backend(self) -> GenericBackend:
        """All of it."""
        device_type = self._understood("device_type", _word(DeviceType))
        attach_type = self._understood("attach_type", _word(AttachType))
        units = self._units(attach_type)
        return GenericBackend(
            name=self._name,
            resource_class=self._resource_class(),
            selector=self._selector(),
            traits=self._each("traits", _trait),
            device_type=device_type,
            kind=self._optional("kind", _word_of_its_own) or device_type.value,
            attach_type=attach_type,
            units=units,
            mdev_type=self._mdev_type(attach_type),
            physical_network=self._physical_network(attach_type),
            vendor=self._optional("vendor", _shown),
            model=self._optional("model", _shown),
            services=self._understood("services", _services),
            capabilities=self._understood("capabilities", _json_object),
            remote_units=self._remote_units(units),
            commands=self._commands(),
            marks=self._marks(units),
        )

    def _selector(self) -> Selector:
        found = Selector(
            ids=self._each("pci_ids", generic_match.pci_id),
            classes=self._each("pci_classes", generic_match.class_code),
            addresses=self._each("addresses", generic_match.addresses),
            sysfs_class=self._optional("sysfs_class", generic_match.class_name),
            listed=self._each("devices", generic_match.one_address),
        )
        if found.is_empty:
            raise exception.ConfigError(reason=f"Section [{self._group}] must give {_WAYS}.")
        if found.is_mixed:
            self._refuse("devices", "a fixed list excludes every other way to choose")
        return found

    def _resource_class(self) -> str:
        name: str | None = self._value("resource_class")
        if name is None:
            reason = f"Option [{self._group}] resource_class must be given."
            raise exception.ConfigError(reason=reason)
        if not is_resource_class_name(name):
            self._refuse("resource_class", "it is no name of a resource class")
        return name

    def _units(self, attach_type: AttachType) -> int:
        units: int = self._value("units")
        if units > 1 and attach_type is AttachType.PCI:
            self._refuse("units", "a whole function is one unit")
        return units

    def _remote_units(self, units: int) -> int:
        remote: int = self._value("remote_units")
        if remote > units:
            self._refuse("remote_units", f"a device has only {units} unit(s), see units")
        return remote

    def _mdev_type(self, attach_type: AttachType) -> str | None:
        name = self._optional("mdev_type", _mdev)
        if (name is not None) is not (attach_type is AttachType.MDEV):
            self._refuse("mdev_type", "it goes with attach_type MDEV, and only with it")
        return name

    def _physical_network(self, attach_type: AttachType) -> str | None:
        name = self._optional("physical_network", network_name)
        if name is not None and attach_type is not AttachType.PCI:
            self._refuse("physical_network", "a port of Neutron gets a whole function only")
        return name

    def _commands(self) -> Commands:
        found = Commands(
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
        if found.service and self._value("service_file"):
            self._refuse("service_command", "service_file tells the same")
        if found.service:
            self._check_service_names("service_command", found.service.named)
        if found.ready and self._value("ready_file"):
            self._refuse("ready_command", "ready_file tells the same")
        if found.program and "image" not in found.program.named:
            self._refuse("program_command", "without {image} it has nothing to load")
        if found.install and not found.ready and not self._value("ready_file"):
            self._refuse("install_command", "neither ready_file nor ready_command tells its end")
        return found

    def _command(self, option: str, timeout: str, allowed: tuple[str, ...]) -> LocalCommand | None:
        seconds: float = self._value(timeout)
        if self._value(option) is None:
            return None
        reason = self._foreign(option)
        if reason is not None:
            self._refuse(
                option,
                f"a command must stand in a configuration file that root alone can change{reason}",
            )
        return self._understood(option, lambda text: LocalCommand.parse(text, seconds, allowed))

    def _foreign(self, option: str) -> str | None:
        """Why the value does not come from a file of this host that is root's alone, or None.

        What is kept below state_path was sent here: it is no configuration of this host.
        """
        place = self._conf.get_location(option, self._group)
        if place is None or place.location is not cfg.Locations.user:
            return ""
        file = os.path.realpath(place.detail)
        state = os.path.realpath(self._conf.state_path)
        if os.path.commonpath([file, state]) == state:
            return f"; {file} is below state_path"
        try:
            open_place = self._host.writable_by_others(os.path.abspath(place.detail))
        except exception.HostError as fault:
            return f": {fault}".rstrip(".")
        return None if open_place is None else f"; others can change {open_place}"

    def _marks(self, units: int) -> Marks:
        found = Marks(
            ready=self._path("ready_file", _DEVICE),
            reboot=self._path("reboot_file", _DEVICE),
            prepared=self._path("prepared_file", ("address", "handle")),
            service=self._path("service_file", _SERVICE),
        )
        if found.service is not None:
            self._check_service_names("service_file", found.service.template.named)
        if found.prepared is not None:
            named = found.prepared.template.named
            if "handle" not in named and (units > 1 or not named):
                self._refuse("prepared_file", "without {handle} it tells no unit from another")
        return found

    def _check_service_names(self, option: str, named: frozenset[str]) -> None:
        """Refuse an option that cannot tell the services of this backend apart."""
        names: list[str] = self._value("services")
        if not names:
            self._refuse(option, "services names no service")
        if "service" not in named and len(names) > 1:
            self._refuse(option, "without {service} it tells no service from another")
        for name in names:
            if "service" in named and not is_service_name(name):
                self._refuse(
                    "services",
                    f"{name!r} cannot replace {{service}} in {option}: a name of a service has "
                    "1 to 64 letters, digits and . _ @ -",
                )

    def _path(self, option: str, allowed: tuple[str, ...]) -> FilePath | None:
        return self._optional(option, lambda text: FilePath.parse(text, allowed))

    def _value(self, option: str) -> Any:
        return configuration.read(self._conf, option, self._group)

    def _understood(self, option: str, understand: Callable[[Any], T]) -> T:
        try:
            return understand(self._value(option))
        except ValueError as error:
            self._refuse(option, str(error))

    def _optional(self, option: str, understand: Callable[[Any], T]) -> T | None:
        return None if self._value(option) is None else self._understood(option, understand)

    def _each(self, option: str, understand: Callable[[str], T]) -> tuple[T, ...]:
        return self._understood(option, lambda given: tuple(understand(one) for one in given))

    def _refuse(self, option: str, reason: str) -> NoReturn:
        _refuse(option, self._group, self._value(option), reason)


def _refuse(option: str, group: str, value: Any, reason: str) -> NoReturn:
    text = ", ".join(value) if isinstance(value, list) else value
    raise exception.ConfigError(reason=f"Option [{group}] {option} cannot be {text!r}: {reason}.")


def _word(words: type[T]) -> Callable[[str], T]:
    """Read one of the words of an enumeration."""

    def understand(text: str) -> T:
        known: dict[str, T] = {str(one): one for one in words}  # type: ignore[attr-defined]
        if text.upper() not in known:
            raise ValueError(f"it is none of {', '.join(known)}")
        return known[text.upper()]

    return understand


def _trait(text: str) -> str:
    if not is_trait_name(text):
        raise ValueError(f"{text!r} is no name of a trait")
    return text


def _mdev(text: str) -> str:
    if _MDEV_TYPE.fullmatch(text) is None:
        raise ValueError("it is no type of a mediated device")
    return text


def _word_of_its_own(text: str) -> str:
    if _KIND.fullmatch(text) is None:
        raise ValueError("it is no word of 1 to 64 letters, digits and _")
    return text


def _shown(text: str) -> str:
    if not 0 < len(text) <= _WIDE or not text.isprintable():
        raise ValueError(f"{text!r} is no text of 1 to {_WIDE} printable characters")
    return text


def _services(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name!r} stands there twice")
    return tuple(map(_shown, names))


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value
