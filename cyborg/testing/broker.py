# SPDX-License-Identifier: Apache-2.0
"""What tests and benchmarks leave on a message broker that is not theirs alone: nothing.

Queues of topics and servers are durable and stay until somebody removes them. The names of others
(for replies, and for what is told to all) are known to oslo.messaging only, so that those expire.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

from amqp.exceptions import PreconditionFailed
from kombu.connection import Connection
from oslo_config import cfg

from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC, Bus

#: How long a queue for replies outlives its process, in seconds; by default it is half an hour.
_TTL = 60
_OPTION = "rabbit_transient_queues_ttl"
_BROKER = "rabbit:"


def short_lived(url: str) -> str:
    """The same bus; what expires on it does so soon. Only a broker has such."""
    if not url.startswith(_BROKER) or _OPTION in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}{_OPTION}={_TTL}"


def sweep(
    url: str, exchange: str, servers: Iterable[tuple[str, str]], *, used: bool = False
) -> None:
    """Remove the queues of these servers (topic, name) and their exchange; not without a broker.

    What is in use stays, unless it is to go ``used`` or not.
    """
    queues = {name for topic, server in servers for name in (topic, f"{topic}.{server}")}
    if not queues or not url.startswith(_BROKER):
        return
    with connection(url) as one:
        for name in sorted(queues):
            _remove(one, "queue_delete", f"{exchange}.{name}", if_unused=not used)
        _remove(one, "exchange_delete", exchange, if_unused=not used)


@contextlib.contextmanager
def exchange(url: str, *hosts: str) -> Iterator[str]:
    """The name of an exchange that nobody uses yet, for daemons on these hosts.

    What they made on the broker, if there is one, is removed in the end.
    """
    name = f"cyborg-{uuid4().hex[:12]}"
    yield name
    servers = [(topic, host) for topic in (CONDUCTOR_TOPIC, AGENT_TOPIC) for host in hosts]
    sweep(url, name, servers, used=True)


def connection(url: str, patience: float | None = None) -> Connection:
    """A connection to the broker that is not made yet; ``patience`` in seconds."""
    plain = url.partition("?")[0].replace(_BROKER, "amqp:", 1)
    return Connection(plain, connect_timeout=patience)  # type: ignore[no-untyped-call]


class SweptBus(Bus):
    """A connection whose servers' queues can be removed when nobody needs them any more."""

    def __init__(self, conf: cfg.ConfigOpts, *, url: str, exchange: str) -> None:
        super().__init__(conf, url=short_lived(url), exchange=exchange)
        self._place = url, exchange
        self._made: list[tuple[str, str]] = []

    def server(self, topic: str, server: str, endpoint: object) -> Any:
        """See Bus."""
        self._made.append((topic, server))
        return super().server(topic, server, endpoint)

    def sweep(self) -> None:
        """Remove them, but for those that others use."""
        sweep(*self._place, self._made)


def _remove(connection: Any, verb: str, name: str, *, if_unused: bool) -> None:
    """Remove something that may be in use; a refusal is the end of a channel."""
    try:
        with connection.channel() as channel:
            getattr(channel, verb)(name, if_unused=if_unused)
    except PreconditionFailed:
        return
