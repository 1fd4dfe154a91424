# SPDX-License-Identifier: Apache-2.0
"""The survey of the PCI bus: what it tells of a card, and that there is no second survey."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from cyborg import drivers
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.pci_survey import Card, Survey
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.testing import servers, situations
from cyborg.testing.fake_host import FakeHost

PACKAGE = Path(drivers.__file__).parent
#: What a survey does → the modules of drivers that may do it. A verb asks again before it acts.
STEPS = {
    "scan.refusal": {"pci_survey", "vf_layout", "function_cleaning"},
    "Survey": {"card_driver"},
    "vf_layout.read": {"pci_survey"},
    "vf_layout.divide": {"card_driver"},
    # The services of QAT cards and MIG are layouts of their own.
    "CardLayouts": {"card_driver", "intel_qat", "nvidia_gpu"},
    "FunctionCleaner": {"card_driver"},
}
PF, VFS = servers.QAT_PF, servers.QAT_VFS


def callers(name: str) -> Iterator[str]:
    """Yield the modules of drivers that call this name."""
    for file in PACKAGE.rglob("*.py"):
        calls = (
            node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)
        )
        # The scan of an object is a scan, too.
        if any(f".{ast.unparse(call.func)}".endswith(f".{name}") for call in calls):
            yield file.stem


@pytest.mark.parametrize("name", STEPS)
def test_each_step_of_a_survey_has_one_place(name: str) -> None:
    assert set(callers(name)) == STEPS[name]


@pytest.fixture
def host() -> FakeHost:
    return servers.server()


def surveyed(host: FakeHost, scan: Scan | None = None, **facts: object) -> Card:
    """Return the card of QuickAssist with its virtual functions, after a survey."""
    scan = scan or Scan(host)
    function = scan.functions[PciAddress.parse(PF)]
    parts = tuple(scan.virtual_functions(function.address))
    (card,) = Survey("compute-1", nothing).cards(
        scan,
        [Card(function.address, function, parts, **facts)],  # type: ignore[arg-type]
    )
    return card


def nothing(scan: Scan, function: PciFunction) -> None:
    """Refuse no function."""


def guests(card: Card) -> list[str]:
    return [str(guest.address) for guest in card.guests]


def test_functions_that_nothing_uses_are_for_guests(host: FakeHost) -> None:
    card = surveyed(host)
    assert (guests(card), card.refused, card.reason) == ([*VFS], {}, None)


def test_reason_of_the_guard_precedes_that_of_the_driver(host: FakeHost) -> None:
    situations.hold(host, VFS[0])
    own = {PciAddress.parse(vf): "the driver refuses it" for vf in VFS}
    card = surveyed(host, refused=own)
    texts = [card.refused[PciAddress.parse(vf)] for vf in VFS]
    assert texts[0].startswith("held through VFIO")
    assert texts[1] == "the driver refuses it"
    assert card.reason == "none of its 2 virtual functions can be offered"


def test_card_with_a_reason_is_not_examined(host: FakeHost) -> None:
    scan = Scan(host)
    assert scan.functions
    before = host.touches
    card = surveyed(host, scan, reason="it is not set up")
    assert (guests(card), card.reason) == ([], "it is not set up")
    assert host.touches == before


def test_function_that_root_has_exempted_is_not_judged(host: FakeHost) -> None:
    situations.hold(host, VFS[0])
    assert guests(surveyed(host, guarded=False)) == [*VFS]


def test_functions_that_are_only_listed_are_not_probed(host: FakeHost) -> None:
    """Who holds a function shows only in the open files of processes."""
    situations.hold(host, VFS[0])
    assert guests(surveyed(host)) == [VFS[1]]
    assert guests(surveyed(host, probed=False)) == [*VFS]


def test_part_that_a_guest_had_alone_is_not_part_of_a_unit(host: FakeHost) -> None:
    """The conductor keeps the unit, and the second function from before it was a part."""
    situations.hold(host, VFS[1])
    unit = f"compute-1_{VFS[0]}"
    kept = Scan(host, managed_deployables={unit})
    assert guests(surveyed(host, kept, unit=unit, together=True)) == [*VFS]
    alone = Scan(host, managed_deployables={unit, f"compute-1_{VFS[1]}"})
    card = surveyed(host, alone, unit=unit, together=True)
    text = f"guests get it together with {VFS[1]}: held through VFIO"
    assert card.refused[PciAddress.parse(VFS[0])].startswith(text)


def test_parts_wait_for_the_layout_of_their_card(host: FakeHost) -> None:
    card = surveyed(host, desired_vfs=1)
    assert card.division is not None
    assert set(card.refused.values()) == {f"its card {PF} does not have its layout"}
    kept = Scan(host, managed_deployables={f"compute-1_{VFS[1]}"})
    assert guests(surveyed(host, kept, desired_vfs=1)) == [VFS[1]]
