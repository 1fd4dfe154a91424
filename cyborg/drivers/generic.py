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
from dataclasses import dataclass, replace

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import (
    catalogue,
    generic_match,
    generic_options,
    pci_ids,
    vf_layout,
)
from cyborg.drivers.base import (
    CardLayouts,
    CleanStep,
    Driver,
    Health,
    ImageFile,
    Progress,
    ResetLevel,
    no_progress,
)
from cyborg.drivers.device_options import Reset, UnitScope
from cyborg.drivers.function_cleaning import (
    FUNCTION_STEPS,
    RESET,
    FunctionCleaner,
    step_names,
)
from cyborg.drivers.generic_backend import GenericBackend
from cyborg.drivers.generic_survey import Candidate, HostState, find_candidates
from cyborg.drivers.host import Host
from cyborg.drivers.local_command import placeholder_values, summary
from cyborg.drivers.pci import deployable_name
from cyborg.drivers.privileged import actions
from cyborg.drivers.scan import RefusalLog, Scan
from cyborg.drivers.vf_layout import layout_name
from cyborg.model.cleaning import host_clean
from cyborg.model.device import (
    SERVICE_UNKNOWN,
    AttachType,
    Backend,
    BackendService,
    Device,
    Hardware,
)
from cyborg.model.health import Condition
from cyborg.model.pci import PciAddress
from cyborg.model.report import DriverState
from cyborg.model.work import HandleTask, ProgramTask, Unit

LOG = logging.getLogger(__name__)

#: How much longer than its command a clean step may take, in seconds.
_MARGIN = 60.0
#: The clean steps of reset_after_release and of reset_command.
_RESET, _COMMAND = "reset", "reset_command"
_REBOOT = "the host must be rebooted first"


