# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

from pathlib import PurePosixPath
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

#: Packages whose tests stay in one process when several share the suite. One Keystone serves all of
#: the first; the 32 workers of the second, and those of nobody else, may ask one PostgreSQL server.
_TOGETHER: Final = frozenset({"keystone", "races"})
#: Packages of files that take minutes; what comes last must be short, for it leaves workers idle.
_LONG: Final = frozenset(
    {"crash", "daemons", "devstack", "readiness", "schema", "services", "watching"}
)

# How long an example takes says something about the machine only.
settings.register_profile(
    "cyborg", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("cyborg")


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # it ships no types
    """Tests of one file stay in one process, for they share what is dear to set up."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        return str(file.parent if file.parent.name in _TOGETHER else file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest in one process; all else keeps its order."""
    items.sort(key=lambda item: item.path.parent.name not in _TOGETHER | _LONG)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Share the suite as described above."""
    return _Scheduling(config, log)
