# SPDX-License-Identifier: Apache-2.0
"""The health of a PCI Express function: its error counters, its link, and whether it answers.

The files are those of the kernel's documents sysfs-bus-pci and sysfs-bus-pci-devices-aer_stats.
Reading them needs no privileges, whatever driver the function is bound to.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from cyborg import exception
from cyborg.drivers import pci_function
from cyborg.drivers.files import is_missing
from cyborg.drivers.host import Host
from cyborg.model.health import Signal

#: The signals of the policy by the end of the name of their file.
_COUNTERS: Final = {
    "aer_fatal": "aer_dev_fatal",
    "aer_nonfatal": "aer_dev_nonfatal",
    "aer_correctable": "aer_dev_correctable",
}
_CLASSES: Final = {"aer_fatal": "fatal", "aer_nonfatal": "non-fatal"}
#: A counter: the name of an error and how often it happened.
_COUNT: Final = re.compile(r"^([A-Za-z]\w*) ([0-9]{1,18})$", re.MULTILINE)
#: "8.0 GT/s PCIe" or "8 GT/s"; other texts are "Unknown".
_SPEED: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?) GT/s")
#: The classes of devices that lower the speed of an idle link: graphics, processing accelerators.
_IDLING: Final = ("0x03", "0x12")
_BRIDGE: Final = "0x0604"
_MAX_WIDTH: Final = 32
_IDENTITY: Final = ("vendor", "device", "subsystem_vendor", "subsystem_device")


@dataclass(frozen=True)
class PcieState:
    """What the files of a function say; None: the kernel does not tell, or there is no such file.

    ``access`` is ``unreachable`` or ``gone``, None for a function that answers. ``counters`` maps
    a signal of the policy and the name of an error to the number of errors, on both sides of the
    link. ``best_width`` and ``best_speed`` are what both sides support. ``card`` names the model.
    """

    access: str | None = None
    counters: Mapping[tuple[str, str], int] = field(default_factory=dict)
    width: int | None = None
    speed: float | None = None
    best_width: int | None = None
    best_speed: float | None = None
    idling: bool = False
    card: str = ""


@dataclass(frozen=True)
class Baseline:
    """What later states of a function are compared with: error counters, and its best link."""

    counters: Mapping[tuple[str, str], int]
    width: int | None = None
    speed: float | None = None
    card: str = ""

    @classmethod
    def of(cls, state: PcieState) -> Self:
        """Return the baseline of a function that is seen for the first time."""
        return cls(state.counters, state.width, state.speed, state.card)

    def after(self, state: PcieState) -> "Baseline":
        """Return the baseline after a state: another card or counters that started again count.

        A counter that is lower than before has started again, as after a boot of the host.
        """
        if state.access is not None:
            return self
        if state.card != self.card:
            return Baseline.of(state)
        reset = any(state.counters.get(key, 0) < count for key, count in self.counters.items())
        return Baseline(
            state.counters if reset else self.counters,
            max(filter(None, (self.width, state.width)), default=None),
            max(filter(None, (self.speed, state.speed)), default=None),
            self.card,
        )

    def dump(self) -> dict[str, Any]:
        """Return the baseline as plain data."""
        counters = [[*names, count] for names, count in sorted(self.counters.items())]
        return {"counters": counters, "width": self.width, "speed": self.speed, "card": self.card}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """Return the baseline of plain data; raises KeyError, TypeError and ValueError."""
        counters = {(str(name), str(code)): int(count) for name, code, count in data["counters"]}
        return cls(counters, data["width"], data["speed"], data["card"])


def read(host: Host, address: str) -> PcieState:
    """Read the state of a function; one that left the bus, or does not answer, is no error.

    Raises exception.HostError when the files cannot be read for another reason.
    """
    function = f"/sys/bus/pci/devices/{address}"
    try:
        path = host.realpath(function)
        # A read of its configuration space would wake a function that sleeps.
        awake = _text(host, f"{path}/power/runtime_status") != "suspended"
        if awake and not pci_function.answers(host.read_bytes(f"{path}/config")):
            return PcieState("unreachable")
    except exception.HostError as error:
        if not is_missing(error):
            raise
        # A recorded host has the directory without the file.
        if not host.exists(function):
            return PcieState("gone")
        path = host.realpath(function)
    port: str | None = path.rpartition("/")[0]
    if not (_text(host, f"{port}/class") or "").startswith(_BRIDGE):
        port = None
    counters = dict(_counters(host, path))
    for key, count in _counters(host, port) if port else ():
        counters[key] = counters.get(key, 0) + count
    return PcieState(
        None,
        counters,
        _width(host, f"{path}/current_link_width"),
        _speed(host, f"{path}/current_link_speed"),
        _least(_width(host, f"{end}/max_link_width") for end in (path, port) if end),
        _least(_speed(host, f"{end}/max_link_speed") for end in (path, port) if end),
        (_text(host, f"{path}/class") or "").startswith(_IDLING),
        " ".join(_text(host, f"{path}/{name}") or "" for name in _IDENTITY),
    )


def signals(before: Baseline, state: PcieState) -> Iterator[Signal]:
    """Yield what the state of a function tells, compared with its baseline."""
    if state.access == "gone":
        yield Signal("pci", "access", state.access, "the PCI function has left the bus")
    elif state.access is not None:
        yield Signal("pci", "access", state.access, "the PCI function does not answer")
    for (name, code), count in sorted(state.counters.items()):
        new = count - before.counters.get((name, code), 0)
        if new > 0:
            kind = _CLASSES.get(name, "correctable")
            yield Signal("pci", name, code, f"new {kind} PCIe errors: {new} {code}")
    for name, current, best, first, sign, unit in (
        ("link_width", state.width, state.best_width, before.width, "x", ""),
        (
            "idle_link_speed" if state.idling else "link_speed",
            *(state.speed, state.best_speed, before.speed, "", " GT/s"),
        ),
    ):
        what = name.removeprefix("idle_").replace("_", " ")
        if current is not None and first is not None and current < first:
            text = f"{what} is {sign}{current:g}{unit}, it was {sign}{first:g}{unit}"
            yield Signal("pci", name, "below_first", text)
        elif current is not None and best is not None and current < best:
            text = f"{what} is {sign}{current:g}{unit}, both ends support {sign}{best:g}{unit}"
            yield Signal("pci", name, "below_best", text)


def _counters(host: Host, path: str) -> Iterator[tuple[tuple[str, str], int]]:
    for signal, name in _COUNTERS.items():
        for code, count in _COUNT.findall(_text(host, f"{path}/{name}") or ""):
            if not code.startswith("TOTAL_"):
                yield (signal, code), int(count)


def _least(values: Iterator[Any]) -> Any:
    return min((value for value in values if value is not None), default=None)


def _width(host: Host, path: str) -> int | None:
    """Return the width of a link; the kernel shows 0 or 255 where it does not know it."""
    text = _text(host, path) or ""
    width = int(text) if re.fullmatch(r"[0-9]{1,3}", text) else 0
    return width if 0 < width <= _MAX_WIDTH else None


def _speed(host: Host, path: str) -> float | None:
    match = _SPEED.match(_text(host, path) or "")
    return float(match[1]) if match else None


def _text(host: Host, path: str) -> str | None:
    """Return a file without surrounding white space, None if it cannot be read."""
    try:
        return host.read_text(path).strip()
    except exception.HostError:
        return None
