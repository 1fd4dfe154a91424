# SPDX-License-Identifier: Apache-2.0
"""What is tried on a broker is gone from it afterwards, and nothing else is."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from amqp.exceptions import NotFound
from kombu.connection import Connection

from cyborg.rpc.conductor import ConductorClient
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.broker import connection
from cyborg.tests.fixtures.placement import fresh_host
from cyborg.tests.fixtures.stack import Stack, fresh_exchange, reach
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.deployments import TRANSPORT_URL


@pytest.fixture
def broker() -> Iterator[Connection]:
    with connection(TRANSPORT_URL) as one:
        yield one


@pytest.fixture
def own(beside: Callable[..., Stack]) -> Stack:
    """A stack on an exchange that nobody else uses."""
    return beside(exchange=fresh_exchange())


def there(broker: Connection, name: str, *, exchange: bool = False) -> bool:
    """Whether the broker has a queue, or an exchange, of this name."""
    with broker.channel() as channel:
        try:
            if exchange:
                channel.exchange_declare(name, "topic", passive=True)
            else:
                channel.queue_declare(name, passive=True)
        except NotFound:
            return False
    return True


def test_stack_deletes_its_queues(own: Stack, broker: Connection, tmp_path: Path) -> None:
    host = fresh_host()
    queues = [
        f"{own.exchange}.{one}"
        for one in (
            "cyborg-agent",
            f"cyborg-agent.{host}",
            "cyborg-conductor",
            "cyborg-conductor.control-1",
        )
    ]
    own.start_conductor()
    agent = own.start_agent(host, machine=FakeHost(), state_path=tmp_path)
    eventually(lambda: all(there(broker, one) for one in queues))
    agent.stop()
    # A process that ends may come back to what was sent to it meanwhile.
    assert there(broker, queues[1])
    own.stop()
    assert [one for one in queues if there(broker, one)] == []
    assert not there(broker, own.exchange, exchange=True)


def test_stack_keeps_queues_of_other_processes(own: Stack, broker: Connection) -> None:
    own.start_conductor("control-1")
    topic = f"{own.exchange}.cyborg-conductor"
    with own.beside() as second:
        second.start_conductor("control-2")
        eventually(
            lambda: there(broker, f"{topic}.control-1") and there(broker, f"{topic}.control-2")
        )
    assert there(broker, topic)
    assert not there(broker, f"{topic}.control-2")
    client = reach(ConductorClient(own.bus(), timeout=own.times.rpc))
    client.close()
