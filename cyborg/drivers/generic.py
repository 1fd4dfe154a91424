# SPDX-License-Identifier: Apache-2.0
"""The generic_driver: offers accelerators of any vendor, as the configuration describes them.

The driver has no knowledge of a vendor: a section of the configuration per backend says which
devices there are, how they are offered and which commands set them up. It is the reference for
drivers of one vendor.
"""

import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import generic_match, generic_options
from cyborg.drivers.base import CleanStep, ImageFile, Progress, ResetLevel, no_progress
from cyborg.drivers.card_driver import CardDriver, address_of
from cyborg.drivers.command import summary
from cyborg.drivers.device_options import Reset, UnitScope
from cyborg.drivers.function_cleaning import FUNCTION_STEPS, RESET
from cyborg.drivers.generic_backend import GenericBackend
from cyborg.drivers.generic_cards import GenericCard, Selection
from cyborg.drivers.host import Host
from cyborg.drivers.local_command import placeholder_values
from cyborg.drivers.scan import Scan
from cyborg.model.cleaning import HostClean, host_clean
from cyborg.model.device import (
    SERVICE_UNKNOWN,
    AttachType,
    Backend,
    BackendService,
    Deployable,
    Device,
    DeviceType,
    Hardware,
)
from cyborg.model.health import Signal
from cyborg.model.pci import PciAddress
from cyborg.model.report import DriverState
from cyborg.model.work import HandleTask, ProgramTask, Unit

LOG = logging.getLogger(__name__)

#: How much longer than its command a clean step may take, in seconds.
_MARGIN = 60.0
#: The clean steps of reset_after_release and of reset_command.
_RESET, _COMMAND = "reset", "reset_command"
_REBOOT = "the host must be rebooted first"


