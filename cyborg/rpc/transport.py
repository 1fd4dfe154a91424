# SPDX-License-Identifier: Apache-2.0
"""One process's connection to the bus, and bounded calls over it.

oslo.messaging blocks far beyond a call's time-out while the broker is away. A ``Line`` therefore
makes each call in a thread of its own and waits only as long as promised; after a call that found
nobody it answers at once with Unavailable until a ping in the background got through again.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import MappingProxyType
from typing import Any, Final

import oslo_messaging
from oslo_config import cfg
from oslo_messaging import opts
from oslo_messaging.rpc.server import RPCServer

from cyborg import exception, tracing
from cyborg.context import REQUEST_ID, carried, ids, working_for
from cyborg.rpc import faults, versions

LOG = logging.getLogger(__name__)

EXCHANGE = "cyborg"
CONDUCTOR_TOPIC = "cyborg-conductor"
AGENT_TOPIC = "cyborg-agent"

#: How long the first request of a process may wait for the first connection, in seconds.
_FIRST_CONNECTION = 3.0
#: How much longer than its time-out a call is waited for, in seconds.
_AND_A_BIT = 1.0
#: How long the end of a process may wait for its connections to be closed, in seconds.
_CLOSING = 5.0
_PING_INTERVAL = 1.0
_PING_TIMEOUT = 5.0
#: A broker is to say so when a ping finds no queue. Otherwise the first conductor of a new broker
#: would be found only when the ping before it has timed out. (The broker's Ack follows; it does not
#: confuse the next message of that channel, for py-amqp reads what there is before it publishes.)
_OR_SAY_SO: Final = oslo_messaging.TransportOptions(at_least_once=True)
#: How long whoever has taken a call may be silent, in seconds; while it works it says so. A server
#: of oslo.messaging that is stopped loses the calls that reach it while its last ones end (its
#: consumer still takes them from RabbitMQ, and nobody looks): they are repeated after this time.
_SILENCE = 5.0


#: What servers of another release raise at a verb, or a version of it, that they do not have.
_UNKNOWN = frozenset({"NoSuchMethod", "UnsupportedVersion"})


class _Dispatcher(oslo_messaging.RPCDispatcher):
    """Does what is asked for the request of whoever asks, so that log lines tell which one it is.

    Verbs that are not there are refused in a line; oslo.messaging would log a fault of ours.
    """

    def dispatch(self, incoming: Any) -> Any:
        """See there; who asks is told the same either way."""
        asked, verb = incoming.ctxt, incoming.message.get("method")
        server = tracing.Kind.SERVER
        with working_for(asked), tracing.span(f"handle {verb}", server, origin=asked):
            return self._dispatch(incoming)

    def _dispatch(self, incoming: Any) -> Any:
        try:
            return super().dispatch(incoming)
        except (oslo_messaging.NoSuchMethod, oslo_messaging.UnsupportedVersion) as refusal:
            LOG.warning("A peer of another release is refused: %s", refusal)
            raise oslo_messaging.ExpectedException from None


class _Server(RPCServer):
    """oslo.messaging's, whose calls run in threads of the standard library.

    The threads of its own choice, futurist's, look once a second whether they are to end; until
    they have, the server takes calls from the broker that nobody will answer.
    """

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._executor_cls = ThreadPoolExecutor


class Bus:
    """The transport of one process; connects when first used.

    ``conf`` must be the global ``cfg.CONF`` (oslo.messaging registers its options there); ``url``
    overrides ``[DEFAULT] transport_url``, ``exchange`` overrides ``[DEFAULT] control_exchange``.
    Services with different exchanges keep apart on one virtual host. ``[upgrade_levels]`` limits
    what is sent. Raises ConfigError for a URL or a limit that cannot be used.
    """

    def __init__(
        self, conf: cfg.ConfigOpts, *, url: str | None = None, exchange: str | None = None
    ) -> None:
        oslo_messaging.set_transport_defaults(EXCHANGE)
        # By itself it registers most of its options at first use, too late to check them.
        for group, options in opts.list_opts():
            conf.register_opts(options, group=group)
        try:
            self._transport = oslo_messaging.get_rpc_transport(
                conf, url=url, allowed_remote_exmods=[]
            )
        except (oslo_messaging.InvalidTransportURL, oslo_messaging.DriverLoadFailure) as fault:
            # The URL itself holds a password.
            raise exception.ConfigError(
                reason="[DEFAULT] transport_url cannot be used; it has the form "
                "rabbit://user:password@host:port/virtual_host."
            ) from fault
        self._exchange = exchange or conf.control_exchange
        levels = conf.upgrade_levels
        self._pins = {
            CONDUCTOR_TOPIC: versions.pinned("conductor", levels.conductor, versions.CONDUCTOR),
            AGENT_TOPIC: versions.pinned("agent", levels.agent, versions.AGENT),
        }

    def server(self, topic: str, server: str, endpoint: object) -> Any:
        """An oslo.messaging RPC server for ``topic.server``; the caller starts and stops it."""
        return _Server(
            self._transport,
            oslo_messaging.Target(exchange=self._exchange, topic=self._queue(topic), server=server),
            _Dispatcher([endpoint], None, oslo_messaging.DefaultRPCAccessPolicy),
            executor="threading",
        )

    def client(self, topic: str) -> Any:
        """An oslo.messaging RPC client that tries a send once, of nothing above the pin."""
        return oslo_messaging.get_rpc_client(
            self._transport,
            oslo_messaging.Target(
                exchange=self._exchange, topic=self._queue(topic), version=versions.FIRST
            ),
            version_cap=self._pins.get(topic),
            retry=1,
        )

    def close(self) -> None:
        """Drop the connections; calls in flight end as unavailable."""
        # Whoever makes a connection holds a lock that this needs, while the broker is away.
        wait((in_thread(self._transport.cleanup, name="bus-close"),), _CLOSING)

    def _queue(self, topic: str) -> str:
        """RabbitMQ calls a queue by its topic alone, whatever the exchange: it must be in it."""
        return topic if self._exchange == EXCHANGE else f"{self._exchange}.{topic}"


class Line:
    """Bounded calls to the servers of one topic.

    ``timeout`` is in seconds and holds for each try of a call; ``sender`` is the endpoint of who
    calls, where it has one; ``later`` is the history of the servers' verbs, by which each message
    is of the lowest version that will do. Every method raises Unavailable when nobody can be
    reached, PinnedVersion for what may not be sent, and OutcomeUnknown when the second try, with
    the same arguments and so the same operation id, went unanswered too.
    """

    def __init__(
        self,
        bus: Bus,
        topic: str,
        *,
        peer: str,
        timeout: float,
        sender: str = "",
        later: versions.Later = MappingProxyType({}),
    ) -> None:
        self._sender = sender
        self._later = later
        self._client = bus.client(topic)
        self._asking = self._client.prepare(timeout=timeout, call_monitor_timeout=_SILENCE)
        self._peer = peer
        self._timeout = timeout
        self._up = threading.Event()
        self._lock = threading.Lock()
        self._pinger: threading.Thread | None = None
        self._since = 0.0
        self._closed: Future[None] = Future()

    @property
    def up(self) -> bool:
        """True while the last ping or call found the peer."""
        return self._up.is_set()

    def reached(self) -> bool:
        """Whether the peer is found; who has only just begun to look waits a moment for it."""
        if self._up.is_set():
            return True
        self._connect()
        patience = self._since + _FIRST_CONNECTION - time.monotonic()
        return self._up.wait(max(0.0, patience))

    @property
    def patience(self) -> float:
        """After so many seconds a call has ended, whatever has become of it."""
        return _FIRST_CONNECTION + 2 * (self._timeout + _AND_A_BIT)

    def call(self, verb: str, *, request_id: str = "", **arguments: Any) -> Any:
        """Ask any server of the topic; a try that times out is repeated once, as it is."""
        if not self.reached():
            raise exception.Unavailable(
                peer=self._peer, reason="no connection over the message bus yet"
            )
        for last in (False, True):
            try:
                reply = self._once(self._asking, verb, request_id, arguments)
            except oslo_messaging.MessagingTimeout:
                if last:
                    self._lost()
                    raise exception.OutcomeUnknown(peer=self._peer, reason="no answer") from None
                continue
            return faults.unwrap(reply, self._peer, request_id)
        raise AssertionError("unreachable")

    def call_server(
        self, server: str, verb: str, *, within: float | None = None, **arguments: Any
    ) -> Any:
        """Ask one named server, once; raises Unavailable when it does not answer in time.

        ``within`` is a time in seconds that may be shorter than the usual one.
        """
        patience = self._timeout if within is None else min(self._timeout, max(within, 0.1))
        client = self._client.prepare(
            server=server, timeout=patience, call_monitor_timeout=_SILENCE
        )
        try:
            reply = self._once(client, verb, "", arguments)
        except oslo_messaging.MessagingTimeout:
            raise exception.Unavailable(
                peer=f"{self._peer} on {server}", reason="no answer"
            ) from None
        return faults.unwrap(reply, f"{self._peer} on {server}", "")

    def tell_server(self, server: str, verb: str, **arguments: Any) -> None:
        """Send a hint that may be lost; never raises, never waits."""
        spoken = versions.said(self._later, verb, arguments)
        version = versions.needed(self._later, verb, spoken)
        cast = self._client.prepare(server=server, version=version).cast
        known = ids()
        told = in_thread(lambda: cast(known, verb, **spoken))
        told.add_done_callback(lambda future: self._note(verb, future.exception()))

    def close(self) -> None:
        """Give up calls in flight: who waits for them gets Unavailable at once."""
        if not self._closed.done():
            self._closed.set_result(None)

    def _once(self, client: Any, verb: str, request_id: str, arguments: dict[str, Any]) -> Any:
        if self._closed.done():
            raise exception.Unavailable(peer=self._peer, reason="this process is ending")
        spoken = versions.said(self._later, verb, arguments)
        version = versions.needed(self._later, verb, spoken)
        call = client.prepare(version=version).call
        with tracing.span(f"{self._peer} {verb}", tracing.Kind.CLIENT):
            context = {REQUEST_ID: request_id, **ids()}
            if request_id:
                context[REQUEST_ID] = request_id
            if self._sender:
                context["sender"] = self._sender
            future = in_thread(lambda: call(context, verb, **spoken))
            wait((future, self._closed), self._timeout + _AND_A_BIT, FIRST_COMPLETED)
        if not future.done():
            self._lost()
            reason = "this process is ending" if self._closed.done() else "the bus is away"
            raise exception.OutcomeUnknown(peer=self._peer, reason=reason)
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, oslo_messaging.MessagingTimeout):
            raise error
        if isinstance(error, oslo_messaging.RPCVersionCapError):
            raise exception.PinnedVersion(
                peer=self._peer, verb=verb, needed=version, pin=error.version_cap
            )
        # Within one process it comes as it was raised.
        if getattr(error, "exc_type", type(error).__name__) in _UNKNOWN:
            raise exception.UnknownVerb(peer=self._peer, verb=verb) from None
        if isinstance(error, oslo_messaging.RemoteError):
            LOG.error("%s could not take %s: %s", self._peer, verb, error)
            raise exception.PeerFault(peer=self._peer, request_id=request_id) from None
        self._lost()
        raise exception.Unavailable(peer=self._peer, reason=str(error)) from error

    def _connect(self) -> None:
        """Start looking for the peer in the background; returns at once, may be called often."""
        with self._lock:
            if self._up.is_set() or (self._pinger is not None and self._pinger.is_alive()):
                return
            self._since = time.monotonic()
            self._pinger = threading.Thread(
                target=self._ping, name=f"ping-{self._peer}", daemon=True
            )
            self._pinger.start()

    def _ping(self) -> None:
        client = self._client.prepare(timeout=_PING_TIMEOUT, transport_options=_OR_SAY_SO)
        complaint = ""
        while not self._up.is_set() and not self._closed.done():
            pong = in_thread(lambda: client.call({}, "ping"))
            wait((pong, self._closed), return_when=FIRST_COMPLETED)
            if not pong.done():  # this process is ending
                return
            error = pong.exception()
            if error is None:
                self._up.set()
                return
            nobody = isinstance(error, oslo_messaging.MessageUndeliverable)
            said = "nobody has listened there yet" if nobody else str(error)
            if said != complaint:
                complaint = said
                LOG.info("%s cannot be reached yet: %s", self._peer, complaint)
            wait((self._closed,), _PING_INTERVAL)

    def _lost(self) -> None:
        self._up.clear()
        self._connect()

    def _note(self, verb: str, error: BaseException | None) -> None:
        if error is not None:
            LOG.debug("%s was not told %s: %s", self._peer, verb, error)


def in_thread(call: Callable[[], Any], *, name: str = "rpc-call") -> Future[Any]:
    """Call in a thread that the process does not wait for at its end, unlike an executor's."""
    future: Future[Any] = Future()
    call = carried(call)

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001
            # Nothing but the messaging libraries runs in there; those of the broker's driver let
            # errors of their own pass while they make a connection. Each belongs to who asked.
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
