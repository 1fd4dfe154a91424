# SPDX-License-Identifier: Apache-2.0
"""Run the steps in order; each uses the result of the steps before."""

from collections.abc import Callable
from typing import Final

from cyborg_tools.walkthrough import creation, drivers, hosts, instances, profiles, readiness
from cyborg_tools.walkthrough.scenario import Scenario

STEPS: Final[tuple[Callable[[Scenario], None], ...]] = (
    hosts.come_up,
    drivers.is_installed,
    readiness.is_seen,
    readiness.is_enabled,
    instances.is_bound,
    instances.is_attached,
    instances.is_detached,
    creation.is_created_and_deleted,
    profiles.is_changed,
    drivers.is_updated,
    drivers.is_refused,
    drivers.is_drained,
    hosts.is_forgotten,
)


def play(scenario: Scenario) -> None:
    """Run every step; the first that fails raises StepFailed."""
    for step in STEPS:
        step(scenario)
