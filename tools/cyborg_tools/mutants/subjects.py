# SPDX-License-Identifier: Apache-2.0
"""What is mutated, the tests that must notice it, and the mutants that are known to survive."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cyborg_tools.mutants.mutations import Mutant


@dataclass(frozen=True)
class Subject:
    """Files of the service, and the tests (files or directories) that must notice their mutants."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


_CONDUCTOR: Final = "cyborg/conductor"
_UNIT: Final = "cyborg/tests/unit"
_FUNCTIONAL: Final = "cyborg/tests/functional"
_RULES: Final = "cyborg/tests/functional/rules"
_POOLS: Final = "cyborg/tests/functional/races/test_pools.py"
_CLEANING: Final = "cyborg/tests/functional/rules/test_cleaning.py"
_GROUPS: Final = "cyborg/tests/functional/life/test_groups.py"

SUBJECTS: Final[Mapping[str, Subject]] = {
    "bind": Subject(
        (
            f"{_CONDUCTOR}/arqs/bind.py",
            f"{_CONDUCTOR}/arqs/claims.py",
            f"{_CONDUCTOR}/arqs/create.py",
            "cyborg/db/arqs.py",
        ),
        (
            f"{_UNIT}/conductor/test_bind.py",
            f"{_UNIT}/conductor/test_claims.py",
            f"{_UNIT}/conductor/test_device_health.py",
            f"{_UNIT}/conductor/test_private_profiles.py",
            f"{_UNIT}/api/test_arqs.py",
            f"{_RULES}/test_outbox.py",
            f"{_RULES}/test_binds.py",
            f"{_RULES}/test_several_binds.py",
            f"{_RULES}/test_units.py",
            _POOLS,
            _GROUPS,
        ),
    ),
    "release": Subject(
        (f"{_CONDUCTOR}/arqs/release.py", "cyborg/db/instances.py"),
        (
            f"{_RULES}/test_releases.py",
            f"{_RULES}/test_binds.py",
            f"{_RULES}/test_units.py",
            _CLEANING,
            _POOLS,
        ),
    ),
    "resolve": Subject(
        (f"{_CONDUCTOR}/tasks/units.py", f"{_CONDUCTOR}/tasks/workflow.py"),
        (f"{_UNIT}/conductor/test_workflow.py", f"{_RULES}/test_units.py", _CLEANING, _POOLS),
    ),
    "handles": Subject(
        ("cyborg/db/attach_handles.py",),
        (
            f"{_RULES}/test_handles.py",
            f"{_RULES}/test_binds.py",
            f"{_RULES}/test_units.py",
            f"{_RULES}/test_locks.py",
            _CLEANING,
            _POOLS,
        ),
    ),
    "work": Subject(
        (f"{_CONDUCTOR}/tasks/queue.py", "cyborg/db/work.py"),
        (
            f"{_UNIT}/conductor/test_queue.py",
            f"{_UNIT}/conductor/test_claims.py",
            f"{_UNIT}/conductor/test_workflow.py",
            f"{_RULES}/test_binds.py",
            f"{_RULES}/test_outbox.py",
            f"{_RULES}/test_lost_things.py",
            f"{_RULES}/test_work.py",
            f"{_RULES}/test_units.py",
            f"{_RULES}/test_locks.py",
        ),
    ),
    "leases": Subject(
        (f"{_CONDUCTOR}/leases.py", "cyborg/db/services.py"),
        (
            f"{_UNIT}/conductor/test_leases.py",
            f"{_UNIT}/conductor/test_queue.py",
            f"{_UNIT}/conductor/test_claims.py",
            f"{_UNIT}/conductor/test_removal.py",
        ),
    ),
    "outbox": Subject(
        (f"{_CONDUCTOR}/notifications.py", "cyborg/db/notifications.py", "cyborg/db/events.py"),
        (
            f"{_UNIT}/conductor/test_notifications.py",
            f"{_UNIT}/conductor/test_device_health.py",
            f"{_UNIT}/db/test_events.py",
            f"{_FUNCTIONAL}/watching/test_health.py",
        ),
    ),
    "retirement": Subject(
        (f"{_CONDUCTOR}/hosts/lost_devices.py", "cyborg/db/lost_devices.py"),
        (
            f"{_UNIT}/conductor/test_lost_devices.py",
            f"{_RULES}/test_lost_things.py",
            f"{_FUNCTIONAL}/audit/test_parts.py",
            f"{_FUNCTIONAL}/audit/test_ordered_removals.py",
            f"{_FUNCTIONAL}/audit/test_retirement.py",
            _POOLS,
        ),
    ),
    "agent": Subject(
        (
            "cyborg/agent/device_tasks.py",
            "cyborg/agent/state_store.py",
            "cyborg/drivers/worker.py",
        ),
        (
            f"{_UNIT}/agent/test_health.py",
            f"{_UNIT}/agent/test_device_tasks.py",
            f"{_UNIT}/agent/test_state_store.py",
            f"{_UNIT}/drivers/test_worker.py",
        ),
    ),
    "discovery": Subject(
        (f"{_CONDUCTOR}/operations/discovery.py", "cyborg/agent/discovery_requests.py"),
        (f"{_UNIT}/conductor/test_discovery.py", f"{_UNIT}/agent/test_discovery_requests.py"),
    ),
    "reconcile": Subject(
        ("cyborg/clients/placement_sync.py", "cyborg/agent/prepared_sync.py"),
        (
            f"{_UNIT}/agent/test_prepared_sync.py",
            f"{_FUNCTIONAL}/clients/test_publish.py",
            f"{_FUNCTIONAL}/clients/test_publish_cost.py",
            f"{_FUNCTIONAL}/clients/test_reserve.py",
        ),
    ),
    "ownership": Subject(
        ("cyborg/drivers/ownership.py",),
        tuple(f"{_UNIT}/drivers/test_{name}.py" for name in ("ownership", "open_cards", "pci")),
    ),
}

_EXPLAINED: Final = tomllib.loads(Path(__file__).with_name("explained.toml").read_text())


def _reasons(kind: str) -> Mapping[str, str]:
    return {name: part["reason"] for part in _EXPLAINED[kind] for name in part["mutants"]}


#: The reason why no test can notice a mutant, by its name.
EQUIVALENT: Final = _reasons("equivalent")
#: The reason why no test notices a mutant here or yet, by its name.
SURVIVORS: Final = _reasons("survivors")


def stale(subject: Subject, mutants: Iterable[Mutant]) -> list[str]:
    """Return the explained names that no mutant of a subject has; ``mutants`` are all of these."""
    names = {mutant.name for mutant in mutants}
    explained = [name for name in (*EQUIVALENT, *SURVIVORS) if name.split("::")[0] in subject.files]
    return [name for name in explained if name not in names]