class GenericDriver(CardDriver[GenericCard]):
    """Offers the devices of ``[generic_driver] backends`` and of the enabled catalogue entries.

    The first matching backend counts.
    """

    name = "generic_driver"
    type = DeviceType.PCI
    remote_options = generic_options.REMOTE_OPTIONS

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._backends = generic_options.read(conf, host, self.catalogue)
        self.can_program = any(backend.programs for backend in self._backends)
        self.device_type = ", ".join(sorted({backend.kind for backend in self._backends})) or None
        #: The last logged error of each backend's services, so that each error is logged once.
        self._service_errors: dict[str, str] = {}

    def read_clean(self, conf: cfg.ConfigOpts) -> None:
        """See CardDriver; each section has the option."""

    def selected(self, scan: Scan) -> Iterable[GenericCard]:
        """See CardDriver; the devices of the backends, and those that operators created."""
        selectors = [backend.selector for backend in self._backends]
        members = generic_match.find_members(self.host, selectors)
        return Selection(
            *(self.host_name, scan, members, self._backends),
            created=self.operator_created,
            platform_reason=self.platform_reason,
        ).cards()

    def completed(self, scan: Scan, card: GenericCard) -> GenericCard:
        """See CardDriver; the number of mediated devices, and the layout of a card.

        Other than its virtual functions, a card that the conductor keeps does not stay.
        """
        reason, mdev_type = card.reason, card.backend.mdev_type
        if card.division is not None and card.division.pending:
            reason = self._survey.layout_reason(scan, card.division)
        elif reason is None and mdev_type is not None:
            try:
                types = scan.mdev_types(card.address)
            except exception.HostError as error:
                return replace(card, reason=str(error), guests=())
            free, made = types.get(mdev_type, (0, 0))
            # Those of a card that the conductor does not keep were not made for this service.
            count = free + made if scan.is_managed(self.name_of(card.address)) else free
            card = replace(card, units=min(card.backend.units, count))
            if mdev_type not in types:
                reason = f"it has no type {mdev_type}, but {', '.join(types) or 'none'}"
            elif not card.units:
                reason = f"it has no free mediated device of type {mdev_type}"
        return replace(card, reason=reason, guests=card.guests if reason is None else ())

    def device(self, scan: Scan, card: GenericCard) -> Device:
        names = self.names(scan)
        if card.created is not None:
            return card.backend.complete(card.created, card.present, names)
        return card.backend.device(
            *(self.host_name, card.address, card.present, names), handles=card.handles
        )

    def with_facts(self, scan: Scan, card: GenericCard, device: Device) -> Device:
        """See CardDriver; all functions of a backend are no card.

        They have no identity, and a NUMA node only if it is that of each function.
        """
        device = super().with_facts(scan, card, device)
        if card.present is None or card.backend.unit is not UnitScope.ALL:
            return device
        nodes = {scan.numa_node(address) for address in card.functions}
        node = nodes.pop() if len(nodes) == 1 else None
        return replace(device, numa_node=node, identity=(), topology=None)

    def source(self, card: GenericCard) -> str:
        return f"backend {card.backend.name}"

    def reasons(self, card: GenericCard) -> Iterator[tuple[str, str]]:
        """See CardDriver; one reason each.

        The agent logs why a card does not have its layout; one that has it is as configured.
        """
        if card.reason is not None and not card.is_divided:
            yield card.key, card.reason

    def hardware(self, scan: Scan) -> list[Hardware]:
        """Return all devices of the backends, with the set-up that each still needs."""
        names = self.names(scan)
        failed_checks: dict[str, str] = {}
        items = []
        for card in self.cards(scan):
            backend = card.backend
            vendor, model = backend.vendor_and_model(card.present, names)
            if card.created is not None:
                model = card.created.model
            setup = _Setup(reason=card.reason)
            if card.reason is None:
                setup = self._setup(card, failed_checks)
            item = Hardware(
                key=card.key,
                kind=backend.kind,
                vendor=vendor,
                model=model,
                offered=card.reason is None,
                reason=setup.reason,
                setup_required=setup.setup_required,
                reboot_required=setup.reboot_required,
                num=len(card.handles),
                remote=backend.remote_units,
                capability={
                    "clean": list(self._step_names(scan, card)),
                    **card.facts,
                },
            )
            items.append(item)
        return items

    def functions(self, scan: Scan) -> Collection[PciAddress]:
        """See Driver; the devices of the sections."""
        return {address for card in self.cards(scan) for address in card.functions}

    def backends(self, scan: Scan) -> list[Backend]:
        """See Driver; a backend without a device is STOPPED."""
        attached = {
            card.backend.name for card in self.cards(scan) if card.present or card.reason is None
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
        card = self._device_for(device_key, "install")
        backend = card.backend
        for values in card.values:
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
        card, values = self._unit(task, "prepare")
        file, command = card.backend.state_files.prepared, card.backend.commands.prepare
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
        card, values = self._unit(task, "release")
        if (command := card.backend.commands.release) is not None:
            command.run_checked(self.host, values)

    def clean_steps(self, task: HandleTask) -> Sequence[CleanStep]:
        """See Driver; the reset of the kernel, reset_command, the erasure of an NVMe disk.

        All are of the unit's function.
        """
        scan = Scan(self.host, all_managed=True)
        card, _ = self._unit(task, "clean_steps", scan)
        return [self.clean_step(name, card, task) for name in self._step_names(scan, card)]

    def clean_step(self, name: str, card: GenericCard, task: HandleTask) -> CleanStep:
        """See CardDriver."""
        backend, command = card.backend, card.backend.commands.reset
        if name == _RESET:
            level = ResetLevel.CARD if backend.reset is Reset.BUS else ResetLevel.FUNCTION
            function = address_of(task.handle_key)
            return CleanStep(
                _RESET,
                lambda _: self.reset_function(function, level),
                priority=60,
                resets=str(function),
            )
        if name != _COMMAND or command is None:
            return super().clean_step(name, card, task)
        values = card.values_of(task)

        def run(_: Progress) -> None:
            command.run_checked(self.host, values)

        # The command has a limit of its own, so that this one is never reached.
        return CleanStep(_COMMAND, run, priority=55, timeout=command.timeout + _MARGIN)

    def cleaning(self, scan: Scan, card: GenericCard, unit: Deployable) -> HostClean | None:
        return host_clean(card.backend.clean, cleanable=bool(self._step_names(scan, card)))

    def _step_names(self, scan: Scan, card: GenericCard) -> tuple[str, ...]:
        """Return the names of the clean steps of each unit of a device.

        A part of a card is no function: a reset would affect the other parts. A function that the
        configuration declares to have no reset of its own has none.
        """
        names: list[str] = []
        backend = card.backend
        if backend.attach_type is AttachType.PCI and card.parts:
            each = [self.scanned_clean_names(scan, card, part) for part in card.parts]
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
            self.reset_function(function, level)

    def program(
        self, task: ProgramTask, image_path: str, *, progress: Progress = no_progress
    ) -> None:
        """See Driver; the backend must have a program_command."""
        card = self._device_for(task.device_key, "program")
        command = card.backend.commands.program
        if command is None:
            self._cannot(f"program {task.deployable}")
        for address in card.functions:
            command.run_checked(self.host, placeholder_values(str(address), image=image_path))

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        """See Driver; each backend with a prepare_command must have a prepared_file."""
        preparing = [backend for backend in self._backends if backend.commands.prepare]
        if not preparing or not all(backend.state_files.prepared for backend in preparing):
            self._cannot("list the prepared units")
        units = []
        for card in self.cards(scan):
            file = card.backend.state_files.prepared
            if file is not None and card.reason is None:
                units += [
                    Unit(self.name_of(card.address), handle.key)
                    for handle in card.handles
                    if file.exists(
                        self.host, placeholder_values(card.address_of(handle.key), handle.key)
                    )
                ]
        return units

    def signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        """See Driver; the exit status of the health_command, for each function."""
        card = self._device_for(device_key, "health", scan)
        command = card.backend.commands.health
        if command is None:
            self._cannot(f"check the health of {device_key}")
        for values in card.values:
            result = command.run(self.host, values)
            text = summary(result)
            if card.members:
                text = f"{values['address']}: {text}"
            yield Signal("command", "exit_status", result.status, text)

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        """See Driver; names and units are those of the operator's stats_command."""
        card = self._device_for(device_key, "stats", scan)
        command = card.backend.commands.stats
        if command is None:
            self._cannot(f"measure {device_key}")
        return parse_stats(command.run_checked(self.host, placeholder_values(device_key)))

    def _setup(self, card: GenericCard, failed_checks: dict[str, str]) -> "_Setup":
        """Return the set-up that a device still needs.

        ``failed_checks`` maps a backend to the reason why its ready_command failed. This scan does
        not run that command for the backend's other devices, because each could take the timeout.
        """
        backend = card.backend
        reboot = False
        reason = failed_checks.get(backend.name)
        try:
            reboot = any(self._waits_for_reboot(backend, values) for values in card.values)
            if reason is None:
                if all(self._is_ready(backend, values) for values in card.values):
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

    def _device_for(self, device_key: str, verb: str, scan: Scan | None = None) -> GenericCard:
        """Return a device; raises DriverFailed if it is not offered.

        Without ``scan`` the host is read now, and a device that a guest holds counts as ours.
        """
        cards = self.by_key(scan or Scan(self.host, all_managed=True))
        reason: str | None = f"{device_key} belongs to no backend"
        if device_key in cards:
            reason = cards[device_key].reason
        if reason is not None:
            raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason)
        return cards[device_key]

    def _unit(
        self, task: HandleTask, verb: str, scan: Scan | None = None
    ) -> tuple[GenericCard, dict[str, str]]:
        """Return the device of a unit, and the placeholder values of the unit."""
        card = self._device_for(task.device_key, verb, scan)
        if task.handle_key not in {handle.key for handle in card.handles}:
            reason = f"{task.device_key} has no unit {task.handle_key}"
            raise exception.DriverFailed(driver=self.name, verb=verb, reason=reason)
        return card, card.values_of(task)


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
