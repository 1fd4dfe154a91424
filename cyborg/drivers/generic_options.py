# SPDX-License-Identifier: Apache-2.0
"""Read and validate the backends of the generic_driver from the configuration."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import fields
from itertools import combinations
from typing import Any, NoReturn, TypeVar

from oslo_config import cfg

from cyborg import conf as configuration
from cyborg import exception
from cyborg.conf import generic as options
from cyborg.drivers import generic_match
from cyborg.drivers.generic_backend import Commands, GenericBackend, StateFiles
from cyborg.drivers.generic_match import Selector
from cyborg.drivers.host import Host
from cyborg.drivers.local_command import FilePath, LocalCommand, is_service_name
from cyborg.drivers.whitelist import network_name
from cyborg.model.device import AttachType, DeviceType
from cyborg.model.provider import is_resource_class_name, is_trait_name

T = TypeVar("T")

_BACKEND = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MDEV_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
#: Width of the database columns for texts that are shown.
_TEXT_WIDTH = 255
_CLASS_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_KIND = re.compile(r"[A-Za-z0-9_]{1,64}")
#: Options that only the host's own files may set, because each names a program that is run.
COMMANDS = frozenset(f"{field.name}_command" for field in fields(Commands))
_SELECTOR_OPTIONS = "pci_ids, pci_classes, addresses, sysfs_class or devices"
_DEVICE = ("address",)
_UNIT = ("address", "handle", "uuid")
_PROGRAM = ("address", "image")
_SERVICE = ("service",)


def read(conf: cfg.ConfigOpts, host: Host) -> tuple[GenericBackend, ...]:
    """Return the backends in the order of ``[generic_driver] backends``.

    The function registers the options of each backend. Raises exception.ConfigError with one
    sentence that contains option and value.
    """
    names: list[str] = list(dict.fromkeys(configuration.read(conf, "backends", options.GROUP)))
    for name in names:
        if _BACKEND.fullmatch(name) is None:
            _invalid(
                "backends", options.GROUP, name, "it is not a name of letters, digits, - and _"
            )
    backends = tuple(_Section(conf, host, name).backend() for name in names)
    for first, second in combinations(backends, 2):
        if first.selector.is_ambiguous_with(second.selector):
            reason = (
                f"[generic_driver:{first.name}] has it, too, and their pci_ids are not different"
            )
            group = options.group_of(second.name)
            _invalid("sysfs_class", group, conf[group].sysfs_class, reason)
    return backends


class _Section:
    """Reads and validates the section of one backend."""

    def __init__(self, conf: cfg.ConfigOpts, host: Host, name: str) -> None:
        self._conf = conf
        self._host = host
        self._name = name
        self._group = options.group_of(name)
        conf.register_opts(options.backend_options(), group=self._group)

    def backend(self) -> GenericBackend:
        """Return the backend that the section describes."""
        device_type = self._parse("device_type", _member_of(DeviceType))
        attach_type = self._parse("attach_type", _member_of(AttachType))
        resource_class: str | None = self._value("resource_class")
        if resource_class is None:
            reason = f"Option [{self._group}] resource_class must be set."
            raise exception.ConfigError(reason=reason)
        if not is_resource_class_name(resource_class):
            self._invalid("resource_class", "it is not the name of a resource class")
        units: int = self._value("units")
        if units > 1 and attach_type is AttachType.PCI:
            self._invalid("units", "a whole PCI function is one unit")
        remote_units: int = self._value("remote_units")
        if remote_units > units:
            self._invalid("remote_units", f"a device has only {units} unit(s), see option units")
        mdev_type = self._parse_optional(
            "mdev_type", _word_of(_MDEV_TYPE, "it is not the type of a mediated device")
        )
        if (mdev_type is not None) is not (attach_type is AttachType.MDEV):
            self._invalid("mdev_type", "it must be set with attach_type MDEV, and only with it")
        kind = self._parse_optional(
            "kind", _word_of(_KIND, "it is not a word of 1 to 64 letters, digits and _")
        )
        network = self._parse_optional("physical_network", network_name)
        if network is not None and attach_type is not AttachType.PCI:
            self._invalid(
                "physical_network", "only a whole PCI function can be attached to a port of Neutron"
            )
        return GenericBackend(
            name=self._name,
            resource_class=resource_class,
            selector=self._selector(),
            traits=self._parse_list("traits", _parse_trait),
            device_type=device_type,
            kind=kind or device_type.value,
            attach_type=attach_type,
            units=units,
            mdev_type=mdev_type,
            physical_network=network,
            vendor=self._parse_optional("vendor", _parse_text),
            model=self._parse_optional("model", _parse_text),
            services=self._parse("services", _parse_services),
            capabilities=self._parse("capabilities", _parse_json_object),
            remote_units=remote_units,
            commands=self._commands(),
            state_files=self._state_files(units),
        )

    def _selector(self) -> Selector:
        selector = Selector(
            ids=self._parse_list("pci_ids", generic_match.parse_pci_id),
            classes=self._parse_list("pci_classes", generic_match.parse_class_code),
            addresses=self._parse_list("addresses", generic_match.parse_address_pattern),
            sysfs_class=self._parse_optional(
                "sysfs_class",
                _word_of(_CLASS_NAME, "it is not the name of a directory below /sys/class"),
            ),
            fixed=self._parse_list("devices", generic_match.parse_address),
        )
        if selector == Selector():
            reason = f"Section [{self._group}] must set {_SELECTOR_OPTIONS}."
            raise exception.ConfigError(reason=reason)
        if selector.fixed and selector != Selector(fixed=selector.fixed):
            self._invalid("devices", "a fixed list excludes the other options that select devices")
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
        if commands.service and self._value("service_file"):
            self._invalid("service_command", "it excludes service_file, which has the same purpose")
        if commands.service:
            self._check_service_names("service_command", commands.service.placeholders)
        if commands.ready and self._value("ready_file"):
            self._invalid("ready_command", "it excludes ready_file, which has the same purpose")
        if commands.program and "image" not in commands.program.placeholders:
            self._invalid("program_command", "it must contain {image}")
        if commands.install and not commands.ready and not self._value("ready_file"):
            self._invalid("install_command", "it requires ready_file or ready_command")
        return commands

    def _command(self, option: str, timeout: str, allowed: tuple[str, ...]) -> LocalCommand | None:
        seconds: float = self._value(timeout)
        if self._value(option) is None:
            return None
        reason = self._unsafe_location(option)
        if reason is not None:
            self._invalid(
                option,
                f"a command must be in a configuration file that only root can change{reason}",
            )
        return self._parse(option, lambda text: LocalCommand.parse(text, seconds, allowed))

    def _unsafe_location(self, option: str) -> str | None:
        """Return None if only root can change the file of this host that sets the value.

        Otherwise return a reason, which continues a clause and may be empty. A file below
        state_path is not configuration of this host, because the conductor sent its content.
        """
        source = self._conf.get_location(option, self._group)
        if source is None or source.location is not cfg.Locations.user:
            return ""
        file = os.path.realpath(source.detail)
        state = os.path.realpath(self._conf.state_path)
        if os.path.commonpath([file, state]) == state:
            return f"; {file} is below state_path"
        try:
            writable = self._host.writable_by_others(os.path.abspath(source.detail))
        except exception.HostError as error:
            return f": {error}".rstrip(".")
        return None if writable is None else f"; others can change {writable}"

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
                self._invalid("prepared_file", "it must contain {handle} to distinguish the units")
        return files

    def _check_service_names(self, option: str, placeholders: frozenset[str]) -> None:
        """Refuse an option that cannot distinguish the services of this backend."""
        names: list[str] = self._value("services")
        if not names:
            self._invalid(option, "option services is empty")
        if "service" not in placeholders and len(names) > 1:
            self._invalid(option, "it must contain {service} to distinguish the services")
        for name in names:
            if "service" in placeholders and not is_service_name(name):
                self._invalid(
                    "services",
                    f"{name!r} cannot replace {{service}} in {option}: the name of a service "
                    "has 1 to 64 letters, digits and . _ @ -",
                )

    def _path(self, option: str, allowed: tuple[str, ...]) -> FilePath | None:
        return self._parse_optional(option, lambda text: FilePath.parse(text, allowed))

    def _value(self, option: str) -> Any:
        return configuration.read(self._conf, option, self._group)

    def _parse(self, option: str, parse: Callable[[Any], T]) -> T:
        try:
            return parse(self._value(option))
        except ValueError as error:
            self._invalid(option, str(error))

    def _parse_optional(self, option: str, parse: Callable[[Any], T]) -> T | None:
        return None if self._value(option) is None else self._parse(option, parse)

    def _parse_list(self, option: str, parse: Callable[[str], T]) -> tuple[T, ...]:
        return self._parse(option, lambda values: tuple(parse(value) for value in values))

    def _invalid(self, option: str, reason: str) -> NoReturn:
        _invalid(option, self._group, self._value(option), reason)


def _invalid(option: str, group: str, value: Any, reason: str) -> NoReturn:
    text = ", ".join(value) if isinstance(value, list) else value
    raise exception.ConfigError(reason=f"Option [{group}] {option} cannot be {text!r}: {reason}.")


def _member_of(enumeration: type[T]) -> Callable[[str], T]:
    """Return a function that parses the name of a member of an enumeration."""

    def parse(text: str) -> T:
        members: dict[str, T] = {str(member): member for member in enumeration}  # type: ignore[attr-defined]
        if text.upper() not in members:
            raise ValueError(f"it is none of {', '.join(members)}")
        return members[text.upper()]

    return parse


def _parse_trait(text: str) -> str:
    if not is_trait_name(text):
        raise ValueError(f"{text!r} is not the name of a trait")
    return text


def _word_of(pattern: re.Pattern[str], reason: str) -> Callable[[str], str]:
    """Return a function that returns a text if it matches, and raises ValueError if not."""

    def parse(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise ValueError(reason)
        return text

    return parse


def _parse_text(text: str) -> str:
    if not 0 < len(text) <= _TEXT_WIDTH or not text.isprintable():
        raise ValueError(f"{text!r} is not a text of 1 to {_TEXT_WIDTH} printable characters")
    return text


def _parse_services(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is there twice")
    return tuple(map(_parse_text, names))


def _parse_json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value
