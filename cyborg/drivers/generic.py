# SPDX-License-Identifier: Apache-2.0
"""The generic_driver: offers accelerators of any vendor, as the configuration describes them.

The driver has no knowledge of a vendor: a section of the configuration per backend says which
devices there are, how they are offered and which commands set them up. It is the reference for
drivers of one vendor.
"""

import contextlib
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import catalogue, generic_match, generic_options, pci_ids
from cyborg.drivers.base import Driver, Health
from cyborg.drivers.generic_backend import GenericBackend
from cyborg.drivers.generic_survey import Candidate, HostState, find_candidates
from cyborg.drivers.host import Host
from cyborg.drivers.local_command import placeholder_values, summary
from cyborg.drivers.pci import deployable_name
from cyborg.drivers.scan import RefusalLog, Scan
from cyborg.model.device import SERVICE_UNKNOWN, Backend, BackendService, Device, Hardware
from cyborg.model.report import DriverState
from cyborg.model.work import HandleTask, ProgramTask, Unit

LOG = logging.getLogger(__name__)

_REBOOT = "the host must be rebooted first"


class GenericDriver(Driver):
    """Offers the devices of ``[generic_driver] backends`` and of the enabled catalogue entries.

    The first matching backend counts.
    """

    name = "generic_driver"
    local_options = generic_options.COMMANDS | catalogue.LOCAL_OPTIONS

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._node: str = conf.host
        self._catalogue = catalogue.read(conf)
        self._backends = generic_options.read(conf, host, self._catalogue)
        self.can_program = any(backend.programs for backend in self._backends)
        self.device_type = ", ".join(sorted({backend.kind for backend in self._backends})) or None
        self._name_cache = pci_ids.NameCache()
        self._refusals = RefusalLog()
        #: The last scan and the created devices, with the candidates that follow from them.
        self._survey: tuple[Scan, Mapping[str, Device], Mapping[str, Candidate]] | None = None
        #: The last logged error of each backend's services, so that each error is logged once.
        self._service_errors: dict[str, str] = {}

    def discover(self, scan: Scan) -> list[Device]:
        """See Driver; runs no command."""
        candidates = self._candidates(scan).values()
        self._refusals.log(
            (str(candidate.address), f"backend {candidate.backend.name}", candidate.reason)
            for candidate in candidates
            if candidate.reason is not None
        )
        names = self._names(candidates)
        devices = []
        for candidate in candidates:
            if candidate.reason is not None:
                continue
            backend, function = candidate.backend, candidate.function
            if candidate.created is None:
                device = backend.device(self._node, candidate.address, function, names)
            else:
                device = backend.complete(candidate.created, function, names)
            # A function that cannot be read has just been removed.
            with contextlib.suppress(exception.HostError):
                devices.append(scan.with_facts(device, function) if function else device)
        return devices

    def hardware(self, scan: Scan) -> list[Hardware]:
        """Return all devices of the backends, with the set-up that each still needs."""
        candidates = self._candidates(scan).values()
        names = self._names(candidates)
        failed_checks: dict[str, str] = {}
        items = []
        for candidate in candidates:
            backend = candidate.backend
            vendor, model = backend.vendor_and_model(candidate.function, names)
            if candidate.created is not None:
                model = candidate.created.model
            setup = _Setup(reason=candidate.reason)
            if candidate.reason is None:
                setup = self._setup(candidate, failed_checks)
            item = Hardware(
                key=str(candidate.address),
                kind=backend.kind,
                vendor=vendor,
                model=model,
                offered=candidate.reason is None,
                reason=setup.reason,
                setup_required=setup.setup_required,
                reboot_required=setup.reboot_required,
                num=len(candidate.handles),
                remote=backend.remote_units,
                capability=backend.capability,
            )
            items.append(item)
        return items

    def backends(self, scan: Scan) -> list[Backend]:
        """See Driver; a backend without a device is STOPPED."""
        attached = {
            candidate.backend.name
            for candidate in self._candidates(scan).values()
            if candidate.function or candidate.reason is None
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
        """Return the services of a backend with the state that their file or command indicates.

        After a command that cannot be run or does not end in time, this scan does not run the
        command for the remaining services of the backend.
        """
        file, command = backend.state_files.service, backend.commands.service
        services = []
        reason = ""
        for name in backend.services:
            state = SERVICE_UNKNOWN
            try:
                if file is not None:
                    runs = file.exists(self.host, {"service": name})
                    state = (DriverState.READY if runs else DriverState.STOPPED).value
                elif command is not None:
                    runs = command.run(self.host, {"service": name}).status == 0
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

    def install(self, device_key: str, request_key: str) -> None:
        """See Driver; a device that is already set up, or waits for a reboot, is not changed."""
        candidate, values = self._device_for(device_key, "install")
        backend = candidate.backend
        if self._is_ready(backend, values) or self._waits_for_reboot(backend, values):
            return
        if backend.commands.install is None:
            self._cannot(f"install {device_key}")
        backend.commands.install.run_checked(self.host, values)
        if not (self._is_ready(backend, values) or self._waits_for_reboot(backend, values)):
            raise exception.DriverFailed(
                driver=self.name,
                verb="install",
                reason=f"{device_key} is not ready, although install_command succeeded",
            )

    def prepare(self, task: HandleTask) -> None:
        """See Driver; a unit whose prepared_file exists is not changed."""
        backend, values = self._unit(task, "prepare")
        file, command = backend.state_files.prepared, backend.commands.prepare
        if command is None or (file is not None and file.exists(self.host, values)):
            return
        command.run_checked(self.host, values)
        if file is not None and not file.exists(self.host, values):
            raise exception.DriverFailed(
                driver=self.name,
                verb="prepare",
                reason=f"{task.handle_key} is not prepared, although prepare_command succeeded",
            )

    def release(self, task: HandleTask) -> None:
        """See Driver; run release_command, then reset_command, also when the call is repeated."""
        backend, values = self._unit(task, "release")
        for command in (backend.commands.release, backend.commands.reset):
            if command is not None:
                command.run_checked(self.host, values)

    def program(self, task: ProgramTask, image_path: str) -> None:
        """See Driver; the backend must have a program_command."""
        candidate, _ = self._device_for(task.device_key, "program")
        command = candidate.backend.commands.program
        if command is None:
            self._cannot(f"program {task.deployable}")
        command.run_checked(self.host, placeholder_values(task.device_key, image=image_path))

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        """See Driver; each backend with a prepare_command must have a prepared_file."""
        preparing = [backend for backend in self._backends if backend.commands.prepare]
        if not preparing or not all(backend.state_files.prepared for backend in preparing):
            self._cannot("list the prepared units")
        units = []
        for candidate in self._candidates(scan).values():
            file, address = candidate.backend.state_files.prepared, candidate.address
            if file is not None and candidate.reason is None:
                units += [
                    Unit(deployable_name(self._node, address), handle.key)
                    for handle in candidate.handles
                    if file.exists(self.host, placeholder_values(str(address), handle.key))
                ]
        return units

    def health(self, scan: Scan, device_key: str) -> Health:
        candidate, values = self._device_for(device_key, "health", scan)
        command = candidate.backend.commands.health
        if command is None:
            self._cannot(f"check the health of {device_key}")
        result = command.run(self.host, values)
        return Health(True) if result.status == 0 else Health(False, summary(result))

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        """See Driver; names and units are those of the operator's stats_command."""
        candidate, values = self._device_for(device_key, "stats", scan)
        command = candidate.backend.commands.stats
        if command is None:
            self._cannot(f"measure {device_key}")
        return parse_stats(command.run_checked(self.host, values))

    def _candidates(self, scan: Scan) -> Mapping[str, Candidate]:
        """Return the devices of the backends by key, ordered; computed once for each scan."""
        survey = self._survey
        if survey is None or survey[0] is not scan or survey[1] is not self.operator_created:
            selectors = [backend.selector for backend in self._backends]
            members = generic_match.find_members(self.host, selectors)
            state = HostState(self._node, scan, members, self._catalogue, self.operator_created)
            candidates = find_candidates(state, self._backends)
            by_key = {str(candidate.address): candidate for candidate in candidates}
            survey = self._survey = scan, self.operator_created, by_key
        return survey[2]

    def _names(self, candidates: Collection[Candidate]) -> pci_ids.Names:
        functions = [candidate.function for candidate in candidates if candidate.function]
        ids = [(function.vendor, function.product) for function in functions]
        return self._name_cache.lookup(self.host, ids)

    def _setup(self, candidate: Candidate, failed_checks: dict[str, str]) -> "_Setup":
        """Return the set-up that a device still needs.

        ``failed_checks`` maps a backend to the reason why its ready_command failed. This scan does
        not run that command for the backend's other devices, because each could take the timeout.
        """
        backend, values = candidate.backend, placeholder_values(str(candidate.address))
        reboot = False
        reason = failed_checks.get(backend.name)
        try:
            reboot = self._waits_for_reboot(backend, values)
            if reason is None:
                if self._is_ready(backend, values):
                    return _Setup(reboot_required=reboot, reason=_REBOOT if reboot else None)
                reason = _REBOOT if reboot else "it has not been set up yet"
        except exception.HostError as error:
            reason = f"the check whether it is set up failed: {error}"
            if "errno" not in error.fields:
                # The error is that of the command, not that of a file of this device.
                failed_checks[backend.name] = reason
        return _Setup(setup_required=True, reboot_required=reboot, reason=reason)

    def _is_ready(self, backend: GenericBackend, values: Mapping[str, str]) -> bool:
        if backend.state_files.ready is not None:
            return backend.state_files.ready.exists(self.host, values)
        if backend.commands.ready is not None:
            return backend.commands.ready.run(self.host, values).status == 0
        return True

    def _waits_for_reboot(self, backend: GenericBackend, values: Mapping[str, str]) -> bool:
        file = backend.state_files.reboot
        return file is not None and file.exists(self.host, values)

    def _device_for(
        self, device_key: str, verb: str, scan: Scan | None = None
    ) -> tuple[Candidate, dict[str, str]]:
        """Return a device and its placeholder values; raises DriverFailed if it is not offered.

        Without ``scan`` the host is read now, and a device that a guest holds counts as ours.
        """
        candidates = self._candidates(scan or Scan(self.host, all_managed=True))
        reason: str | None = f"{device_key} belongs to no backend"
        if device_key in candidates:
            reason = candidates[device_key].reason
        if reason is not None:
            raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason)
        return candidates[device_key], placeholder_values(device_key)

    def _unit(self, task: HandleTask, verb: str) -> tuple[GenericBackend, dict[str, str]]:
        candidate, _ = self._device_for(task.device_key, verb)
        if task.handle_key not in {handle.key for handle in candidate.handles}:
            reason = f"{task.device_key} has no unit {task.handle_key}"
            raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason)
        values = placeholder_values(task.device_key, task.handle_key, task.handle_uuid)
        return candidate.backend, values


@dataclass(frozen=True)
class _Setup:
    """The set-up that a device still needs before it can be used."""

    setup_required: bool = False
    reboot_required: bool = False
    reason: str | None = None


def parse_stats(text: str) -> dict[str, float]:
    """Parse lines of a name and a number; raises exception.HostError for any other line."""
    stats = {}
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
                action="reading statistics", reason=f"{line[:80]!r} is not a name and a number"
            )
        stats[name] = value
    return stats
