# SPDX-License-Identifier: Apache-2.0
"""The simulated kernel answers as the real one does, on a copy of the tree of the guest."""

import json
from pathlib import Path

import pytest

from cyborg.drivers.host import LocalHost
from cyborg.testing.kernel.guest import DRIVERS
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.kernel import scenario
from cyborg.tests.kernel.scenario import Player, Transcript, VfioHolder


@pytest.fixture(scope="module")
def simulated() -> Transcript:
    """Return what the simulated kernel answers on the tree of this machine."""
    host = scenario.capture()
    return scenario.play(host, SimulatedKernel(host, DRIVERS), scenario.clean)


@pytest.fixture(scope="module")
def real(simulated: Transcript) -> Transcript:
    """Return what the kernel of this machine answers; the copy of the tree is made before."""
    return scenario.play(LocalHost(), VfioHolder(), scenario.clean)


def test_simulated_kernel_gives_the_answers_of_the_real_one(
    real: Transcript, simulated: Transcript
) -> None:
    assert simulated == real


def test_transcript_for_other_machines_has_the_answers_of_this_kernel(real: Transcript) -> None:
    transcript = json.loads(Path(__file__).with_name("transcript.json").read_text())
    assert transcript[: len(real)] == [list(step) for step in real]


@pytest.mark.machine("iommu-off")
def test_simulated_kernel_without_iommu_gives_the_answers_of_the_real_one() -> None:
    copy = scenario.capture()
    devices = "/sys/bus/pci/devices"
    card = next(
        address
        for address in copy.list_dir(devices)
        if copy.read_text(f"{devices}/{address}/vendor") == "0x1234\n"
    )
    names = {card: "<card>"}
    steps = list(scenario.without_iommu(card))
    simulated = Player(copy, SimulatedKernel(copy, DRIVERS, iommu=False), names).play(steps)
    assert simulated == Player(LocalHost(), VfioHolder(), names).play(steps)
    assert ("write /sys/bus/pci/drivers/vfio-pci/bind '<card>'", "EINVAL") in simulated
