# SPDX-License-Identifier: Apache-2.0
"""Connections to RabbitMQ that pause after each failure and say why they do not work.

oslo.messaging retries for ever inside its connections where a broker cannot be reached, gives up
where a broker refuses, and reads from a refused connection without a pause (230 tracebacks per
second). The connections of this module try once, so that their callers decide, note the reason of
a failure in ``Troubles``, and pause before a consumer tries again.
"""

import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from uuid import uuid4

import oslo_messaging
from oslo_messaging._drivers import amqp as rpc_amqp
from oslo_messaging._drivers import common as rpc_common
from oslo_messaging._drivers import impl_rabbit

from cyborg.model.process import BusFault

LOG = logging.getLogger(__name__)

#: From agents to any conductor.
CONDUCTOR_AGENTS_TOPIC: Final = "cyborg-conductor-agents"

#: The parts of a process that use the bus, as ``Troubles`` names them in the log.
SERVER: Final = "RPC server"
AGENTS_SERVER: Final = "RPC server for agents"
SENDER: Final = "RPC sender"
_CONSUMER: Final = "RPC consumer"
_REPLIES: Final = "RPC reply queue"

#: Pauses after a failure, in seconds: the first one, and the longest.
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 10.0
#: How much of the name of a host is in the name of a queue, which may have 255 bytes.
_LONGEST_HOST: Final = 180
#: What a broker answers; py-amqp is a requirement of oslo.messaging's driver, not of this service.
_AMQPError: Final = impl_rabbit.amqp_ex.AMQPError
#: The argument of a consumer that is its priority at RabbitMQ.
_PRIORITY: Final = "x-priority"
#: The methods of AMQP that a broker answers within a connection that it has accepted.
_OF_CHANNELS: Final = ("Basic", "Channel", "Exchange", "Queue")
#: What ``ensure`` raises about one message and not about the connection.
_OF_ONE_MESSAGE: Final = (
    rpc_amqp.AMQPDestinationNotFound,
    oslo_messaging.MessageUndeliverable,
    rpc_common.Timeout,
)