class GenericDriver(Driver):
    """Offers the devices of ``[generic_driver] backends`` and of the enabled catalogue entries.

    The first matching backend counts.
    """

    name = "generic_driver"
    remote_options = generic_options.REMOTE_OPTIONS

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._node: str = conf.host
        self._catalogue = catalogue.read(conf)
        self._backends = generic_options.read(conf, host, self._catalogue)
        self.can_program = any(backend.programs for backend in self._backends)
        self.device_type = ", ".join(sorted({backend.kind for backend in self._backends})) or None
        #: The functions whose disks are erased now, see FunctionCleaner.
        self._erasing: set[PciAddress] = set()
        self._name_cache = pci_ids.NameCache()
        self._refusals = RefusalLog()
        #: The last scan and the created devices, with the candidates that follow from them.
        self._survey: tuple[Scan, Mapping[str, Device], Mapping[str, Candidate]] | None = None
        #: Why cards could not be divided, for the list of hardware.
        self._failures: dict[str, str] = {}
        #: The last logged error of each backend's services, so that each error is logged once.
        self._service_errors: dict[str, str] = {}

    def discover(self, scan: Scan) -> list[Device]:
        """See Driver; runs no command."""
        candidates = self._candidates(scan).values()
        self._refusals.log(
            (str(candidate.address), f"backend {candidate.backend.name}", candidate.reason)
            for candidate in candidates
            # The agent logs why a card does not have its layout; one that has it is as configured.
            if candidate.reason is not None and not candidate.is_divided
        )
        names = self._names(candidates)
        devices = []
        for candidate in candidates:
            if candidate.reason is not None:
                continue
            backend, function = candidate.backend, candidate.function
            clean = host_clean(
                backend.clean, cleanable=bool(self._step_names(scan, candidate, backend))
            )
            if candidate.created is None:
                device = backend.device(
                    *(self._node, candidate.address, function, names),
                    handles=candidate.handles,
                    clean=clean,
                )
            else:
                device = backend.complete(candidate.created, function, names, clean)
            # A function that cannot be read has just been removed.
            with contextlib.suppress(exception.HostError):
                devices.append(self._with_facts(scan, candidate, device))
        return devices

    def _with_facts(self, scan: Scan, candidate: Candidate, device: Device) -> Device:
        """Return a device with the facts of its first function.

        All functions of a backend are no card: they have no identity, and a NUMA node only if it is
        that of each function. Raises exception.HostError when a function has left the bus.
        """
        if candidate.function is None:
            return device
        device = scan.with_facts(device, candidate.function)
        if candidate.backend.unit is not UnitScope.ALL:
            return device
        nodes = {scan.numa_node(address) for address in candidate.functions}
        node = nodes.pop() if len(nodes) == 1 else None
        return replace(device, numa_node=node, identity=(), topology=None)

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
                capability={
                    "clean": list(self._step_names(scan, candidate, backend)),
                    **candidate.capability,
                },
            )
            items.append(item)
        return items

    def functions(self, scan: Scan) -> Collection[PciAddress]:
        """See Driver; the devices of the sections."""
        candidates = self._candidates(scan).values()
        return {address for candidate in candidates for address in candidate.functions}

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

    def install(
        self, device_key: str, request_key: str, *, progress: Progress = no_progress
    ) -> None:
        """See Driver; a function that is already set up, or waits for a reboot, is not changed."""
        candidate = self._device_for(device_key, "install")
        backend = candidate.backend
        for values in candidate.values:
            if self._is_ready(backend, values) or self._waits_for_reboot(backend, values):
                continue
            if backend.commands.install is None:
                self._cannot(f"install {device_key}")
            backend.commands.install.run_checked(self.host, values)
            if not (self._is_ready(backend, values) or self._waits_for_reboot(backend, values)):
                raise exception.DriverFailed(
                    driver=self.name,
                    verb="install",
                    reason=f"{values['address']} is not ready, although install_command succeeded",
                )

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        """See Driver; a unit whose prepared_file exists is not changed."""
        super().prepare(task, image, progress=progress)
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

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        """See Driver; run release_command, also when the call is repeated."""
        backend, values = self._unit(task, "release")
        if backend.commands.release is not None:
            backend.commands.release.run_checked(self.host, values)

    def clean_steps(self, task: HandleTask) -> Sequence[CleanStep]:
        """See Driver; the reset of the kernel, reset_command, the erasure of an NVMe disk.

        All are of the unit's function.
        """
        scan = Scan(self.host, all_managed=True)
        candidate = self._device_for(task.device_key, "clean_steps", scan)
        backend, values = self._unit(task, "clean_steps", scan)
        cleaner = FunctionCleaner(
            *(self.host, self.name, PciAddress.parse(values["address"])),
            together=frozenset(candidate.functions),
            erasing=self._erasing,
        )
        names = self._step_names(scan, candidate, backend)
        steps = cleaner.steps(name for name in names if name in FUNCTION_STEPS)
        if backend.reset_after_release:
            level = ResetLevel.CARD if backend.reset is Reset.BUS else ResetLevel.FUNCTION
            function = PciAddress.parse(values["address"])
            steps.append(CleanStep(_RESET, lambda _: self._reset(function, level), priority=60))
        if (command := backend.commands.reset) is not None:
            run_checked = command.run_checked

            def run(_: Progress) -> None:
                run_checked(self.host, values)

            # The command has a limit of its own, so that this one is never reached.
            limit = command.timeout + _MARGIN
            steps.append(CleanStep(_COMMAND, run, priority=55, timeout=limit))
        return steps

    def _step_names(
        self, scan: Scan, candidate: Candidate, backend: GenericBackend
    ) -> tuple[str, ...]:
        """Return the names of the clean steps of each unit of a device.

        A part of a card is no function: a reset would affect the other parts. A function that the
        configuration declares to have no reset of its own has none.
        """
        names: list[str] = []
        if backend.attach_type is AttachType.PCI and candidate.function is not None:
            functions = [scan.functions.get(address) for address in candidate.functions]
            each = [step_names(self.host, scan, function) for function in functions if function]
            names = [name for name in FUNCTION_STEPS if all(name in other for other in each)]
            if backend.reset_after_release or backend.reset in (Reset.BUS, Reset.NONE):
                names = [name for name in names if name != RESET]
        if backend.reset_after_release:
            names.insert(0, _RESET)
        if backend.commands.reset is not None:
            names.append(_COMMAND)
        return tuple(names)

    def reset(
        self, device_key: str, level: ResetLevel, *, progress: Progress = no_progress
    ) -> None:
        """See Driver; each function of the device."""
        for function in self._device_for(device_key, "reset").functions:
            self._reset(function, level)

    def _reset(self, function: PciAddress, level: ResetLevel) -> None:
        """Have the kernel reset a function; it refuses a bus with other functions on it.

        Source: ``pci_parent_bus_reset`` in ``drivers/pci/pci.c`` of Linux 6.12.
        """
        method = "bus" if level is ResetLevel.CARD else None
        self.host.privileged.run(actions.Reset(function, method))

    def program(
        self, task: ProgramTask, image_path: str, *, progress: Progress = no_progress
    ) -> None:
        """See Driver; the backend must have a program_command."""
        candidate = self._device_for(task.device_key, "program")
        command = candidate.backend.commands.program
        if command is None:
            self._cannot(f"program {task.deployable}")
        for address in candidate.functions:
            command.run_checked(self.host, placeholder_values(str(address), image=image_path))

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
                    if file.exists(
                        self.host,
                        placeholder_values(candidate.address_of(handle.key), handle.key),
                    )
                ]
        return units

    def health(self, scan: Scan, device_key: str) -> Health:
        candidate = self._device_for(device_key, "health", scan)
        command = candidate.backend.commands.health
        if command is None:
            self._cannot(f"check the health of {device_key}")
        results = {values["address"]: command.run(self.host, values) for values in candidate.values}
        evidence = tuple(
            f"{address}: {summary(result)}" if candidate.members else summary(result)
            for address, result in results.items()
            if result.status != 0
        )
        return Health(Condition.DRAIN, evidence) if evidence else Health(Condition.OK)

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        """See Driver; names and units are those of the operator's stats_command."""
        candidate = self._device_for(device_key, "stats", scan)
        command = candidate.backend.commands.stats
        if command is None:
            self._cannot(f"measure {device_key}")
        return parse_stats(command.run_checked(self.host, placeholder_values(device_key)))

    def layouts(self, scan: Scan) -> Sequence[CardLayouts]:
        """See Driver; the cards of the sections with option layout."""
        return [
            CardLayouts(
                card=key,
                layouts=division.layouts,
                current=None if division.current is None else layout_name(division.current),
                desired=layout_name(division.desired),
                deployables=division.deployables(self._node),
                refusal=division.refusal,
            )
            for key, candidate in self._candidates(scan).items()
            if (division := candidate.division) is not None
        ]

    def partition(self, card_key: str, layout: str, *, progress: Progress = no_progress) -> None:
        """See Driver."""
        try:
            self._divide(card_key, layout, progress)
        except exception.CyborgError as error:
            self._failures[card_key] = str(error).rstrip(".")
            raise
        self._failures.pop(card_key, None)

    def _divide(self, card_key: str, layout: str, progress: Progress) -> None:
        scan = Scan(self.host)
        candidate = self._candidates(scan).get(card_key)
        division = candidate.division if candidate is not None else None
        if division is None:
            raise self._undivided(f"{card_key} is no card of a section with option layout")
        try:
            vf_layout.divide(scan, division, layout, host=self.host, progress=progress)
        except ValueError as error:
            raise self._undivided(str(error)) from error

    def _undivided(self, reason: str) -> exception.DriverFailed:
        return exception.DriverFailed(driver=self.name, verb="partition", reason=reason)

    def _candidates(self, scan: Scan) -> Mapping[str, Candidate]:
        """Return the devices of the backends by key, ordered; computed once for each scan."""
        survey = self._survey
        if survey is None or survey[0] is not scan or survey[1] is not self.operator_created:
            selectors = [backend.selector for backend in self._backends]
            members = generic_match.find_members(self.host, selectors)
            state = HostState(
                self._node,
                scan,
                members,
                self._catalogue,
                created=self.operator_created,
                failures=self._failures,
                erasing=frozenset(self._erasing),
            )
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
        backend = candidate.backend
        reboot = False
        reason = failed_checks.get(backend.name)
        try:
            reboot = any(self._waits_for_reboot(backend, values) for values in candidate.values)
            if reason is None:
                if all(self._is_ready(backend, values) for values in candidate.values):
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

    def _device_for(self, device_key: str, verb: str, scan: Scan | None = None) -> Candidate:
        """Return a device; raises DriverFailed if it is not offered.

        Without ``scan`` the host is read now, and a device that a guest holds counts as ours.
        """
        candidates = self._candidates(scan or Scan(self.host, all_managed=True))
        reason: str | None = f"{device_key} belongs to no backend"
        if device_key in candidates:
            reason = candidates[device_key].reason
        if reason is not None:
            raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason)
        return candidates[device_key]

    def _unit(
        self, task: HandleTask, verb: str, scan: Scan | None = None
    ) -> tuple[GenericBackend, dict[str, str]]:
        candidate = self._device_for(task.device_key, verb, scan)
        if task.handle_key not in {handle.key for handle in candidate.handles}:
            reason = f"{task.device_key} has no unit {task.handle_key}"
            raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason)
        address = candidate.address_of(task.handle_key)
        values = placeholder_values(address, task.handle_key, task.handle_uuid)
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
