# SPDX-License-Identifier: Apache-2.0
"""Peers outside the bus that never answer: each call of them has a limit."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.clients.limits import UnifiedLimits
from cyborg.rpc.threads import in_thread
from cyborg.systemd import Manager
from cyborg.tests.fixtures.waiting import result


@pytest.fixture
def full(tmp_path: Path) -> Iterator[str]:
    """Return the address of a service manager that reads no message and can take no further one."""
    address = str(tmp_path / "notify")
    with (
        contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager,
        contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as filler,
    ):
        manager.bind(address)
        filler.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                filler.sendto(b"x", address)
        yield address


def test_service_manager_that_reads_nothing_does_not_keep_the_process(full: str) -> None:
    manager = Manager({"NOTIFY_SOCKET": full})
    assert result(in_thread(manager.ready)) is None


def test_request_for_limits_of_projects_has_a_timeout() -> None:
    """oslo.limit has none by default."""
    with pytest.raises(exception.Unavailable):
        UnifiedLimits().registered()
    assert cfg.CONF.oslo_limit.timeout == 10
    cfg.CONF.clear_default("timeout", group="oslo_limit")
