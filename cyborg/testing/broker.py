# SPDX-License-Identifier: Apache-2.0
"""A broker's part of a run: a name that nobody else uses, and nothing left behind in the end."""

import contextlib
from collections.abc import Iterator
from uuid import uuid4

from kombu.connection import Connection

from cyborg.model.names import AGENT, CONDUCTOR


@contextlib.contextmanager
def exchange(url: str, *hosts: str) -> Iterator[str]:
    """The name of an exchange that nobody uses yet, for daemons on these hosts.

    What they made on the broker of ``url`` is removed in the end, but for what belonged to one
    connection; that goes when it has not been used for [oslo_messaging_rabbit]
    rabbit_transient_queues_ttl seconds.
    """
    name = f"cyborg-{uuid4().hex[:12]}"
    yield name
    with connection(url) as one:
        channel = one.channel()
        for topic in (f"{name}.{binary}" for binary in (CONDUCTOR, AGENT)):
            for queue in (topic, *(f"{topic}.{host}" for host in hosts)):
                channel.queue_delete(queue)
            channel.exchange_delete(f"{topic}_fanout")
        channel.exchange_delete(name)


def connection(url: str, patience: float | None = None) -> Connection:
    """A connection that is not made yet; ``patience`` in seconds."""
    address = url.replace("rabbit://", "amqp://", 1)
    return Connection(address, connect_timeout=patience)  # type: ignore[no-untyped-call]
