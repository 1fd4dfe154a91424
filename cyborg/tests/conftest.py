# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

import logging
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

#: Packages whose tests stay in one process when several share the suite. One Keystone serves all of
#: the first two; the 32 workers of the third, and those of nobody else, may ask one PostgreSQL
#: server.
_TOGETHER: Final = frozenset({"keystone", "long", "races"})
#: Packages of files that take minutes; what comes last must be short, for it leaves workers idle.
_LONG: Final = frozenset(
    {"crash", "daemons", "devstack", "enabling", "schema", "services", "testing", "watching"}
)
#: The contract of drivers on many hosts: a class for each host, which shares nothing with others.
_BY_CLASS: Final = "testing"
#: pytest leaves these out: tools/kernel test runs them in guests.
collect_ignore: Final = ["kernel"]


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # it ships no types
    """Tests of one file stay in one process, for they share what is dear to set up."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        if file.parent.name == _BY_CLASS:
            return nodeid.rpartition("::")[0]
        return str(file.parent if file.parent.name in _TOGETHER else file)


class _Undeclared(logging.Handler):
    """Keeps what endpoints answered and their commands do not declare."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See Handler."""
        if "does not declare" in record.getMessage():
            self.lines.append(record.getMessage())


@pytest.fixture(scope="session")
def _undeclared() -> Iterator[_Undeclared]:
    handler, logger = _Undeclared(), logging.getLogger("cyborg.rpc.endpoint")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture(autouse=True)
def undeclared_errors(_undeclared: _Undeclared) -> Iterator[list[str]]:
    """Every error that an endpoint of this process answers is declared by its command."""
    yield _undeclared.lines
    lines, _undeclared.lines = _undeclared.lines, []
    assert lines == []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest in one process; all else keeps its order."""
    items.sort(key=lambda item: item.path.parent.name not in _TOGETHER | _LONG)
    # Hypothesis notices that a thread of a running service has used the random module, and warns of
    # the length of what it says about that. A filter of the configuration would import Hypothesis
    # for every test. Tests may call a function that has examples, so the module decides.
    quiet = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item.module, "given"):
            item.add_marker(quiet)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Share the suite as described above."""
    return _Scheduling(config, log)