class BrokerFailure(oslo_messaging.MessageDeliveryFailure):
    """The bus cannot be used: ``reason`` and ``refused`` as in ``Trouble``."""

    def __init__(self, reason: str, *, refused: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.refused = refused


class Troubles:
    """Why the parts of one process cannot use the bus; any thread may write and read.

    The log has one WARNING per reason, and one INFO line when every part works again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[str, BusFault] = {}

    def failed(self, part: str, error: BaseException) -> None:
        """Note why a part does not work."""
        reason, refused = explain(error)
        with self._lock:
            before = self._parts.get(part)
            is_new = all(trouble.reason != reason for trouble in self._parts.values())
            since = before.since if before else time.monotonic()
            self._parts[part] = BusFault(reason, since, refused)
        if is_new:
            LOG.warning("%s does not work: %s", part, reason)

    def works(self, part: str) -> None:
        """Note that a part works."""
        if part not in self._parts:
            return
        with self._lock:
            ended = self._parts.pop(part, None) is not None and not self._parts
        if ended:
            LOG.info("The message bus works again (%s)", part)

    def of(self, part: str) -> BusFault | None:
        """Return why a part does not work; None while it works."""
        return self._parts.get(part)


class Precedence:
    """Whether the RPC servers of a process receive only requests that no other process can take.

    Any thread may write and read; a server follows within seconds.
    """

    def __init__(self) -> None:
        self.is_last = False


class _RankedConsumer(impl_rabbit.Consumer):
    """A consumer of an RPC server; its connection decides the priority at the broker."""

    def declare(self, conn: "WatchedConnection") -> None:
        """Declare the queue again after a connection; see the parent.

        Raises BrokerFailure, with exchange and queue, if one of them exists with another
        durability or type. The broker names the queue alone, although the exchange may be the one
        to remove: the parent tries a queue that is not durable after a refused exchange.
        """
        try:
            super().declare(conn)
        except impl_rabbit.amqp_ex.PreconditionFailed as error:
            reason, _ = explain(error)
            raise BrokerFailure(
                f"{reason}. The exchange {self.exchange_name} or the queue {self.queue_name} was "
                "declared with another durability or type",
                refused=True,
            ) from error
        self.rank(conn.ranks_last)

    def rank(self, last: bool) -> None:
        """Set the priority with which the consumer begins the next time.

        RabbitMQ gives a message to consumers of the highest priority alone.
        """
        queue = self.queue
        arguments = dict(queue.consumer_arguments or {})
        arguments.pop(_PRIORITY, None)
        if last:
            arguments[_PRIORITY] = -1
        queue.consumer_arguments = arguments


class WatchedConnection(impl_rabbit.Connection):
    """A connection that tries once, and whose consumers pause after a failure.

    A failure of a consumer drops the connection. The next attempt connects and declares queue and
    consumer again, so that the consumer recovers from whatever the broker has lost or refused.
    """

    #: The consumers that have to begin, by the tags that the parent has given to them.
    _new_tags: set[int]

    def __init__(
        self,
        conf: Any,
        url: Any,
        purpose: str,
        retry: int | None = None,
        *,
        troubles: Troubles,
        precedence: Precedence,
    ) -> None:
        self._troubles = troubles
        self._precedence = precedence
        #: Whether other processes have precedence over the RPC server of this connection.
        self.ranks_last = False
        # A consumer replaces this when it declares its queue.
        self._part = SENDER if purpose == rpc_common.PURPOSE_SEND else _CONSUMER
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._pause = _FIRST_PAUSE
        super().__init__(conf, url, purpose, retry=retry)

    def ensure_connection(self) -> None:
        """Try to connect to each broker of the URL once; raise the error of the last one."""
        self._set_current_channel(None)
        try:
            self.connection.ensure_connection(errback=self._note, max_retries=self._others)
            self._set_current_channel(self.connection.channel())
        except Exception as error:
            raise self._failed(error) from error
        self.set_transport_socket_timeout()
        if self._part in (SENDER, _CONSUMER):
            self._troubles.works(self._part)

    def ensure(
        self,
        method: Callable[..., Any],
        retry: int | None = None,
        *,
        recoverable_error_callback: Callable[[BaseException], None] | None = None,
        error_callback: Callable[[BaseException], None] | None = None,
    ) -> Any:
        """Run a method of the connection; a consumer tries each broker once, and not for ever."""

        def noting(callback: Callable[[BaseException], None] | None, error: BaseException) -> None:
            self._note(error)
            if callback is not None:
                callback(error)

        if retry is None and self._part != SENDER:
            retry = self._others + 1
        try:
            result = super().ensure(
                method,
                retry=retry,
                recoverable_error_callback=partial(noting, recoverable_error_callback),
                error_callback=partial(noting, error_callback),
            )
        except _OF_ONE_MESSAGE:
            raise
        except Exception as error:
            raise self._failed(self._error or error) from error
        if self._part == SENDER:
            self._troubles.works(SENDER)
        return result

    def declare_topic_consumer(
        self, exchange_name: str, topic: str, *args: Any, **kwargs: Any
    ) -> None:
        """Declare the consumer of an RPC server; see the parent."""
        self._part = server_part(topic)
        self.ranks_last = self._precedence.is_last
        super().declare_topic_consumer(exchange_name, topic, *args, **kwargs)

    def declare_consumer(self, consumer: Any) -> Any:
        """Declare a consumer, with a priority if it is one of an RPC server; see the parent."""
        if self._part in (SERVER, AGENTS_SERVER):
            # The parent constructs it.
            consumer.__class__ = _RankedConsumer
        return super().declare_consumer(consumer)

    def declare_direct_consumer(self, *args: Any, **kwargs: Any) -> None:
        """Declare the consumer of a queue for replies; see the parent."""
        self._part = _REPLIES
        super().declare_direct_consumer(*args, **kwargs)

    def consume(self, timeout: float | None = None) -> None:
        """Handle messages; raise ``Timeout`` if none arrive, after a pause if none can arrive."""
        self._error = None
        try:
            self._follow_precedence()
            super().consume(timeout=timeout)
        except rpc_common.Timeout:
            # The parent also raises it out of a failure. Tags are new until the broker has
            # accepted the consumers, and again after each failure.
            if not self._new_tags:
                self._consumes()
                raise
        except Exception as error:  # noqa: BLE001
            # The callers log whatever else is raised, and come back without a pause.
            self._error = self._error or error
        else:
            self._consumes()
            return
        if self._error is not None:
            self._failed(self._error)
            self._stopping.wait(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._drop()
        raise rpc_common.Timeout

    def _follow_precedence(self) -> None:
        """Begin to consume again, with another priority, if that of this process has changed."""
        last = self._precedence.is_last
        if self._part not in (SERVER, AGENTS_SERVER) or self.ranks_last is last:
            return
        with self._connection_lock:
            for consumer, tag in list(self._consumers.items()):
                if tag not in self._new_tags:
                    consumer.cancel(tag)
                consumer.rank(last)
                # A quorum queue may keep the priority of a consumer whose tag is used again.
                self._consumers[consumer] = next(self._tags)
                self._active_tags[consumer.queue_name] = self._consumers[consumer]
            self._new_tags = set(self._consumers.values())
        self.ranks_last = last

    def has_consumer(self, queue: str) -> bool:
        """Return whether a process receives from a queue; False if there is no such queue.

        RabbitMQ tells this to every account of the virtual host.
        """
        counts: list[int] = []

        def look() -> None:
            # The broker closes a channel on which it is asked for a queue that is missing.
            missing = contextlib.suppress(impl_rabbit.amqp_ex.NotFound)
            with missing, self.connection.channel() as channel:
                counts.append(channel.queue_declare(queue, passive=True).consumer_count)

        with self._connection_lock:
            self.ensure(look, retry=self._others + 1)
        return any(counts)

    def stop_consuming(self) -> None:
        """Stop, also during a pause; see the parent."""
        super().stop_consuming()
        self._stopping.set()

    def _failed(self, error: BaseException) -> BrokerFailure:
        """Note a failure; return the exception to raise."""
        reason, refused = explain(error, f"{self.connection.hostname}:{self.connection.port}")
        failure = BrokerFailure(reason, refused=refused)
        self._troubles.failed(self._part, failure)
        return failure

    def _consumes(self) -> None:
        self._pause = _FIRST_PAUSE
        self._troubles.works(self._part)

    def _drop(self) -> None:
        """Make the next attempt begin with a new connection."""
        self._new_tags = set(self._consumers.values())
        self._set_current_channel(None)
        self.connection.collect()

    def _note(self, error: BaseException, _interval: float = 0.0) -> None:
        self._error = error

    @property
    def _others(self) -> int:
        """Return how many brokers the URL has besides the first."""
        return max(0, len(self.connection.alt or ()) - 1)


def server_part(topic: str) -> str:
    """Return the part that receives the messages of a topic; a conductor has two of them."""
    return AGENTS_SERVER if CONDUCTOR_AGENTS_TOPIC in topic else SERVER


class _ReplyQueues:
    """Names the queue in which a process receives replies, without the prefix ``reply_``.

    It stands for the manager of queues of oslo.messaging's driver (its option
    ``use_queue_manager``), which takes the name of the host but not that of the role.
    """

    def __init__(self, role: str, host: str) -> None:
        self._owner = f"{role}.{host[:_LONGEST_HOST]}"

    def get(self) -> str:
        """Return a new name; permissions at the broker may match all before the last dot."""
        return f"{self._owner}.{uuid4().hex}"


def watch(
    transport: Any, troubles: Troubles, precedence: Precedence, *, role: str, host: str
) -> None:
    """Make a transport use ``WatchedConnection``, if it is one of RabbitMQ.

    The queue for replies has the name ``reply_ROLE.HOST.ID``, so that an account at the broker can
    be limited to those of its role and host.
    """
    driver = transport._driver  # oslo.messaging has no public interface for this
    if isinstance(driver, impl_rabbit.RabbitDriver):
        pool = driver._connection_pool
        pool.connection_cls = partial(WatchedConnection, troubles=troubles, precedence=precedence)
        driver._q_manager = _ReplyQueues(role, host)


def has_consumer(transport: Any, queue: str) -> bool:
    """Return whether a process receives from a queue; True if the transport cannot tell.

    Raises BrokerFailure if the broker cannot be asked.
    """
    driver = transport._driver
    if not isinstance(driver, impl_rabbit.RabbitDriver):
        return True
    with driver._get_connection(rpc_common.PURPOSE_SEND, retry=1) as connection:
        return bool(connection.has_consumer(queue))


def explain(error: BaseException, address: str = "") -> tuple[str, bool]:
    """Return why the bus cannot be used, as a clause, and whether a broker has refused it.

    The clause contains the broker's own words and never a password.
    """
    bus = f"the message bus at {address}" if address else "the message bus"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BrokerFailure):
            return cause.reason, cause.refused
        if isinstance(cause, _AMQPError) and cause.reply_code:
            text = " ".join(str(cause.reply_text).split())
            what = "a request" if cause.method_name.startswith(_OF_CHANNELS) else "the connection"
            return f"{bus} refuses {what}: {cause.reply_code} {text}", True
        if isinstance(cause, ssl.SSLError):
            # Any other error of TLS may come from a broker that is starting or stopping.
            refused = "CERTIFICATE" in (cause.reason or "")
            return f"the TLS connection to {bus} fails: {cause.strerror or cause}", refused
        if isinstance(cause, OSError):
            text = (cause.strerror or str(cause) or type(cause).__name__).lower()
            return f"{bus} cannot be reached: {text}", False
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, oslo_messaging.MessagingTimeout):
        return "no answer over the message bus", False
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{bus} cannot be used: {text}", False
