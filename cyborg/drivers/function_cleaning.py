# SPDX-License-Identifier: Apache-2.0
"""Clean a whole PCI function after its guest: a reset of the kernel, and the erasure of NVMe disks.

A step works only on a function that nobody uses, as the ownership check says: the host may have
taken a file system of the former guest into use when it got the disk back.
"""

import contextlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cyborg import exception
from cyborg.drivers import pci_function, vf_settings
from cyborg.drivers.base import CleanStep, Progress
from cyborg.drivers.files import read_if_exists
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.privileged import actions, disk_actions, nvme
from cyborg.drivers.scan import Scan
from cyborg.drivers.vf_settings import VfSettings
from cyborg.model.cleaning import CleanLevel
from cyborg.model.pci import PciAddress

#: The methods of ``reset_method`` that affect the function alone, best first (Linux:
#: pci_reset_fn_methods in drivers/pci/pci.c).
_SAFE: Final = ("flr", "af_flr", "device_specific", "pm", "acpi")
#: The kernel has this method only for a function that is alone on its bus (pci_parent_bus_reset).
_BUS: Final = "bus"
#: Host drivers that the kernel tells of a reset (Linux: reset_prepare and reset_done).
_EXPECT_RESETS: Final = frozenset({"nvme"})
#: The class of NVMe controllers, without the programming interface.
_NVME: Final = 0x0108
#: How often, and for how many seconds, a step waits for its function: libvirt gives it back to its
#: driver after the guest, and udev looks at the disks then.
_INTERVAL: Final = 1.0
_PATIENCE: Final = 60
#: How long a function may need after a reset before it answers, in seconds.
_ANSWER: Final = 10
#: A format or sanitize of a large disk takes hours at most.
_ERASE_LIMIT: Final = 6 * 3600.0
_RESET_LIMIT: Final = 300.0
_SANITIZE_INTERVAL: Final = 5.0
#: The steps, by the names that operators read.
RESET: Final = "function reset"
ERASE: Final = "NVMe erase"
SETTINGS: Final = "VF settings"
FUNCTION_STEPS: Final = (SETTINGS, RESET, ERASE)
_CONTROLLER = re.compile(r"nvme[0-9]{1,4}")


def reset_method(host: Host, scan: Scan, function: PciFunction) -> str | None:
    """Return the method by which the kernel can reset the function alone; None: there is none.

    The bus of a function may be reset as well if no other function is on it.
    """
    try:
        text = host.read_text(f"/sys/bus/pci/devices/{function.address}/reset_method")
    except exception.HostError:
        # Without the file the kernel cannot reset the function, or does not tell how it would.
        return None
    offered = text.split()
    method = next((method for method in _SAFE if method in offered), None)
    if method is None and _BUS in offered:
        place = function.address.domain, function.address.bus
        alone = [(other.domain, other.bus) for other in scan.functions].count(place) == 1
        return _BUS if alone else None
    return method


def step_names(host: Host, scan: Scan, function: PciFunction) -> tuple[str, ...]:
    """Return the names of the safe steps that a function has; empty: nothing can be cleaned."""
    return (
        *((SETTINGS,) if vf_settings.port_interface(host, scan, function) is not None else ()),
        *((RESET,) if reset_method(host, scan, function) else ()),
        *((ERASE,) if function.class_code >> 8 == _NVME else ()),
    )


@dataclass(frozen=True)
class Erasure:
    """How the data on an NVMe disk may be erased; by default in the best way that the disk has.

    ``sanitize``: only by a sanitize, never by a format. ``method``: only by this method. A disk
    that cannot do that is not cleaned. ``limit`` is the time, in seconds, that it may take.
    """

    sanitize: bool = False
    method: nvme.SanitizeMethod | None = None
    limit: float = _ERASE_LIMIT

    def sanitize_method(self, facts: nvme.ControllerFacts) -> nvme.SanitizeMethod | None:
        """Return the method by which the disk is sanitized; None: it must be formatted."""
        if self.method is None:
            return next(iter(facts.sanitizes), None)
        return self.method if self.method in facts.sanitizes else None

    def format_method(self, facts: nvme.ControllerFacts) -> nvme.Erase | None:
        """Return how a format erases the disk; None: no format does what is required."""
        if not facts.formats or self.sanitize:
            return None
        if self.method is nvme.SanitizeMethod.BLOCK:
            return nvme.Erase.USER_DATA
        if facts.crypto:
            return nvme.Erase.CRYPTO
        return None if self.method is nvme.SanitizeMethod.CRYPTO else nvme.Erase.USER_DATA


