# SPDX-License-Identifier: Apache-2.0
"""How often the contracts of single drivers corrupt a host and pull its hardware."""

import pytest

from cyborg.testing.driver_setup import DriverSetup
from cyborg.tests.fixtures import choice


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few times, which the commit chooses; a full run tries as often as vendors do."""
    if not choice.FULL:
        monkeypatch.setattr(DriverSetup, "rounds", 10)
        monkeypatch.setattr(DriverSetup, "moments", 10)
        monkeypatch.setattr(DriverSetup, "seed", choice.generator("corruption").getrandbits(32))
