# SPDX-License-Identifier: Apache-2.0
"""The simulated kernel answers as the real one does, on a copy of the tree of the guest."""

import json
from pathlib import Path

import pytest

from cyborg.drivers.host import LocalHost
from cyborg.testing.kernel.guest import DRIVERS
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.kernel.scenario import CLEAN, Player, Transcript, VfioHolder, capture


@pytest.fixture(scope="module")
def simulated() -> Transcript:
    """Return what the simulated kernel answers on the tree of this machine."""
    host = capture()
    return Player(host, SimulatedKernel(host, DRIVERS)).play(CLEAN)


@pytest.fixture(scope="module")
def real(simulated: Transcript) -> Transcript:
    """Return what the kernel of this machine answers; the copy of the tree is made before."""
    return Player(LocalHost(), VfioHolder()).play(CLEAN)


def test_simulated_kernel_gives_the_answers_of_the_real_one(
    real: Transcript, simulated: Transcript
) -> None:
    assert simulated == real


def test_transcript_for_other_machines_has_the_answers_of_this_kernel(real: Transcript) -> None:
    transcript = json.loads(Path(__file__).with_name("transcript.json").read_text())
    assert transcript[: len(real)] == [list(step) for step in real]
