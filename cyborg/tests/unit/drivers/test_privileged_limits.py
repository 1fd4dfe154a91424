# SPDX-License-Identifier: Apache-2.0
"""A privileged process, or a program that it runs, that never ends does not hold the agent."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from oslo_privsep import comm

from cyborg import exception
from cyborg.drivers.privileged.action import Context
from cyborg.drivers.privileged.actions import ReadQatHeartbeat
from cyborg.drivers.privileged.channel import Channel, Connection
from cyborg.drivers.privileged.client import Client
from cyborg.drivers.privileged.contexts import EXPORTS
from cyborg.drivers.privileged.kernel import LinuxKernel
from cyborg.model.pci import PciAddress

#: In seconds. Nothing answers, so that it is never too short.
SOON = 0.05
#: The longest time that an operator may have to wait for one action, in seconds.
LONGEST = 3600.0


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket in place of that of the privileged process, from which nobody reads."""
    with closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(str(tmp_path / "socket"))
        made.listen()
        yield made


def test_process_that_does_not_begin_to_answer_is_given_up(listener: socket.socket) -> None:
    with closing(Connection()) as connection:
        connection.connect(listener.getsockname())
        with pytest.raises(exception.HostError, match="it did not begin to answer"):
            Channel(connection, Context.OBSERVE, patience=SOON)


def test_action_that_never_ends_is_given_up(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin() -> None:
        """Answer the greeting, and read the action without an answer."""
        connection, _ = listener.accept()
        while connection.recv(1) != b"\n":
            pass
        channel = comm.ServerChannel(connection)
        number, _greeting = next(channel)
        channel.send((number, (comm.Message.PONG.value,)))
        list(channel)

    threading.Thread(target=begin, daemon=True).start()
    context = EXPORTS[Context.OBSERVE].context
    monkeypatch.setattr(context, "timeout", SOON)
    monkeypatch.setattr(context, "channel", None)
    client = Client(socket_path=listener.getsockname(), exports=lambda: EXPORTS, journal=print)
    with pytest.raises(exception.HostError, match=r"has not answered for 0\.05 s"):
        client.run(ReadQatHeartbeat(PciAddress.parse("0000:3b:00.0")))
    assert context.channel is not None
    context.channel.close()


@pytest.mark.parametrize("kind", Context)
def test_each_context_has_a_limit(kind: Context) -> None:
    limit = EXPORTS[kind].context.timeout
    assert limit is not None
    assert 0 < limit <= LONGEST


def test_program_that_never_ends_is_killed() -> None:
    with pytest.raises(exception.HostError, match="sleep"):
        LinuxKernel().run(["/usr/bin/sleep", "infinity"], timeout=SOON)
