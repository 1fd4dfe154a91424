# SPDX-License-Identifier: Apache-2.0
"""The generic_driver: accelerators of any make, as the configuration of the host describes them.

It knows nothing of any vendor: which devices there are, how they are offered and which commands
set them up stands in a section per backend. It is the reference for drivers that do know one.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import generic_match, generic_options, pci_ids, pci_scan
from cyborg.drivers.base import EMPTY_CONTEXT, Driver, DriverContext, Health
from cyborg.drivers.generic_backend import GenericBackend
from cyborg.drivers.generic_survey import Finding, Site, survey
from cyborg.drivers.host import Host
from cyborg.drivers.local_command import complaint, placeholder_values
from cyborg.drivers.pci import deployable_name
from cyborg.model.device import SERVICE_UNKNOWN, Backend, BackendService, Device, Hardware
from cyborg.model.report import DriverState
from cyborg.model.work import HandleTask, ProgramTask, Unit

LOG = logging.getLogger(__name__)

_REBOOT = "the host must be rebooted first"


class GenericDriver(Driver):
    """The backends of ``[generic_driver] backends``; a device belongs to the first that fits."""

    name = "generic_driver"
    local_options = generic_options.COMMANDS

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._node: str = conf.host
        self._backends = generic_options.read(conf, host)
        self.can_program = any(one.programs for one in self._backends)
        self.device_type = ", ".join(sorted({one.kind for one in self._backends})) or None
        self._lookup = pci_ids.Lookup()
        self._told: set[tuple[str, str]] = set()
        #: The error that was last logged for each backend's services, so that it is logged once.
        self._service_errors: dict[str, str] = {}

    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[Device]:
        """See Driver; runs no command."""
        found = self._survey(context)
        self._tell(found)
        names = self._names(found)
        return [self._device(one, names) for one in found if one.reason is None]

    def hardware(self, context: DriverContext = EMPTY_CONTEXT) -> list[Hardware]:
        """What belongs to the backends, offered or not, and what is still to be done to it."""
        found = self._survey(context)
        names = self._names(found)
        stuck: dict[str, str] = {}
        return [self._hardware(one, names, stuck) for one in found]

    def backends(self) -> list[Backend]:
        """See Driver; a backend to which no device belongs now is stopped."""
        findings = self._survey(EMPTY_CONTEXT, ours=True)
        attached = {
            finding.backend.name
            for finding in findings
            if finding.function or finding.reason is None
        }
        return [
            Backend(
                name=backend.name,
                state=(
                    DriverState.READY if backend.name in attached else DriverState.STOPPED
                ).value,
                services=self._services(backend),
                capabilities=backend.capabilities,
                creates=backend.creates,
            )
            for backend in self._backends
        ]

    def _services(self, backend: GenericBackend) -> tuple[BackendService, ...]:
        """Return the services of a backend with the state that its file or command tells.

        After a command that cannot be run or does not end in time, the command is not run for
        the backend's remaining services in this scan.
        """
        file, command = backend.marks.service, backend.commands.service
        services = []
        reason = ""
        for name in backend.services:
            state = SERVICE_UNKNOWN
            try:
                if file is not None:
                    runs = file.exists(self.host, {"service": name})
                    state = (DriverState.READY if runs else DriverState.STOPPED).value
                elif command is not None:
                    runs = command.ask(self.host, {"service": name}).status == 0
                    state = (DriverState.READY if runs else DriverState.STOPPED).value
            except exception.HostError as error:
                command = None
                reason = str(error)
                if self._service_errors.get(backend.name) != reason:
                    LOG.warning(
                        "The state of service %s on backend %s is unknown: %s",
                        name,
                        backend.name,
                        reason,
                    )
            services.append(BackendService(name, state))
        self._service_errors[backend.name] = reason
        return tuple(services)

    def install(self, device_key: str, operation: str) -> None:
        """See Driver; a device that is set up already, or waits for a reboot, is left alone."""
        one, values = self._place(device_key, "install")
        backend = one.backend
        if self._is_ready(backend, values) or self._waits_for_reboot(backend, values):
            return
        if backend.commands.install is None:
            self._cannot(f"install {device_key}")
        backend.commands.install.order(self.host, values)
        if not (self._is_ready(backend, values) or self._waits_for_reboot(backend, values)):
            raise exception.DriverFailed(
                driver=self.name,
                verb="install",
                reason=f"{device_key} is not ready, although install_command succeeded",
            )

    def prepare(self, task: HandleTask) -> None:
        """See Driver; a unit that shows as prepared is left alone."""
        backend, values = self._unit(task, "prepare")
        mark, command = backend.marks.prepared, backend.commands.prepare
        if command is None or (mark is not None and mark.exists(self.host, values)):
            return
        command.order(self.host, values)
        if mark is not None and not mark.exists(self.host, values):
            raise exception.DriverFailed(
                driver=self.name,
                verb="prepare",
                reason=f"{task.handle_key} is not prepared, although prepare_command succeeded",
            )

    def release(self, task: HandleTask) -> None:
        """See Driver; taken back first, then cleaned, both again if asked again."""
        backend, values = self._unit(task, "release")
        for command in (backend.commands.release, backend.commands.reset):
            if command is not None:
                command.order(self.host, values)

    def program(self, task: ProgramTask, image_path: str) -> None:
        """See Driver; possible where the backend has a program_command."""
        one, _ = self._place(task.device_key, "program")
        command = one.backend.commands.program
        if command is None:
            self._cannot(f"program {task.deployable}")
        command.order(self.host, placeholder_values(task.device_key, image=image_path))

    def prepared(self) -> Sequence[Unit]:
        """See Driver; possible when each backend that prepares has a prepared_file."""
        asked = [one for one in self._backends if one.commands.prepare]
        if not asked or not all(one.marks.prepared for one in asked):
            self._cannot("tell what is prepared")
        return [
            unit
            for one in self._survey(EMPTY_CONTEXT, ours=True)
            for unit in self._prepared_units(one)
        ]

    def health(self, device_key: str) -> Health:
        """See Driver."""
        one, values = self._place(device_key, "health")
        command = one.backend.commands.health
        if command is None:
            self._cannot(f"tell the health of {device_key}")
        ended = command.ask(self.host, values)
        return Health(True) if ended.status == 0 else Health(False, complaint(ended))

    def stats(self, device_key: str) -> Mapping[str, float]:
        """See Driver; names and units are those of the operator's stats_command."""
        one, values = self._place(device_key, "stats")
        command = one.backend.commands.stats
        if command is None:
            self._cannot(f"measure {device_key}")
        return figures(command.order(self.host, values))

    def _survey(self, context: DriverContext, *, ours: bool = False) -> list[Finding]:
        """Look at the host, unless there is nothing to look for."""
        made = self.operator_created
        if all(one.is_granted for one in self._backends):
            site = Site(self._node, pci_scan.Snapshot(), {}, context, made=made)
        else:
            members = generic_match.find_members(
                self.host, [one.selector for one in self._backends]
            )
            snapshot = pci_scan.read(self.host)
            site = Site(self._node, snapshot, members, context, ours, made)
        return survey(site, self._backends)

    def _device(self, one: Finding, names: pci_ids.Names) -> Device:
        if one.made is not None:
            vendor, _ = one.backend.names(one.function, names)
            return one.backend.adopted(one.made, one.function, vendor)
        return one.backend.device(self._node, one.address, one.function, names)

    def _names(self, found: Sequence[Finding]) -> pci_ids.Names:
        functions = [one.function for one in found if one.function is not None]
        return self._lookup.ask(self.host, [(one.vendor, one.product) for one in functions])

    def _tell(self, found: Sequence[Finding]) -> None:
        """Say once why a device of a backend is not offered."""
        refused = {(str(one.address), one.reason) for one in found if one.reason is not None}
        for key, reason in sorted(refused - self._told):
            LOG.warning("Device %s belongs to a backend and is not offered: %s", key, reason)
        self._told = refused

    def _hardware(self, one: Finding, names: pci_ids.Names, stuck: dict[str, str]) -> Hardware:
        vendor, model = one.backend.names(one.function, names)
        model = model if one.made is None else one.made.model
        standing = _Standing(reason=one.reason)
        if one.reason is None:
            standing = self._standing(one, stuck)
        return Hardware(
            key=str(one.address),
            kind=one.backend.kind,
            vendor=vendor,
            model=model,
            offered=one.reason is None,
            reason=standing.reason,
            setup_required=standing.setup_required,
            reboot_required=standing.reboot_required,
            num=len(one.handles),
            remote=one.backend.remote_units,
            capability=one.backend.capabilities,
        )

    def _standing(self, one: Finding, stuck: dict[str, str]) -> "_Standing":
        """What is still to be done to a device; ``stuck`` holds why a backend's check fails.

        A check that does not answer is not asked about the backend's other devices: it would hold
        up the scan once for each.
        """
        backend, values = one.backend, placeholder_values(str(one.address))
        reboot = False
        reason = stuck.get(backend.name)
        try:
            reboot = self._waits_for_reboot(backend, values)
            if reason is None:
                if self._is_ready(backend, values):
                    return _Standing(reboot_required=reboot, reason=_REBOOT if reboot else None)
                reason = _REBOOT if reboot else "it has not been set up yet"
        except exception.HostError as error:
            reason = f"whether it is set up cannot be told: {error}"
            if "errno" not in error.fields:
                # The command, and no file of this one device.
                stuck[backend.name] = reason
        return _Standing(setup_required=True, reboot_required=reboot, reason=reason)

    def _is_ready(self, backend: GenericBackend, values: Mapping[str, str]) -> bool:
        if backend.marks.ready is not None:
            return backend.marks.ready.exists(self.host, values)
        if backend.commands.ready is not None:
            return backend.commands.ready.ask(self.host, values).status == 0
        return True

    def _waits_for_reboot(self, backend: GenericBackend, values: Mapping[str, str]) -> bool:
        mark = backend.marks.reboot
        return mark is not None and mark.exists(self.host, values)

    def _place(self, device_key: str, verb: str) -> tuple[Finding, dict[str, str]]:
        """A device that may be worked on; what the host itself needs is not."""
        for one in self._survey(EMPTY_CONTEXT, ours=True):
            if str(one.address) == device_key:
                if one.reason is not None:
                    raise exception.DriverFailed(driver=self.name, verb=verb, reason=one.reason)
                return one, placeholder_values(device_key)
        reason = f"{device_key} belongs to no backend"
        raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason)

    def _unit(self, task: HandleTask, verb: str) -> tuple[GenericBackend, dict[str, str]]:
        one, _ = self._place(task.device_key, verb)
        if task.handle_key not in {handle.key for handle in one.handles}:
            reason = f"{task.device_key} has no unit {task.handle_key}"
            raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason)
        return one.backend, placeholder_values(task.device_key, task.handle_key, task.handle_uuid)

    def _prepared_units(self, one: Finding) -> Iterator[Unit]:
        mark = one.backend.marks.prepared
        if mark is None or one.reason is not None:
            return
        for handle in one.handles:
            if mark.exists(self.host, placeholder_values(str(one.address), handle.key)):
                yield Unit(deployable_name(self._node, one.address), handle.key)


@dataclass(frozen=True)
class _Standing:
    """What is still to be done before a device can be used."""

    setup_required: bool = False
    reboot_required: bool = False
    reason: str | None = None


def figures(text: str) -> dict[str, float]:
    """Read lines of a name and a number; raises exception.HostError at any other line."""
    found = {}
    for line in text.splitlines():
        name, _, number = line.strip().partition(" ")
        if not name:
            continue
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise exception.HostError(
                action="reading figures", reason=f"{line[:80]!r} is not a name and a number"
            )
        found[name] = value
    return found
