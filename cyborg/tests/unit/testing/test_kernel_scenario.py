# SPDX-License-Identifier: Apache-2.0
"""The simulated kernel gives the answers of a real one, on a machine that code describes."""

import json
from pathlib import Path

from cyborg.testing.kernel.guest import DRIVERS, guest
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.kernel import scenario


def test_scenario_has_the_transcript_of_the_real_kernel() -> None:
    host = guest()
    transcript = scenario.play(host, SimulatedKernel(host, DRIVERS), scenario.complete)
    recorded = json.loads(Path(scenario.__file__).with_name("transcript.json").read_text())
    assert [list(step) for step in transcript] == recorded