@dataclass(frozen=True)
class FunctionCleaner:
    """The steps for one function of a driver.

    ``together`` are functions that guests get together with it. ``erasing`` has the function while
    its disk is erased: the privileged process claims the disk, and a scan of the driver must not
    take that for another user. ``erasure`` says how its disk may be erased.
    """

    host: Host
    driver: str
    function: PciAddress
    together: frozenset[PciAddress] = frozenset()
    erasing: set[PciAddress] = field(default_factory=set)
    erasure: Erasure = Erasure()

    def steps(self, names: Iterable[str]) -> list[CleanStep]:
        """Return the steps with these names, see ``step_names``."""
        steps = {
            # A card may need a reset of the function before new settings are valid.
            SETTINGS: CleanStep(SETTINGS, self._settings, priority=70, timeout=_RESET_LIMIT),
            RESET: CleanStep(
                RESET,
                self._reset,
                priority=60,
                timeout=_RESET_LIMIT,
                resets=str(self.function),
            ),
            ERASE: CleanStep(
                ERASE,
                self._erase,
                timeout=self.erasure.limit,
                # The next agent joins a sanitize that is in progress, and repeats a format.
                interruptible=True,
                level=CleanLevel.FULL,
            ),
        }
        return [steps[name] for name in names]

    def _settings(self, progress: Progress) -> None:
        """Reset what the card keeps for a virtual function."""
        scan = self._idle()
        function = scan.functions[self.function]
        parent = None if function.parent is None else scan.functions.get(function.parent)
        interface = vf_settings.port_interface(self.host, scan, function)
        if parent is None or interface is None:
            raise self._failed(SETTINGS, "its port has no network interface; bind its driver")
        VfSettings(self.host, function, parent, interface).reset(progress)

    def _reset(self, progress: Progress) -> None:
        """Reset the function, and check that it answers and has its driver again.

        A host driver that does not expect the reset would go on with a device in its initial state:
        so the function is taken from it, and given back afterwards. A function without a driver may
        have lost it in an attempt that was interrupted.
        """
        scan = self._idle()
        function = scan.functions[self.function]
        method = reset_method(self.host, scan, function)
        if method is None:
            raise self._failed(RESET, "the kernel has no method to reset it alone")
        progress(0.0, f"reset by {method}")
        driver = function.host_driver
        detached = driver is not None and driver not in _EXPECT_RESETS and not function.on_vfio
        if detached:
            self.host.privileged.run(actions.Unbind(self.function))
        self.host.privileged.run(actions.Reset(self.function, method))
        if detached or driver is None:
            self.host.privileged.run(actions.Probe(self.function))
        for _ in range(_ANSWER):
            if self._answers() and driver in (None, self._host_driver()):
                return
            self.host.pause(_INTERVAL)
        if not self._answers():
            raise self._failed(RESET, "it does not answer after the reset; reboot the host")
        reason = f"its driver is {self._host_driver()} after the reset, not {driver}"
        raise self._failed(RESET, reason)

    def _erase(self, progress: Progress) -> None:
        """Erase all namespaces, and check that nothing of the former content is left."""
        with self._controller() as controller:
            self.erasing.add(self.function)
            try:
                self._erase_disk(controller, progress)
            finally:
                self.erasing.discard(self.function)

    def _erase_disk(self, controller: str, progress: Progress) -> None:
        facts = self.host.privileged.run(disk_actions.ReadController(self.function, controller))
        if facts.sanitizes and self._sanitize_state(controller).state is nvme.SanitizeState.RUNNING:
            # An earlier agent began it, or the guest: the disk takes no data meanwhile.
            self._await_sanitize(controller, progress)
            return
        before = self._all_samples(controller)
        method, erase = self.erasure.sanitize_method(facts), self.erasure.format_method(facts)
        if method is not None and not facts.shared:
            progress(0.0, f"sanitize ({method})")
            self.host.privileged.run(disk_actions.Sanitize(self.function, controller, method))
            self._await_sanitize(controller, progress)
        elif facts.shared and not facts.private:
            # A sanitize always, and a format often, erases the data of other controllers as well.
            raise self._failed(
                ERASE,
                "its NVMe subsystem may have other controllers, whose data would be erased; clean "
                "it yourself, or set option clean to reset",
            )
        elif erase is not None:
            for count, namespace in enumerate(sorted(before)):
                progress(count / len(before), f"format of namespace {namespace} ({erase})")
                self.host.privileged.run(
                    disk_actions.FormatNamespace(self.function, controller, namespace, erase)
                )
        elif facts.formats or facts.sanitizes:
            methods = ", ".join(facts.sanitizes) or "none"
            formats = f"format {'with' if facts.crypto else 'without'} crypto erase"
            raise self._failed(
                ERASE,
                "the controller cannot be erased as clear_action and clear_strategy of its entry "
                f"in [nvme] device_spec require: its methods of sanitize are {methods}; it has "
                f"{formats if facts.formats else 'no format'}",
            )
        else:
            reason = "the controller has neither sanitize nor format; set option clean to reset"
            raise self._failed(ERASE, reason)
        progress(1.0, "verification")
        self._verify(before, self._samples(controller))

    def _verify(
        self, before: Mapping[int, Sequence[str]], after: Mapping[int, Sequence[str]]
    ) -> None:
        """Raise DriverFailed if a sampled block still has its former content.

        A block whose bytes are all equal has no content. After the key was destroyed, a block may
        read as anything but what it was.
        """
        if before.keys() != after.keys():
            raise self._failed(ERASE, f"it has namespaces {sorted(after)}, not {sorted(before)}")
        for namespace, digests in before.items():
            for old, new in zip(digests, after[namespace], strict=True):
                if old and old == new:
                    reason = f"namespace {namespace} still has data of its last guest; replace it"
                    raise self._failed(ERASE, reason)

    def _all_samples(self, controller: str) -> dict[int, tuple[str, ...]]:
        """Return the samples of all namespaces, of which the host shows each after a while."""
        read = disk_actions.ReadNamespaces(self.function, controller)
        for _ in range(_ANSWER):
            namespaces = {*self.host.privileged.run(read)}
            samples = self._samples(controller)
            if namespaces and namespaces == set(samples):
                return samples
            self.host.pause(_INTERVAL)
        if not namespaces:
            raise self._failed(ERASE, "it has no namespace; create one, or attach one to it")
        hidden = ", ".join(map(str, sorted(namespaces ^ set(samples))))
        raise self._failed(ERASE, f"the host does not show namespace {hidden} as a disk")

    def _samples(self, controller: str) -> dict[int, tuple[str, ...]]:
        samples = self.host.privileged.run(disk_actions.SampleNamespaces(self.function, controller))
        return dict(samples)

    def _sanitize_state(self, controller: str) -> nvme.SanitizeProgress:
        return self.host.privileged.run(disk_actions.ReadSanitize(self.function, controller))

    def _await_sanitize(self, controller: str, progress: Progress) -> None:
        """Wait for the end of a sanitize; the limit of the step ends the wait."""
        for _ in range(int(self.erasure.limit / _SANITIZE_INTERVAL)):
            state, fraction = self._sanitize_state(controller)
            if state is nvme.SanitizeState.DONE:
                return
            if state is not nvme.SanitizeState.RUNNING:
                raise self._failed(ERASE, f"its sanitize has {state}; replace the disk")
            progress(fraction, "sanitize")
            self.host.pause(_SANITIZE_INTERVAL)
        raise self._failed(ERASE, f"its sanitize did not end within {self.erasure.limit:g} s")

    @contextlib.contextmanager
    def _controller(self) -> Iterator[str]:
        """Give the name of the controller of a function that nobody uses.

        A virtual function of a divided disk has no driver between its guests. It has the driver
        ``nvme`` for this time; one that an interrupted step has left there stays.
        """
        run = self.host.privileged.run
        lent = False
        try:
            for _ in range(_PATIENCE):
                function = self._idle().functions[self.function]
                driver = function.host_driver
                if driver is None and not lent:
                    lent = True
                    if function.parent is not None:
                        run(actions.SetDriverOverride(self.function, "nvme"))
                    run(actions.Probe(self.function))
                if driver == "nvme" and (name := self._ready_controller()) is not None:
                    break
                self.host.pause(_INTERVAL)
            else:
                raise self._failed(
                    ERASE,
                    f"its driver is {driver} and not nvme {_PATIENCE} s after the guest, or its "
                    "controller is not ready; bind it to nvme, or set option clean to reset",
                )
            yield name
        finally:
            if lent and function.parent is not None:
                run(actions.Unbind(self.function))
                run(actions.SetDriverOverride(self.function, ""))

    def _ready_controller(self) -> str | None:
        """Return the name of the function's controller if it works."""
        directory = f"/sys/bus/pci/devices/{self.function}/nvme"
        if not self.host.exists(directory):
            return None
        names = [name for name in self.host.list_dir(directory) if _CONTROLLER.fullmatch(name)]
        if len(names) != 1:
            return None
        state = read_if_exists(self.host.read_text, f"{directory}/{names[0]}/state")
        return names[0] if state is None or state.strip() == "live" else None

    def _idle(self) -> Scan:
        """Return a scan in which nobody uses the function; wait for that for a limited time."""
        reason: str | None = None
        for _ in range(_PATIENCE):
            scan = Scan(self.host)
            function = scan.functions.get(self.function)
            if function is None:
                reason = scan.unreadable.get(str(self.function), "it is not on the bus")
            else:
                reason = scan.refusal(function, managed=False, together=self.together)
            if reason is None:
                return scan
            self.host.pause(_INTERVAL)
        raise self._failed("cleaning", f"{self.function} is not cleaned: {reason}")

    def _answers(self) -> bool:
        try:
            config = self.host.read_bytes(f"/sys/bus/pci/devices/{self.function}/config")
        except exception.HostError:
            return False
        return pci_function.answers(config)

    def _host_driver(self) -> str | None:
        try:
            target = self.host.readlink(f"/sys/bus/pci/devices/{self.function}/driver")
        except exception.HostError:
            return None
        return posixpath.basename(target)

    def _failed(self, verb: str, reason: str) -> exception.DriverFailed:
        return exception.DriverFailed(driver=self.driver, verb=verb, reason=reason)
