# SPDX-License-Identifier: Apache-2.0
"""What tests and benchmarks leave on a message broker that is not theirs alone: nothing.

Queues of topics and servers are durable and stay until somebody removes them. The names of others
(for replies, and for what is told to all) are known to oslo.messaging only, so that those expire.
"""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self
from urllib.parse import urlsplit
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


class Tenant:
    """A user and a virtual host of a test's own, and their life on the broker.

    It needs the right to run ``rabbitmqctl`` on the machine of the broker, or ``control``, which
    runs it for another node. A context manager: both are gone in the end. Nothing is made before a
    method asks for it.
    """

    def __init__(self, url: str, control: Callable[..., str] | None = None) -> None:
        parts = urlsplit(url)
        self._rabbitmqctl = control or rabbitmqctl
        self.name = f"cyborg-test-{uuid4().hex[:12]}"
        self.password = uuid4().hex
        self.url = f"rabbit://{self.name}:{self.password}@{parts.hostname}:{parts.port or 5672}"
        self.url = short_lived(f"{self.url}/{self.name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self._control("delete_vhost", self.name, needed=False)
        self._control("delete_user", self.name, needed=False)

    def add_user(self, password: str) -> None:
        """Make the user, with a password that may be wrong."""
        self._control("add_user", self.name, password)

    def change_password(self, password: str) -> None:
        """Give the user a password that may be wrong."""
        self._control("change_password", self.name, password)

    def mend_password(self) -> None:
        """Give the user the password that ``url`` holds."""
        self._control("change_password", self.name, self.password)

    def add_vhost(self) -> None:
        """Make the virtual host; the user has no permission there."""
        self._control("add_vhost", self.name)

    def delete_vhost(self) -> None:
        """Remove the virtual host with everything in it."""
        self._control("delete_vhost", self.name)

    def permit(self) -> None:
        """Let the user do everything in the virtual host."""
        self._control("set_permissions", "-p", self.name, self.name, ".*", ".*", ".*")

    def forbid(self) -> None:
        """Withdraw all permissions, and close the connections that were made with them.

        The user may still connect, and do nothing then.
        """
        self._control("set_permissions", "-p", self.name, self.name, "^$", "^$", "^$")
        self.disconnect()

    def limit_connections(self, number: int) -> None:
        """Let the virtual host have so many connections; -1 is any number."""
        limits = json.dumps({"max-connections": number})
        self._control("set_vhost_limits", "-p", self.name, limits)

    def disconnect(self) -> None:
        """Close all connections of the virtual host."""
        self._control("close_all_connections", "-p", self.name, "a test closes it")

    def queues(self) -> set[str]:
        """The names of the queues that have a consumer."""
        listed = self._control("list_queues", "-p", self.name, "name", "consumers", "--silent")
        rows = (line.split() for line in listed.splitlines())
        return {row[0] for row in rows if len(row) == 2 and row[1] != "0"}

    def _control(self, *arguments: str, needed: bool = True) -> str:
        """Run rabbitmqctl; RuntimeError when it fails, unless that does not matter."""
        try:
            return self._rabbitmqctl(*arguments)
        except RuntimeError:
            if needed:
                raise
            return ""


def rabbitmqctl(
    *arguments: str, program: str = "rabbitmqctl", environment: Mapping[str, str] | None = None
) -> str:
    """Run the command and return its standard output; raises RuntimeError when it fails."""
    done = subprocess.run(
        [program, "--quiet", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    if done.returncode:
        raise RuntimeError(f"rabbitmqctl {arguments[0]}: {done.stdout}{done.stderr}")
    return done.stdout


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
