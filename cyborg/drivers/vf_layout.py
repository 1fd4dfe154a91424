# SPDX-License-Identifier: Apache-2.0
"""The layouts of cards with SR-IOV: numbers of virtual functions.

In doubt a card keeps its layout: a virtual function that is removed is taken from its guest.
"""

import errno
import re
from dataclasses import dataclass, replace

from cyborg import exception
from cyborg.drivers.base import Progress
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.privileged import actions
from cyborg.drivers.scan import Scan
from cyborg.model.pci import deployable_name

#: The most virtual functions of a layout.
MOST = 255
_LAYOUT = re.compile(r"vfs=([0-9]{1,3})")


def parse_layout(text: str) -> int:
    """Return the number of virtual functions of a layout; raises ValueError with a clause."""
    match = _LAYOUT.fullmatch(text)
    if match is None or int(match[1]) > MOST:
        raise ValueError(f"it is not vfs=N with N from 0 to {MOST}")
    return int(match[1])


def layout_name(vfs: int) -> str:
    """Return the layout with this number of virtual functions."""
    return f"vfs={vfs}"


@dataclass(frozen=True)
class Division:
    """A card that is to have a layout, and its virtual functions at one moment.

    ``desired`` is the number of virtual functions that the configuration requests, ``current``
    that of the host, and ``total`` the largest possible. ``virtual`` are those that can be
    understood, and ``stopped`` says that some of them do not work before the driver has started
    them. ``error`` says why the numbers cannot be read; ``current`` is None then.
    ``refusal`` says why the card must not get the desired number now, None if it may or has it.
    """

    card: PciFunction
    desired: int
    current: int | None = None
    total: int = 0
    virtual: tuple[PciFunction, ...] = ()
    stopped: bool = False
    error: str | None = None
    refusal: str | None = None

    @property
    def pending(self) -> bool:
        """Return whether the card lacks the desired number of virtual functions that work.

        The functions are read before the numbers. If either shows virtual functions that the other
        does not, the card was changed in between: it is neither whole nor divided in this scan.
        """
        changed = bool(self.virtual) != bool(self.current)
        return self.current != self.desired or self.stopped or changed

    @property
    def layouts(self) -> tuple[str, ...]:
        """Return the layouts that the card can have."""
        return tuple(map(layout_name, range(min(self.total, MOST) + 1)))

    @property
    def layout(self) -> str | None:
        """Return the layout that the card has, None if it cannot be read."""
        if self.current is None:
            return None
        return layout_name(self.current) + (", stopped" if self.stopped else "")

    @property
    def facts(self) -> dict[str, str | None]:
        """Return what the list of hardware shows about the layout."""
        return {
            "current": self.layout,
            "desired": layout_name(self.desired),
            "largest": self.layouts[-1],
        }

    @property
    def goal(self) -> str:
        """Return what is to become of the card, as the end of "it is …"."""
        if not self.desired:
            return "made whole, without virtual functions"
        return f"divided into {self.desired} virtual function{'s' if self.desired > 1 else ''}"

    def deployables(self, node: str) -> frozenset[str]:
        """Return the names of the deployables that a guest would lose with this layout.

        They are those of the card and of the parts that it has now. To start parts takes nothing
        from a guest: none has a part that does not work.
        """
        only_started = self.stopped and self.current == self.desired
        functions = (self.card, *(() if only_started else self.virtual))
        return frozenset(deployable_name(node, function.address) for function in functions)


def read(scan: Scan, card: PciFunction, desired: int, *, stopped: bool = False) -> Division:
    """Return how a card is divided now."""
    division = Division(card, desired, stopped=stopped)
    try:
        current, total = scan.vfs(card.address)
    except exception.HostError as error:
        return replace(division, error=str(error), refusal=str(error))
    virtual = tuple(scan.virtual_functions(card.address))
    division = replace(division, current=current, total=total, virtual=virtual)
    return replace(division, refusal=refusal(scan, division, desired) if division.pending else None)


def refusal(scan: Scan, division: Division, vfs: int) -> str | None:
    """Return a clause that says why a card must not get this number of virtual functions now."""
    card, virtual = division.card, division.virtual
    if division.error is not None:
        return division.error
    if vfs > division.total:
        if not division.total:
            return "the host shows no SR-IOV; enable it in the firmware, or remove option layout"
        return f"it can have {division.total} virtual functions at most; lower option layout"
    if card.host_driver is None:
        return "no driver of the host has it, and only its driver can divide it; bind the driver"
    if len(virtual) != division.current:
        return f"{len(virtual)} of its {division.current} virtual functions can be read"
    return use(scan, card)


def use(scan: Scan, card: PciFunction, *, divided: bool = False) -> str | None:
    """Return a clause that says what uses a card or a virtual function of it, None if nothing does.

    A card that is ``divided`` in another way is not whole, either. Nothing counts as managed: the
    guest of a part that this service has given out would lose it.
    """
    virtual = scan.virtual_functions(card.address)
    # Nobody gets the functions themselves now, so a shared IOMMU group matters only later.
    groups = {function.group for function in (card, *virtual)}
    together = frozenset(
        function.address for function in scan.functions.values() if function.group in groups
    )
    # A card with virtual functions is never whole.
    whole = not (virtual or divided)
    reason = scan.refusal(card, managed=False, whole=whole, together=together)
    if reason is not None:
        return reason
    for function in virtual:
        reason = scan.refusal(function, managed=False, together=together)
        if reason is not None:
            return f"its virtual function {function.address}: {reason}"
    return None


def divide(
    scan: Scan,
    division: Division,
    layout: str,
    *,
    host: Host,
    progress: Progress,
    autoprobe: bool | None = None,
) -> None:
    """Give a card another layout; the kernel changes the number of functions through 0 only.

    ``scan`` and ``division`` were read for this call. A card with this layout is not changed.
    ``autoprobe``: see SetVfs. Raises ValueError with a clause if the card must not have the layout,
    or cannot, and exception.HostError if the kernel refuses it.
    """
    address = division.card.address
    try:
        vfs = parse_layout(layout)
    except ValueError as error:
        raise ValueError(f"{layout!r}: {error}") from None
    if vfs == division.current and not division.stopped:
        return
    if (reason := refusal(scan, division, vfs)) is not None:
        raise ValueError(f"{address}: {reason}")
    if vfs == division.current:
        return
    if division.current:
        progress(0.0, f"removing {division.current} virtual functions")
        host.privileged.run(actions.SetVfs(address, 0))
    if vfs:
        progress(0.5, f"creating {vfs} virtual functions")
        try:
            host.privileged.run(actions.SetVfs(address, vfs, autoprobe))
        except exception.HostError as error:
            if error.fields.get("errno") != errno.ENOENT:
                raise
            reason = f"{error}; its driver {division.card.host_driver} may not support SR-IOV"
            raise ValueError(reason) from error
